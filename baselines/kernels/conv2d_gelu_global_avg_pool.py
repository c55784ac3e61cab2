"""A 3 x 3 convolution of few channels, gelu, and the mean of each plane: one number a plane.

Layout: the images lie row by row, with the columns in the lanes, and stay so. A window is a pair of
rows of 8 channels in the sublanes, by strided loads of words, for five pairs of rows and three
columns of the filter, rolled along the lanes: 240 rows of one product, which needs no transpose and
gives eight rows of the result. Ones fill the other 16 rows of the matrix unit and add the bias.

The gelu, which is bfloat16 work, runs under the products of the iteration's other windows: the
compiler moves these ahead by itself. The sums over the eight rows of a window are bfloat16 work,
too; their roundings average out over tens of thousands of positions. Columns beyond the plane are
left out at the end, by lanes.

VMEM: two buffers of an image, 1 MiB; the weights, 256 KiB; little else.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

WINDOWS = 16  # windows of eight rows in one iteration
AHEAD = 0  # products started before the oldest is finished
GELU_DTYPE = "bfloat16"

TUNABLES = {
    "WINDOWS": (1, 2, 4, 8, 16),
    "AHEAD": (0, 1, 2),
    "GELU_DTYPE": ("float32", "bfloat16"),
}


def constraints(WINDOWS, AHEAD, GELU_DTYPE):
    """What must hold between the tunables at the published size."""
    del GELU_DTYPE
    return {"there are products to start ahead": AHEAD < WINDOWS}


def _doubled_gelu(z):
    inner = z * (math.sqrt(2 / math.pi) + 0.044715 * math.sqrt(2 / math.pi) * (z * z))
    return z + z * jnp.tanh(inner)


def _kernel(*refs):
    *x_refs, weight_ref, out_ref, sums_ref = refs
    _, channels, height, lanes = x_refs[0].shape
    out_channels, width = sums_ref.shape
    pairs = height // 2
    words = [x.at[0].bitcast(jnp.int32).reshape(channels * pairs, lanes) for x in x_refs]
    ones = jnp.full((8, width), 0x3F803F80, jnp.int32)  # two bfloat16 ones

    def start(bases, window, rows):
        """The convolution of eight rows, of which `rows` are there, in the order (row, channel)."""
        lines = []
        for pair in range(4 * window, 4 * window + 4 + (rows > 6)):
            parts = [base[pl.ds(pair, channels, stride=pairs), :] for base in bases]
            lines.append(jnp.concatenate(parts, axis=1))
        lines += [lines[0]] * (5 - len(lines))  # meets zeros alone
        shifted = [
            pltpu.roll(line, width - n, 1) if n else line for n in range(3) for line in lines
        ]
        patches = pltpu.bitcast(jnp.concatenate([*shifted, ones], axis=0), x_refs[0].dtype)
        weight = weight_ref[: rows * out_channels]
        return jnp.dot(weight, patches, preferred_element_type=jnp.float32)

    def finish(z):
        total = 0
        for n in range(0, len(z), out_channels):
            total += _doubled_gelu(z[n : n + out_channels].astype(GELU_DTYPE))
        sums_ref[...] += total.astype(jnp.float32)

    def group(bases, first, last):
        started = []
        for window in range(first, first + count):
            started.append(start(bases, window, 6 if last and window == first + count - 1 else 8))
            if len(started) > AHEAD:
                finish(started.pop(0))
        for z in started:
            finish(z)

    count = max(n for n in range(1, WINDOWS + 1) if height // 8 % n == 0)
    groups = height // 8 // count
    sums_ref[...] = jnp.zeros_like(sums_ref)

    def body(index, carry):
        # The rows from here to those of the last channel that the group needs.
        size = (channels - 1) * pairs + 4 * count + 4
        at = pl.multiple_of(index * 4 * count, 4)
        group([part.at[pl.ds(at, size)] for part in words], 0, False)
        return carry

    if groups > 1:
        lax.fori_loop(0, groups - 1, body, 0)
    group(words, (groups - 1) * count, True)
    inside = lax.broadcasted_iota(jnp.int32, sums_ref.shape, 1) < width - 2
    total = jnp.sum(jnp.where(inside, sums_ref[...], 0).T, axis=0, keepdims=True)
    out_ref[0] = total / (2 * (height - 2) * (width - 2))


def workload(x, weight, bias):
    """Means of gelu of x (B, C, H, W) convolved with weight (O, C, 3, 3), plus bias (O,)."""
    batch, channels, height, width = x.shape
    out_channels = len(weight)
    # (row of the result, its channel) x (column of the filter, pair of rows, channel, row of pair)
    taps = [jnp.pad(weight, ((0, 0), (0, 0), (n, 7 - n), (0, 0))) for n in range(8)]
    taps = jnp.stack(taps).reshape(8, out_channels, channels, 5, 2, 3)
    taps = taps.transpose(0, 1, 5, 3, 2, 4).reshape(8 * out_channels, -1)
    biases = jnp.pad(jnp.tile(bias, 8)[:, None], ((0, 0), (0, 15)))
    # Strided loads are of 128 lanes: the parts of a row come as blocks of their own.
    lanes = 128 if width % 128 == 0 else width
    out = pl.pallas_call(
        _kernel,
        grid=(batch,),
        in_specs=[
            *(
                pl.BlockSpec((1, channels, height, lanes), lambda b, n=n: (b, 0, 0, n))
                for n in range(width // lanes)
            ),
            pl.BlockSpec(memory_space=pltpu.VMEM),
        ],
        out_specs=pl.BlockSpec((1, 1, out_channels), lambda b: (b, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, 1, out_channels), jnp.float32),
        scratch_shapes=[pltpu.VMEM((out_channels, width), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(*[x] * (width // lanes), jnp.concatenate([taps, biases], axis=1))
    return out[:, 0].astype(x.dtype)
