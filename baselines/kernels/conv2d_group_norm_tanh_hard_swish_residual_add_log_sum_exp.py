"""A 3 x 3 convolution of few channels, its group norm, tanh, hard swish and log-sum-exp in VMEM.

Layout: the images lie row by row, with the columns in the lanes, and stay so, some images side by
side. A window is a pair of rows of 8 channels in the sublanes, by strided loads of words, for five
pairs of rows and three columns of the filter, rolled along the lanes: 240 rows of one product,
which needs no transpose and gives eight rows of the result. Ones fill the other 16 rows of the
matrix unit and add the bias. A register holds eight rows of one channel, so that maximum and sum
over the channels are taken between registers.

A grid step convolves its images into VMEM, takes the statistics, and makes a second pass. Rows and
columns beyond the plane count as zero in the statistics: rows by weights, columns by lanes.

Shortcut: the clip of the hard swish never acts on a tanh.

VMEM: the convolutions of two images, 8 MiB; two buffers of the images, 0.5 MiB; weights, 0.5 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

IMAGES = 2  # images of a grid step, side by side in the lanes
STRIP = 1  # channels whose norm, tanh and exponential are computed at once

TUNABLES = {"IMAGES": (1, 2, 4), "STRIP": (1, 2, 4, 8, 16, 64)}


def constraints(IMAGES, STRIP):
    """What must hold between the tunables at the published size."""
    del STRIP
    return {"the convolutions fit in VMEM": 4 * IMAGES * 64 * 128 * 128 <= 24 * 2**20}


def _kernel(x_ref, weight_ref, last_weight_ref, groups_ref, affine_ref, out_ref, *scratch):
    z_ref, scale_ref, shift_ref = scratch
    images, channels, height, width = x_ref.shape
    windows, out_channels, _, lanes = z_ref.shape
    pairs = height // 2
    words = x_ref.bitcast(jnp.int32).reshape(images * channels * pairs, width)
    ones = jnp.full((8, lanes), 0x3F803F80, jnp.int32)  # two bfloat16 ones

    for window in range(windows):
        lines = []
        for pair in range(4 * window, min(4 * window + 5, pairs)):
            parts = [
                words[pl.ds(n * channels * pairs + pair, channels, stride=pairs), :]
                for n in range(images)
            ]
            lines.append(jnp.concatenate(parts, axis=1))
        lines += [lines[0]] * (5 - len(lines))  # meets zeros alone
        shifted = [
            pltpu.roll(line, lanes - n, 1) if n else line for n in range(3) for line in lines
        ]
        patches = pltpu.bitcast(jnp.concatenate([*shifted, ones], axis=0), x_ref.dtype)
        weight = (last_weight_ref if window == windows - 1 else weight_ref)[...]
        z = jnp.dot(weight, patches, preferred_element_type=jnp.float32)
        z_ref[window] = z.reshape(out_channels, 8, lanes)

    lane = lax.broadcasted_iota(jnp.int32, (out_channels, lanes), 1)
    totals, squares = [], []
    for first in range(0, out_channels, STRIP):
        total = square = 0
        for window in range(windows):
            z = z_ref[window, first : first + STRIP]
            total += z
            square += z * z
        totals.append(jnp.sum(total, axis=1))
        squares.append(jnp.sum(square, axis=1))
    inside = lax.rem(lane, width) < width - 2
    # The mean over the channels of a group, for each of them.
    mean, square = (
        jnp.dot(
            groups_ref[...],
            jnp.where(inside, jnp.concatenate(sums, axis=0), 0),
            preferred_element_type=jnp.float32,
            precision=lax.Precision.HIGHEST,
        )
        for sums in (totals, squares)
    )
    for n in range(images):
        at = slice(n * width, (n + 1) * width)
        image_mean = jnp.sum(mean[:, at], axis=1, keepdims=True)
        variance = jnp.sum(square[:, at], axis=1, keepdims=True) - image_mean * image_mean
        variance = jnp.maximum(variance, 0)  # rounding may make it negative
        scale = affine_ref[0] * lax.rsqrt(variance + CONFIG["eps"])
        scale_ref[:, at] = scale
        shift_ref[:, at] = affine_ref[1] - image_mean * scale

    def window_pair(index, carry):
        rows = []
        for n in range(per_step):
            window = index * per_step + n
            peak = jnp.max(z_ref[window], axis=0)
            total = 0
            for first in range(0, out_channels, STRIP):
                at = slice(first, first + STRIP)
                z = z_ref[window, at]
                t = jnp.tanh(z * scale_ref[at][:, None] + shift_ref[at][:, None])
                total += jnp.sum(jnp.exp(z - peak + t * (t + 3) * (1 / 6)), axis=0)
            rows.append(jnp.log(total) + peak)
        rows = jnp.concatenate(rows, axis=0).astype(out_ref.dtype)
        at = pl.ds(pl.multiple_of(index * len(rows), len(rows)), len(rows))
        for n in range(images):
            out_ref[n, at, :] = rows[:, n * width : (n + 1) * width]
        return carry

    per_step = 2 if windows % 2 == 0 else 1  # sixteen rows, the smallest bfloat16 tile
    lax.fori_loop(0, windows // per_step, window_pair, 0)


def workload(x, conv_weight, conv_bias, gn_weight, gn_bias):
    """Log-sum-exp over the channels of x (B, C, H, W) convolved, and of what its norm adds."""
    batch, channels, height, width = x.shape
    out_channels, groups = len(conv_weight), CONFIG["groups"]
    images = max(n for n in (1, 2, 4) if n <= IMAGES and batch % n == 0)
    lanes = images * width
    # (channel, row of the result) x (column of the filter, pair of rows, channel, row of pair)
    taps = [jnp.pad(conv_weight, ((0, 0), (0, 0), (n, 7 - n), (0, 0))) for n in range(8)]
    taps = jnp.stack(taps, axis=1).reshape(out_channels, 8, channels, 5, 2, 3)
    taps = taps.transpose(0, 1, 5, 3, 2, 4).reshape(8 * out_channels, -1)
    biases = jnp.pad(jnp.repeat(conv_bias, 8)[:, None], ((0, 0), (0, 15)))
    weight = jnp.concatenate([taps, biases], axis=1)
    is_row = jnp.arange(len(weight))[:, None] % 8 < 6
    group = jnp.arange(out_channels) // (out_channels // groups)
    count = out_channels // groups * (height - 2) * (width - 2)
    same_group = (group[:, None] == group).astype(jnp.float32) / count
    affine = jnp.stack([gn_weight, gn_bias])[:, :, None].astype(jnp.float32)
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    out = pl.pallas_call(
        _kernel,
        grid=(batch // images,),
        in_specs=[
            pl.BlockSpec((images, channels, height, width), lambda b: (b, 0, 0, 0)),
            *[whole] * 4,
        ],
        out_specs=pl.BlockSpec((images, height, width), lambda b: (b, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, height, width), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((height // 8, out_channels, 8, lanes), jnp.float32),
            pltpu.VMEM((out_channels, lanes), jnp.float32),
            pltpu.VMEM((out_channels, lanes), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(
        x,
        weight,
        jnp.where(is_row, weight, 0),
        same_group,
        jnp.broadcast_to(affine, (2, out_channels, width)),
    )
    return out[:, None, : height - 2, : width - 2]
