"""A transposed 4 x 4 x 4 convolution of stride 2, layer norm over the width, and gelu.

Layout: XLA stores input and result row by row, with 32 and 64 columns in the lanes. The products
have the result's columns of four images side by side in the lanes, (row, channel) in the rows. A
depth of the result depends on two depths of the input and four of its rows on four of the input's,
so the product for four rows sums over 2 depths x 4 rows x 4 columns of the filter x 32 channels.
Half of the weights are zeros: taps that do not reach a row.

The columns' parity is among the values: a product with zeros and ones spreads a row of four images
to the result's columns for each column of the filter. The same product subtracts the mean over the
columns, which makes that of the convolution zero. This is done once for each depth of the input
and kept for two more, with a row of zeros at either end. A grid step spreads a depth of the input
and makes two depths of the result from it and the two before it.

The norm's sum of squares runs over lanes, and the matrix unit takes it: a product with ones in
blocks of 64. Rows and channels change places by strided stores to a scratch of float32.

Shortcut: the mean is subtracted before the convolution; conv_bias only shifts it and is left out.

VMEM: two buffers each of the result, 2 x 64 x 64 rows of four images, 8 MiB, and of the input,
1 MiB; the spread rows of four depths, 8.5 MiB; rows of all channels, 2 MiB; the weights, 1.5 MiB.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

IMAGES = 4  # images side by side in the lanes
AHEAD = 1  # products started before the oldest is finished
GELU_DTYPE = "bfloat16"
VMEM_LIMIT_BYTES = 64 * 2**20

TUNABLES = {"IMAGES": (1, 2, 4), "AHEAD": (0, 1, 2), "GELU_DTYPE": ("float32", "bfloat16")}


def constraints(IMAGES, AHEAD, GELU_DTYPE):
    """What must hold between the tunables at the published size."""
    del AHEAD, GELU_DTYPE
    return {"the images fill whole registers": IMAGES == 4}


def _low(first, second):
    """The lower halves of two words side by side."""
    return (first & 0xFFFF) | (second << 16)


def _high(first, second):
    """The upper halves of two words side by side."""
    return lax.shift_right_logical(first, 16) | (second & -0x10000)


def _gelu(z):
    # The tanh form: sqrt(2 / pi), and 0.044715 times that.
    half = 0.5 * z
    return half + half * jnp.tanh(z * (0.7978845608 + 0.0356774081 * (z * z)))


def _spread(x_ref, spread_ref, lines_ref, rows_ref):
    """Lays out a depth of the input: rows of (column of the filter, channel) by columns."""
    images, channels, _, height, width = x_ref.shape
    lanes = spread_ref.shape[1] // 4
    words = x_ref.bitcast(jnp.int32)
    parts = [words.at[n].reshape(channels * height // 2, width)[...] for n in range(images)]
    lines_ref[...] = jnp.concatenate(parts, axis=1)
    group = 16 if height % 16 == 0 else height
    for first in range(0, height, group):
        rows = []
        for pair in range(first // 2, (first + group) // 2):
            even = lines_ref[pl.ds(pair, channels // 2, stride=height), :]
            odd = lines_ref[pl.ds(pair + height // 2, channels // 2, stride=height), :]
            rows += [_low(even, odd), _high(even, odd)]
        rows = pltpu.bitcast(jnp.concatenate(rows, axis=0), x_ref.dtype)
        rows = jnp.dot(rows, spread_ref[...], preferred_element_type=jnp.float32)
        rows = rows.astype(x_ref.dtype).reshape(group, channels, 4 * lanes)
        for n in range(4):
            at = slice(n * channels, (n + 1) * channels)
            rows_ref[first + 1 : first + 1 + group, at] = rows[:, :, n * lanes : (n + 1) * lanes]


def _kernel(x_ref, weight_ref, spread_ref, ones_ref, ln_ref, out_ref, *scratch):
    rows_ref, lines_ref, turned_ref = scratch
    images, channels, _, height, width = out_ref.shape
    step, depths = pl.program_id(1), pl.num_programs(1) - 1
    _, parts, _, part_lanes = turned_ref.shape
    span = turned_ref.shape[2] // channels
    dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)
    slots = [lax.rem(step + n, 4) for n in (2, 3, 4)]  # of the depths step - 2, step - 1, step

    @pl.when(step == 0)
    def _():
        rows_ref[...] = jnp.zeros_like(rows_ref)

    @pl.when(step < depths)
    def _():
        _spread(x_ref, spread_ref, lines_ref, rows_ref.at[slots[2]])

    @pl.when(step == depths)
    def _():
        rows_ref[slots[2]] = jnp.zeros(rows_ref.shape[1:], rows_ref.dtype)

    def start(parity, first):
        """Four rows of the result from two of the input, one before and one after them."""
        patches = [
            rows_ref[slots[parity + d], first + h] for d in range(2) for h in range(4)
        ]  # counted from the row of zeros
        return dot(weight_ref[parity], jnp.concatenate(patches, axis=0))

    def finish(z, parity, n):
        variance = dot((z * z).astype(ones_ref.dtype), ones_ref[...])
        y = z * lax.rsqrt(variance + CONFIG["eps"]) * ln_ref[0:1] + ln_ref[1:2]
        y = (_gelu(y.astype(GELU_DTYPE)) * CONFIG["scaling_factor"]).astype(jnp.float32)
        for part in range(parts):
            at = slice(part * part_lanes, (part + 1) * part_lanes)
            turned = turned_ref.at[parity, part]
            for m in range(4):
                row = y[m * channels : (m + 1) * channels, at]
                turned[pl.ds(n + m, channels, stride=span), :] = row

    def rows(index, carry):
        started = []
        for parity in range(2):
            for n in range(0, span, 4):
                z = start(parity, index * (span // 2) + n // 2)
                started.append((z, parity, n))
                if len(started) > AHEAD:
                    finish(*started.pop(0))
        for entry in started:
            finish(*entry)
        at = pl.ds(pl.multiple_of(index * span, span), span)
        for parity in range(2):
            for image in range(images):
                part, first = divmod(image * width, part_lanes)
                y = turned_ref[parity, part].reshape(channels, span, part_lanes)
                y = y.astype(out_ref.dtype)[:, :, first : first + width]
                out_ref[image, :, parity, at, :] = y
        return carry

    @pl.when(step > 0)
    def _():
        lax.fori_loop(0, height // span, rows, 0)


def _taps(weight, parity):
    """(row of four, channel) x (depth, row of the input, column of the filter, channel)."""
    in_channels, out_channels = weight.shape[:2]
    weight = jnp.pad(weight, ((0, 0), (0, 0), (0, 0), (3, 3), (0, 0)))
    depths = jnp.stack([weight[:, :, 3 - parity], weight[:, :, 1 - parity]], axis=2)
    rows = [jnp.stack([depths[:, :, :, n + 6 - 2 * h] for h in range(4)], 3) for n in range(4)]
    return jnp.stack(rows).transpose(0, 2, 3, 4, 5, 1).reshape(4 * out_channels, 32 * in_channels)


def workload(x, conv_weight, conv_bias, ln_weight, ln_bias):
    """Gelu of the layer norm of x (B, C, D, H, W) spread by conv_weight (C, O, 4, 4, 4)."""
    del conv_bias
    batch, in_channels, depth, height, width = x.shape
    out_channels = conv_weight.shape[1]
    images = max(n for n in (1, 2, 4) if n <= IMAGES and batch % n == 0)
    lanes = images * 2 * width
    span = 16 if 2 * height % 16 == 0 else 4
    part_lanes = 128 if lanes % 128 == 0 else lanes
    # Column 2 w + n - 1 of the result for column n of the filter, less a part for the mean.
    column, source = jnp.arange(2 * width), jnp.arange(width)
    spread = jnp.stack([column == 2 * source[:, None] + n - 1 for n in range(4)], axis=1)
    spread = spread - spread.mean(axis=-1, keepdims=True)
    ones = jnp.eye(images)[:, None, :, None] * jnp.full((1, 2 * width, 1, 2 * width), 0.5 / width)
    spread = jnp.einsum("wnc,ab->awnbc", spread, jnp.eye(images)).reshape(images * width, -1)
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    return pl.pallas_call(
        _kernel,
        grid=(batch // images, depth + 1),
        in_specs=[
            pl.BlockSpec(
                (images, in_channels, 1, height, width),
                lambda b, d: (b, 0, jnp.minimum(d, depth - 1), 0, 0),
            ),
            *[whole] * 4,
        ],
        out_specs=pl.BlockSpec(
            (images, out_channels, 2, 2 * height, 2 * width),
            lambda b, d: (b, 0, jnp.maximum(d - 1, 0), 0, 0),
        ),
        out_shape=jax.ShapeDtypeStruct(
            (batch, out_channels, 2 * depth, 2 * height, 2 * width), x.dtype
        ),
        scratch_shapes=[
            pltpu.VMEM((4, height + 2, 4 * in_channels, lanes), x.dtype),
            pltpu.VMEM((in_channels * height // 2, images * width), jnp.int32),
            pltpu.VMEM((2, lanes // part_lanes, out_channels * span, part_lanes), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(
        x,
        jnp.stack([_taps(conv_weight, parity) for parity in range(2)]),
        spread.astype(x.dtype),
        ones.reshape(lanes, lanes).astype(x.dtype),
        jnp.tile(jnp.stack([ln_weight, ln_bias]), (1, images)).astype(jnp.float32),
    )
