"""A 3 x 3 convolution as a matrix product that is never laid out, with its epilogue.

Layout: XLA stores the images row by row, with the columns in the lanes, and the result with its
channels in the lanes and the images in the sublanes. So the kernel turns a pair of image rows into
(column, image) by (row of the pair, channel), 128 lanes, by strided loads and stores of words and
transposes of 128 x 128. Two such pairs are the 256 lanes from which a pair of output rows follows,
a product with 256 columns, for each of the filter's three columns: the matrix unit is full, with a
quarter of zeros among the weights, and nothing has to be shifted.

A grid step turns a block of rows and convolves the block before it, whose last pair of output rows
needs the first pair of the new block. The ring of turned rows has room for two blocks.

VMEM: two buffers each of 8 rows of 16 images, 2 MiB, and of the result, 4 MiB; the ring, 4 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

IMAGES = 16  # images of a grid step, which fill the sublanes
ROWS = 8  # image rows of a grid step
COLUMNS = 14  # columns of one product
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "IMAGES": (2, 4, 8, 16, 32),
    "ROWS": (8, 16),
    "COLUMNS": (2, 7, 14, 42, 126),
}


def constraints(IMAGES, ROWS, COLUMNS):
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


def _kernel(x_ref, weight_ref, conv_bias_ref, bias_ref, out_ref, turned_ref):
    _, _, images, channels = out_ref.shape
    for pair, columns, z in _convolution(x_ref, weight_ref, turned_ref, pl.program_id(0)):
        y = (jnp.maximum(z + conv_bias_ref[...], 0) + bias_ref[...]).astype(out_ref.dtype)
        for row in range(2):
            part = y[:, row * channels : (row + 1) * channels]
            out_ref[2 * pair + row, columns] = part.reshape(-1, images, channels)


def _taps(weight):
    """(column of the filter, row of two pairs, channel) x (row of the output's pair, channel)."""
    taps = jnp.pad(weight.transpose(3, 2, 1, 0), ((0, 0), (0, 1), (0, 0), (0, 0)))
    taps = jnp.stack([taps, jnp.roll(taps, 1, axis=1)], axis=3)
    return taps.reshape(-1, 2 * len(weight))


def workload(x, weight, conv_bias, bias):
    """Convolves x (B, C, H, W) with weight (O, C, 3, 3); relu between two biases (O,)."""
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
        n = jnp.maximum(step - 1, 0)
        return n % blocks, 0, n // blocks, 0

    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    out = pl.pallas_call(
        _kernel,
        grid=(last + 2,),
        in_specs=[pl.BlockSpec((images, channels, rows, width), x_block), whole, whole, whole],
        out_specs=pl.BlockSpec((rows, width - 2, images, len(weight)), out_block),
        out_shape=jax.ShapeDtypeStruct((height - 2, width - 2, len(x), len(weight)), x.dtype),
        scratch_shapes=[pltpu.VMEM((rows, width * images // 2, 2 * channels), jnp.int32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, _taps(weight), *(jnp.tile(b.reshape(1, -1), (1, 2)) for b in (conv_bias, bias)))
    # The result as XLA stores it, no copy.
    return out[:, :, :batch].transpose(2, 3, 0, 1)
