"""A 3 x 3 convolution, mish and the norm of the batch, with the convolution made twice.

Layout: XLA stores the images row by row, with the columns in the lanes, and the result with its
channels in the lanes and the images in the sublanes. So the kernel turns a pair of image rows into
(column, image) by (row of the pair, channel), 128 lanes, by strided loads and stores of words and
transposes of 128 x 128. Two such pairs are the 256 lanes from which a pair of output rows follows,
a product with 256 columns, for each of the filter's three columns: the matrix unit is full, with a
quarter of zeros among the weights, and nothing has to be shifted.

The statistics need all values before the first is stored, and 250 MiB of them do not fit in VMEM.
To write them and read them again would take longer than to convolve again: the first pass over the
images takes the statistics, the second stores the result. A step turns a block of rows and
convolves the block before it, whose last pair of output rows needs the first pair of the new block.

Numerics: a channel whose spread is below 2^-8 of its mean comes out as the rounding of bfloat16.

VMEM: two buffers each of 8 rows of 16 images, 2 MiB, and of the result, 4 MiB; the ring of turned
rows, 4 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

IMAGES = 16  # images of a grid step, which fill the sublanes
ROWS = 8  # image rows of a grid step
COLUMNS = 42  # columns of one product
AHEAD = 1  # products started before the oldest is finished
STRIP = 6  # columns whose mish is computed at once, in registers
MISH_DTYPE = "bfloat16"  # of mish and the affine map after it
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "IMAGES": (2, 4, 8, 16, 32),
    "ROWS": (8, 16),
    "COLUMNS": (2, 7, 14, 42, 126),
    "STRIP": (1, 2, 6, 42),
    "MISH_DTYPE": ("float32", "bfloat16"),
}


def constraints(IMAGES, ROWS, COLUMNS, STRIP, MISH_DTYPE):
    """What must hold between the tunables at the published size."""
    width, channels, item = 128, 64 + 128, 2
    blocks = 2 * item * IMAGES * ROWS * width * channels
    turned = 4 * ROWS * width * IMAGES // 2 * 128
    return {
        "columns of an image fill whole tiles": IMAGES >= 16,
        "blocks fit in VMEM": blocks + turned + 4 * COLUMNS * IMAGES * 256 <= VMEM_LIMIT_BYTES,
    }


def _low(first, second):
    """The lower halves of two words side by side."""
    return (first & 0xFFFF) | (second << 16)


def _high(first, second):
    """The upper halves of two words side by side."""
    return lax.shift_right_logical(first, 16) | (second & -0x10000)


def _pixels_by_channels(x_ref, image, pair):
    """A pair of rows as (W / 2, 2 C): words of two columns, the pair's channels in the lanes."""
    _, channels, rows, width = x_ref.shape
    words = x_ref.at[image].bitcast(jnp.int32).reshape(channels * rows // 2, width)
    even = words[pl.ds(pair, channels // 2, stride=rows), :]
    odd = words[pl.ds(pair + rows // 2, channels // 2, stride=rows), :]
    both = jnp.concatenate([_low(even, odd), _high(even, odd)], axis=0)
    return pltpu.bitcast(pltpu.bitcast(both, jnp.bfloat16).T, jnp.int32)


def _turn(x_ref, turned_ref, image, pair):
    """Turns a pair of rows of two images into words of the two images, (column, image) by lanes."""
    images, _, _, width = x_ref.shape
    first, second = (_pixels_by_channels(x_ref, image + n, pair) for n in range(2))
    turned_ref[pl.ds(image // 2, width // 2, stride=images), :] = _low(first, second)
    turned_ref[pl.ds((image + images) // 2, width // 2, stride=images), :] = _high(first, second)


def _convolution(x_ref, weight_ref, turned_ref, step):
    """Turns block `step` of the image rows and convolves the block before it.

    Yields (pair of rows, columns, float32 products of (column, image) by (row of pair, channel)).
    """
    images, _, rows, width = x_ref.shape
    columns = width - 2
    chunk = max(n for n in range(1, COLUMNS + 1) if columns % n == 0)
    starts = range(0, columns, chunk)
    started = []
    for pair in range(rows // 2):
        new = lax.rem(step * (rows // 2) + pair, rows)
        top = lax.rem(new + rows // 2, rows)
        bottom = lax.rem(top + 1, rows)
        for n, start in enumerate(starts):
            # Between the products, so that the cross-lane units work beside the matrix units.
            for image in range(2 * n, images, 2 * len(starts)):
                _turn(x_ref, turned_ref.at[new], image, pair)
            lanes = []
            for column in range(start, start + 3):
                for slot in (top, bottom):
                    words = turned_ref[slot, pl.ds(column * images // 2, chunk * images // 2), :]
                    lanes.append(pltpu.bitcast(words, x_ref.dtype))
            product = jnp.dot(
                jnp.concatenate(lanes, axis=1), weight_ref[...], preferred_element_type=jnp.float32
            )
            started.append((pair, slice(start, start + chunk), product))
            if len(started) > AHEAD:
                yield started.pop(0)
    yield from started


def _mish(z):
    # tanh(log(1 + e)) is (e^2 + 2 e) / (e^2 + 2 e + 2), which is 1 long before z e^2 overflows.
    e = jnp.exp(jnp.minimum(z, 20))
    numerator = e * (e + 2)
    inverse = pl.reciprocal((numerator + 2).astype(jnp.float32), approx=True)
    return z * numerator * inverse.astype(z.dtype)


def _kernel(x_ref, weight_ref, conv_bias_ref, bn_weight_ref, bn_bias_ref, out_ref, *scratch):
    turned_ref, sums_ref, affine_ref = scratch
    rows, columns, images, channels = out_ref.shape
    step, (batch, height) = pl.program_id(0), (CONFIG["B"], CONFIG["H"])
    blocks = height // rows
    half = (pl.num_programs(0) - 1) // 2
    block = lax.rem(jnp.maximum(step - 1, 0), blocks)

    image = lax.broadcasted_iota(jnp.int32, (images, 1), 0)
    image += lax.div(jnp.maximum(step - 1, 0), blocks) * images

    @pl.when(step <= half)
    def _():
        @pl.when(step == 1)
        def _():
            sums_ref[...] = jnp.zeros_like(sums_ref)

        for pair, _, z in _convolution(x_ref, weight_ref, turned_ref, step):
            z = z.reshape(-1, images, 2 * channels)
            total = square = 0
            for n in range(0, len(z), STRIP):
                a = _mish((z[n : n + STRIP] + conv_bias_ref[...]).astype(MISH_DTYPE))
                a = a.astype(jnp.float32)
                total += jnp.sum(a, axis=0)
                square += jnp.sum(a * a, axis=0)
            # Neither the last two rows of the last block nor an image added to an odd batch count.
            inside = (block * rows + 2 * pair < height - 2) & (image < batch)
            sums_ref[0] += jnp.where(inside, total, 0)
            sums_ref[1] += jnp.where(inside, square, 0)

    @pl.when(step == half)
    def _():
        count = batch * columns * (height - 2)
        total = jnp.sum(sums_ref[...], axis=1, keepdims=True)
        mean, square = (total[..., :channels] + total[..., channels:]) / count
        variance = jnp.maximum(square - mean * mean, 0)  # rounding may make it negative
        scale = bn_weight_ref[...] * lax.rsqrt(variance + CONFIG["eps"])
        affine_ref[0:1] = jnp.concatenate([scale, scale], axis=1)
        shift = bn_bias_ref[...] - mean * scale
        affine_ref[1:2] = jnp.concatenate([shift, shift], axis=1)

    @pl.when(step > half)
    def _():
        scale, shift = (affine_ref[n : n + 1].astype(MISH_DTYPE) for n in range(2))
        for pair, at, z in _convolution(x_ref, weight_ref, turned_ref, step):
            z = z.reshape(-1, images, 2 * channels)
            for n in range(0, len(z), STRIP):
                a = _mish((z[n : n + STRIP] + conv_bias_ref[...]).astype(MISH_DTYPE))
                y = (a * scale + shift).astype(out_ref.dtype)
                for row in range(2):
                    part = y[:, :, row * channels : (row + 1) * channels]
                    out_ref[2 * pair + row, at.start + n : at.start + n + len(y)] = part


def _taps(weight):
    """(column of the filter, row of two pairs, channel) x (row of the output's pair, channel)."""
    taps = jnp.pad(weight.transpose(3, 2, 1, 0), ((0, 0), (0, 1), (0, 0), (0, 0)))
    taps = jnp.stack([taps, jnp.roll(taps, 1, axis=1)], axis=3)
    return taps.reshape(-1, 2 * len(weight))


def workload(x, conv_weight, conv_bias, bn_weight, bn_bias):
    """Normalises mish of x (B, C, H, W) convolved with conv_weight (O, C, 3, 3), per channel."""
    batch, channels, height, width = x.shape
    x = jnp.pad(x, ((0, batch % 2), (0, 0), (0, 0), (0, 0)))
    images = max(n for n in range(2, IMAGES + 1, 2) if len(x) % n == 0)
    rows = max(n for n in range(8, ROWS + 1, 8) if height % n == 0)
    blocks = height // rows
    steps = len(x) // images * blocks

    def x_block(step):
        n = jnp.minimum(step, 2 * steps - 1) % steps
        return n // blocks, 0, n % blocks, 0

    def out_block(step):
        # While the statistics are taken there is nothing to store yet.
        n = jnp.maximum(step - 1 - steps, 0)
        return n % blocks, 0, n // blocks, 0

    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    out = pl.pallas_call(
        _kernel,
        grid=(2 * steps + 1,),
        in_specs=[pl.BlockSpec((images, channels, rows, width), x_block)] + 4 * [whole],
        out_specs=pl.BlockSpec((rows, width - 2, images, len(conv_weight)), out_block),
        out_shape=jax.ShapeDtypeStruct((height - 2, width - 2, len(x), len(conv_weight)), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((rows, width * images // 2, 2 * channels), jnp.int32),
            pltpu.VMEM((2, images, 2 * len(conv_weight)), jnp.float32),
            pltpu.VMEM((2, 2 * len(conv_weight)), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(
        x,
        _taps(conv_weight),
        jnp.tile(conv_bias.reshape(1, -1), (1, 2)).astype(jnp.float32),
        bn_weight.reshape(1, -1).astype(jnp.float32),
        bn_bias.reshape(1, -1).astype(jnp.float32),
    )
    # The result as XLA stores it, no copy.
    return out[:, :, :batch].transpose(2, 3, 0, 1)
