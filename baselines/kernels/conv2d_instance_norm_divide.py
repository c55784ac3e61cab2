"""A 3 x 3 convolution normalised over each plane, with the planes kept in VMEM.

Layout: XLA stores the images row by row, with the columns in the lanes, and the result with its
channels in the lanes and the images in the sublanes. So the kernel turns a pair of image rows into
(column, image) by (row of the pair, channel), 128 lanes, by strided loads and stores of words and
transposes of 128 x 128. Two such pairs are the 256 lanes from which a pair of output rows follows,
a product with 256 columns, for each of the filter's three columns: the matrix unit is full, with a
quarter of zeros among the weights, and nothing has to be shifted.

The statistics of a plane are sums over the leading axes, so nothing is reduced inside a register.
The convolutions of 16 images, in bfloat16, fill half of VMEM. A step takes a block of rows of the
images before from there, normalises and stores it, and puts the same rows of the next images into
its place: the matrix unit and the stores to HBM work all the time. It also turns the rows that the
next step convolves, whose first pair the last pair of output rows needs already.

Numerics: a plane whose spread is below 2^-8 of its mean comes out as the rounding of bfloat16.

Shortcut: conv_bias only shifts a mean that is subtracted again, and is left out.

VMEM: the planes, 63 MiB; two buffers each of 8 rows of 16 images, 2 MiB, and of the result, 4 MiB;
the ring of turned rows, 4 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

IMAGES = 16  # images of a grid step, which fill the sublanes
ROWS = 8  # image rows of a grid step
COLUMNS = 126  # columns of one product
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "IMAGES": (2, 4, 8, 16),
    "ROWS": (8, 16),
    "COLUMNS": (2, 7, 14, 42, 126),
}


def constraints(IMAGES, ROWS, COLUMNS):
    """What must hold between the tunables at the published size."""
    width, channels, item = 128, 64 + 128, 2
    blocks = 2 * item * IMAGES * ROWS * width * channels
    planes = item * width * width * IMAGES * 128
    turned = 4 * ROWS * width * IMAGES // 2 * 128
    return {
        "columns of an image fill whole tiles": IMAGES >= 16,
        "planes and blocks fit in VMEM": planes + blocks + turned + 4 * COLUMNS * IMAGES * 256
        <= VMEM_LIMIT_BYTES,
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
            yield pair, slice(start, start + chunk), product


def _kernel(x_ref, weight_ref, in_weight_ref, in_bias_ref, out_ref, *scratch):
    turned_ref, planes_ref, sums_ref, scale_ref, shift_ref = scratch
    rows, columns, images, channels = out_ref.shape
    height = planes_ref.shape[0]
    step = pl.program_id(0)
    block = lax.rem(jnp.maximum(step - 1, 0), height // rows)

    @pl.when(block == 0)
    def _():
        mean, square = (sums_ref[n] / ((height - 2) * columns) for n in range(2))
        variance = jnp.maximum(square - mean * mean, 0)  # rounding may make it negative
        scale = in_weight_ref[...] * lax.rsqrt(variance + CONFIG["eps"])
        scale_ref[...] = scale / CONFIG["divide_by"]
        shift_ref[...] = (in_bias_ref[...] - mean * scale) / CONFIG["divide_by"]
        sums_ref[...] = jnp.zeros_like(sums_ref)

    def normalise(row, at):
        plane = planes_ref[block * rows + row, at].astype(jnp.float32)
        out_ref[row, at] = (plane * scale_ref[...] + shift_ref[...]).astype(out_ref.dtype)

    fresh = step <= pl.num_programs(0) - 1 - height // rows

    @pl.when(fresh)
    def _():
        for pair, at, product in _convolution(x_ref, weight_ref, turned_ref, step):
            for row in range(2 * pair, 2 * pair + 2):
                normalise(row, at)
                z = product[:, row % 2 * channels :][:, :channels].reshape(-1, images, channels)
                planes_ref[block * rows + row, at] = z.astype(planes_ref.dtype)
                # The last two rows are not of the plane.
                inside = block * rows + row < height - 2
                sums_ref[0] += jnp.where(inside, jnp.sum(z, axis=0), 0)
                sums_ref[1] += jnp.where(inside, jnp.sum(z * z, axis=0), 0)

    @pl.when(jnp.logical_not(fresh))
    def _():
        for row in range(rows):
            normalise(row, slice(None))


def _taps(weight):
    """(column of the filter, row of two pairs, channel) x (row of the output's pair, channel)."""
    taps = jnp.pad(weight.transpose(3, 2, 1, 0), ((0, 0), (0, 1), (0, 0), (0, 0)))
    taps = jnp.stack([taps, jnp.roll(taps, 1, axis=1)], axis=3)
    return taps.reshape(-1, 2 * len(weight))


def workload(x, weight, conv_bias, in_weight, in_bias):
    """Normalises the planes of x (B, C, H, W) convolved with weight (O, C, 3, 3)."""
    del conv_bias
    batch, channels, height, width = x.shape
    x = jnp.pad(x, ((0, batch % 2), (0, 0), (0, 0), (0, 0)))
    images = max(n for n in range(2, IMAGES + 1, 2) if len(x) % n == 0)
    rows = max(n for n in range(8, ROWS + 1, 8) if height % n == 0)
    blocks = height // rows
    last = len(x) // images * blocks - 1

    def x_block(step):
        n = jnp.minimum(step, last)
        return n // blocks, 0, n % blocks, 0

    def out_block(step):
        # While the first images are convolved there is nothing to store yet.
        n = jnp.maximum(step - 1 - blocks, 0)
        return n % blocks, 0, n // blocks, 0

    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    per_channel = pltpu.VMEM((images, len(weight)), jnp.float32)
    out = pl.pallas_call(
        _kernel,
        grid=(last + 2 + blocks,),
        in_specs=[pl.BlockSpec((images, channels, rows, width), x_block), whole, whole, whole],
        out_specs=pl.BlockSpec((rows, width - 2, images, len(weight)), out_block),
        out_shape=jax.ShapeDtypeStruct((height - 2, width - 2, len(x), len(weight)), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((rows, width * images // 2, 2 * channels), jnp.int32),
            pltpu.VMEM((height, width - 2, images, len(weight)), x.dtype),
            pltpu.VMEM((2, images, len(weight)), jnp.float32),
            per_channel,
            per_channel,
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, _taps(weight), *(b.reshape(1, -1).astype(jnp.float32) for b in (in_weight, in_bias)))
    # The result as XLA stores it, no copy.
    return out[:, :, :batch].transpose(2, 3, 0, 1)
