"""A 3 x 3 x 3 convolution of three channels and the mean of its group norm: one number a sample.

Only sums leave the convolution: of every channel, and of its squares.

Shortcut: the mean of the norm follows from the sums, as does what conv_bias adds to them; no value
is normalised.

Layout: XLA stores the volumes with the samples in the lanes and the columns in the sublanes. So 16
columns of a row, for three channels, depths and rows, are 432 rows of an operand without moving
anything, and a product with the filter set at each of 14 columns gives as many columns of the
result, in the order (column, channel). Ten rows of the result are side by side in the lanes.

VMEM: two buffers of three depths, 4.5 MiB; the weights, 0.3 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

WINDOW = 16  # columns of the operand
ROWS = 10  # rows of the result side by side in the lanes

TUNABLES = {"WINDOW": (16, 32), "ROWS": (1, 2, 3, 5, 6, 10)}


def constraints(WINDOW, ROWS):
    """What must hold between the tunables at the published size."""
    return {"a product is a part of VMEM": WINDOW * ROWS * 128 * (27 * 2 + 24 * 4) <= 16 * 2**20}


def _kernel(*refs):
    *x_refs, weight_ref, same_group_ref, affine_ref, out_ref, sums_ref = refs
    channels, _, height, width, batch = x_refs[0].shape
    out_channels = affine_ref.shape[0]
    window = weight_ref.shape[1] // (9 * channels)
    side = sums_ref.shape[-1] // batch
    # (first column, columns of the product to leave out): starts are multiples of 8 sublanes.
    starts, done = [], 0
    while done < width - 2:
        start = min(done, width - window) // 8 * 8
        starts.append((start, done - start))
        done = start + window - 2

    @pl.when(pl.program_id(0) == 0)
    def _():
        sums_ref[...] = jnp.zeros_like(sums_ref)

    def rows(index, carry):
        first = index * side
        for start, skip in starts:
            patches = [
                jnp.concatenate(
                    [x[c, 0, first + n + h, start : start + window] for n in range(side)], axis=1
                )
                for c in range(channels)
                for x in x_refs
                for h in range(3)
            ]
            z = jnp.dot(
                weight_ref[skip * out_channels :],
                jnp.concatenate(patches, axis=0),
                preferred_element_type=jnp.float32,
            )
            total = square = 0
            for n in range(0, len(z), out_channels):
                column = z[n : n + out_channels]
                total += column
                square += column * column
            sums_ref[0] += total
            sums_ref[1] += square
        return carry

    lax.fori_loop(0, (height - 2) // side, rows, 0)

    @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
    def _():
        count = pl.num_programs(0) * (height - 2) * (width - 2)
        sums = [
            sum(sums_ref[m, :, n * batch : (n + 1) * batch] for n in range(side)) / count
            for m in range(2)
        ]
        bias, gamma, beta = (affine_ref[:, n : n + 1] for n in range(3))
        mean = sums[0] + bias
        square = sums[1] + bias * (2 * sums[0] + bias)
        # The mean over the channels of a group, for each of them.
        group_mean, group_square = (
            jnp.dot(
                same_group_ref[...],
                values,
                preferred_element_type=jnp.float32,
                precision=lax.Precision.HIGHEST,
            )
            for values in (mean, square)
        )
        # Rounding may make the difference negative.
        variance = jnp.maximum(group_square - group_mean * group_mean, 0)
        scale = gamma * lax.rsqrt(variance + CONFIG["eps"])
        y = (mean - group_mean) * scale + beta
        out_ref[...] = jnp.sum(y, axis=0, keepdims=True) / out_channels


def workload(x, weight, conv_bias, gamma, beta):
    """Means of the group norm of x (B, C, D, H, W) convolved with weight (O, C, 3, 3, 3)."""
    batch, channels, depth, height, width = x.shape
    out_channels, groups = len(weight), CONFIG["num_groups"]
    window = WINDOW if width >= WINDOW else width
    side = max(n for n in range(1, ROWS + 1) if (height - 2) % n == 0)
    # (column of the result, its channel) x (channel, depth, row, column of the operand)
    # As a product with ones, which XLA does at once, unlike the padding of each column.
    n, tap, column = jnp.ogrid[: window - 2, :3, :window]
    taps = jnp.einsum("ocdhj,njw->nocdhw", weight, (column == n + tap).astype(weight.dtype))
    taps = taps.reshape((window - 2) * out_channels, -1)
    group = jnp.arange(out_channels) // (out_channels // groups)
    same_group = (group[:, None] == group).astype(jnp.float32) / (out_channels // groups)
    # As XLA stores it, no copy.
    x = x.transpose(1, 2, 3, 4, 0)
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    out = pl.pallas_call(
        _kernel,
        grid=(depth - 2,),
        in_specs=[
            *(
                pl.BlockSpec(
                    (channels, 1, height, width, batch), lambda d, n=n: (0, d + n, 0, 0, 0)
                )
                for n in range(3)
            ),
            *[whole] * 3,
        ],
        out_specs=pl.BlockSpec((1, batch), lambda d: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((1, batch), jnp.float32),
        scratch_shapes=[pltpu.VMEM((2, out_channels, side * batch), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )(x, x, x, taps, same_group, jnp.stack([conv_bias, gamma, beta], 1).astype(jnp.float32))
    return out[0].astype(x.dtype)
