"""A 3 x 3 x 3 convolution as a matrix product that is never laid out, with mish and tanh.

Layout: XLA stores the result with its channels in the lanes and the images in the sublanes. The
volumes, whose rows of 64 columns fill half of the lanes, are turned by XLA into (column, image) by
(2 depths, 2 rows, channel), 128 lanes. Two by two such blocks are the operand from which two depths
by two rows of the result follow, a product with 256 columns, for each of the filter's three
columns: the matrix unit is full, with 7/16 zeros among the weights, and nothing has to be shifted.

A grid step takes two rows, at two depths and the next two, and keeps them for the step after it, so
that the volumes are read twice in all.

VMEM: two buffers each of the four rows, 0.5 MiB, and of the result, 1 MiB; the rows kept, 0.5 MiB.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

COLUMNS = 31  # columns of one product
STRIP = 1  # columns whose mish is computed at once, in registers

TUNABLES = {"COLUMNS": (1, 2, 31, 62), "STRIP": (1, 2, 8, 62)}


def constraints(COLUMNS, STRIP):
    """What must hold between the tunables at the published size."""
    return {"a strip is a part of a product": STRIP <= COLUMNS or STRIP == 62}


def _mish(z):
    # tanh(log(1 + e)) is (e^2 + 2 e) / (e^2 + 2 e + 2), which is 1 long before e^2 overflows.
    e = jnp.exp(jnp.minimum(z, 40))
    numerator = e * (e + 2)
    return z * numerator * pl.reciprocal(numerator + 2, approx=True)


def _kernel(near_ref, far_ref, weight_ref, bias_ref, out_ref, *kept_refs):
    _, _, columns, images, channels = out_ref.shape
    chunk = max(n for n in range(1, COLUMNS + 1) if columns % n == 0)

    @pl.when(pl.program_id(1) > 0)
    def _():
        # Two depths, then the next two; of each the rows before, then these.
        blocks = [kept_refs[0], near_ref.at[0, 0], kept_refs[1], far_ref.at[0, 0]]
        for start in range(0, columns, chunk):
            lanes = [
                block[start + n : start + n + chunk].reshape(chunk * images, -1)
                for n in range(3)
                for block in blocks
            ]
            z = jnp.dot(
                jnp.concatenate(lanes, axis=1), weight_ref[...], preferred_element_type=jnp.float32
            ).reshape(chunk, images, -1)
            for n in range(0, chunk, STRIP):
                y = jnp.tanh(_mish(z[n : n + STRIP] + bias_ref[...])).astype(out_ref.dtype)
                at = slice(start + n, start + n + len(y))
                for m in range(4):
                    out_ref[m // 2, m % 2, at] = y[:, :, m * channels : (m + 1) * channels]

    for kept, new in zip(kept_refs, (near_ref, far_ref), strict=True):
        kept[...] = new[0, 0]


def workload(x, weight, bias):
    """Tanh of mish of x (B, C, D, H, W) convolved with weight (O, C, 3, 3, 3), plus bias (O,)."""
    batch, channels, depth, height, width = x.shape
    out_channels = len(weight)
    depths, rows = depth // 2, height // 2
    x = x.reshape(batch, channels, depths, 2, rows, 2, width).transpose(2, 4, 6, 0, 3, 5, 1)
    x = x.reshape(depths, rows, width, batch, 4 * channels)
    # (column of the filter, 2 depths, 2 rows, depth, row, channel) x (depth, row, channel)
    taps = [
        jnp.pad(weight, ((0, 0), (0, 0), (d, 1 - d), (h, 1 - h), (0, 0)))
        for d in range(2)
        for h in range(2)
    ]
    taps = jnp.stack(taps).reshape(4, out_channels, channels, 2, 2, 2, 2, 3)
    taps = taps.transpose(7, 3, 5, 4, 6, 2, 0, 1).reshape(12 * 4 * channels, 4 * out_channels)

    def x_block(ahead):
        return pl.BlockSpec(
            (1, 1, width, batch, 4 * channels), lambda d, h: (d + ahead, h, 0, 0, 0)
        )

    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    kept = pltpu.VMEM((width, batch, 4 * channels), x.dtype)
    out = pl.pallas_call(
        _kernel,
        grid=(depths - 1, rows),
        in_specs=[x_block(0), x_block(1), whole, whole],
        out_specs=pl.BlockSpec(
            (2, 2, width - 2, batch, out_channels),
            lambda d, h: (d, jnp.maximum(h - 1, 0), 0, 0, 0),
        ),
        out_shape=jax.ShapeDtypeStruct(
            (depth - 2, height - 2, width - 2, batch, out_channels), x.dtype
        ),
        scratch_shapes=[kept, kept],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "arbitrary")),
    )(x, x, taps, jnp.tile(bias[None], (1, 4)).astype(jnp.float32))
    # The result as XLA stores it, no copy.
    return out.transpose(3, 4, 0, 1, 2)
