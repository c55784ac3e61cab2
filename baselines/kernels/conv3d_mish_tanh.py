"""A 3 x 3 x 3 convolution as a matrix product that is never laid out, with mish and tanh.

Layout: XLA stores the volumes row by row, with 64 columns in half of the lanes, and the result with
its channels in the lanes and the images in the sublanes. So the kernel turns 2 depths x 2 rows into
(column, image) by (depth, row, channel), 128 lanes, by strided loads and stores of words and
transposes of 128 x 128, two images side by side. Two by two such blocks are the operand from which
two depths by two rows of the result follow, a product with 256 columns, for each of the filter's
three columns: the matrix unit is full, with 7/16 zeros among the weights, and nothing is shifted.

A grid step turns 8 rows of two depths and convolves those one block and two depths earlier. Two
planes of turned rows are kept, so that the volumes are read once.

VMEM: two buffers each of 8 rows of two depths, 4 MiB, and of the result, 4 MiB; two planes, 16 MiB;
the pairs of images, 1 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS = 8  # rows of a grid step
COLUMNS = 31  # columns of one product
STRIP = 1  # columns whose mish is computed at once, in registers
VMEM_LIMIT_BYTES = 80 * 2**20

TUNABLES = {"ROWS": (8, 16), "COLUMNS": (1, 2, 31, 62), "STRIP": (1, 2, 8, 62)}


def constraints(ROWS, COLUMNS, STRIP):
    """What must hold between the tunables at the published size."""
    used = 4 * 2 * 2 * ROWS * 16 * 128 * (32 + 64) + 20 * 2**20 + 16 * COLUMNS * 1024
    return {
        "a strip is a part of a product": STRIP <= COLUMNS or STRIP == 62,
        "blocks fit in VMEM": used <= VMEM_LIMIT_BYTES,
    }


def _low(first, second):
    """The lower halves of two words side by side."""
    return (first & 0xFFFF) | (second << 16)


def _high(first, second):
    """The upper halves of two words side by side."""
    return lax.shift_right_logical(first, 16) | (second & -0x10000)


def _mish(z):
    # tanh(log(1 + e)) is (e^2 + 2 e) / (e^2 + 2 e + 2), which is 1 long before e^2 overflows.
    e = jnp.exp(jnp.minimum(z, 40))
    numerator = e * (e + 2)
    return z * numerator * pl.reciprocal(numerator + 2, approx=True)


def _turn(x_ref, pair_ref, turned_ref, image, row):
    """Turns two rows at two depths of two images into words of the two images."""
    _, channels, _, rows, width = x_ref.shape
    lines = []
    for depth in range(2):
        start = depth * rows // 2 + row
        even = pair_ref[pl.ds(start, channels // 2, stride=2 * rows), :]
        odd = pair_ref[pl.ds(start + rows, channels // 2, stride=2 * rows), :]
        lines += [_low(even, odd), _high(even, odd)]
    lines = pltpu.bitcast(jnp.concatenate(lines, axis=0), x_ref.dtype)
    columns = pltpu.bitcast(lines.T, jnp.int32)
    first, second = columns[: width // 2], columns[width // 2 :]
    images = len(x_ref)
    turned_ref[pl.ds(image // 2, width // 2, stride=images), :] = _low(first, second)
    turned_ref[pl.ds((image + images) // 2, width // 2, stride=images), :] = _high(first, second)


def _kernel(x_ref, weight_ref, bias_ref, out_ref, pairs_ref, turned_ref):
    batch, channels, _, rows, width = x_ref.shape
    _, _, columns, _, out_channels = out_ref.shape
    planes, pairs = turned_ref.shape[:2]
    blocks = 2 * pairs // rows
    step, steps = pl.program_id(0), pl.num_programs(0)
    chunk = max(n for n in range(1, COLUMNS + 1) if columns % n == 0)

    @pl.when(step < steps - 1)
    def _():
        new, first = lax.rem(lax.div(step, blocks), planes), lax.rem(step, blocks) * (rows // 2)
        words = x_ref.bitcast(jnp.int32)
        for image in range(0, batch, 2):
            two = [words.at[image + n].reshape(channels * rows, width)[...] for n in range(2)]
            pairs_ref[image // 2] = jnp.concatenate(two, axis=1)
        for row in range(rows // 2):
            for image in range(0, batch, 2):
                target = turned_ref.at[new, first + row]
                _turn(x_ref, pairs_ref.at[image // 2], target, image, row)

    @pl.when(step > blocks)
    def _():
        block = step - 1 - blocks
        near, first = lax.rem(lax.div(block, blocks), planes), lax.rem(block, blocks) * (rows // 2)
        far = lax.rem(near + 1, planes)
        for row in range(rows // 2):
            # The row after the last one is of no row of the result.
            below = jnp.minimum(first + row + 1, pairs - 1)
            slots = [(near, first + row), (near, below), (far, first + row), (far, below)]
            for start in range(0, columns, chunk):
                lanes = []
                for column in range(start, start + 3):
                    at = pl.ds(column * batch // 2, chunk * batch // 2)
                    for plane, line in slots:
                        lanes.append(pltpu.bitcast(turned_ref[plane, line, at, :], x_ref.dtype))
                z = jnp.dot(
                    jnp.concatenate(lanes, axis=1),
                    weight_ref[...],
                    preferred_element_type=jnp.float32,
                ).reshape(chunk, batch, -1)
                for n in range(0, chunk, STRIP):
                    y = jnp.tanh(_mish(z[n : n + STRIP] + bias_ref[...])).astype(out_ref.dtype)
                    at = slice(start + n, start + n + len(y))
                    for m in range(4):
                        part = y[:, :, m * out_channels : (m + 1) * out_channels]
                        out_ref[m // 2, 2 * row + m % 2, at] = part


def workload(x, weight, bias):
    """Tanh of mish of x (B, C, D, H, W) convolved with weight (O, C, 3, 3, 3), plus bias (O,)."""
    images = len(x)
    x = jnp.pad(x, ((0, images % 2),) + 4 * ((0, 0),))
    batch, channels, depth, height, width = x.shape
    out_channels = len(weight)
    rows = max((n for n in (8, 16) if n <= ROWS and height % n == 0), default=height)
    depths, blocks = depth // 2, height // rows
    # A block of the planes that are read is overwritten, but not one that is still to be read.
    planes = 2 if blocks > 1 else 4
    # (column of the filter, 2 depths, 2 rows, depth, row, channel) x (depth, row, channel)
    taps = [
        jnp.pad(weight, ((0, 0), (0, 0), (d, 1 - d), (h, 1 - h), (0, 0)))
        for d in range(2)
        for h in range(2)
    ]
    taps = jnp.stack(taps).reshape(4, out_channels, channels, 2, 2, 2, 2, 3)
    taps = taps.transpose(7, 3, 5, 4, 6, 2, 0, 1).reshape(12 * 4 * channels, 4 * out_channels)

    def x_block(step):
        n = jnp.minimum(step, depths * blocks - 1)
        return 0, 0, n // blocks, n % blocks, 0

    def out_block(step):
        n = jnp.maximum(step - 1 - blocks, 0)
        return n // blocks, n % blocks, 0, 0, 0

    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    out = pl.pallas_call(
        _kernel,
        grid=(depths * blocks + 1,),
        in_specs=[pl.BlockSpec((batch, channels, 2, rows, width), x_block), whole, whole],
        out_specs=pl.BlockSpec((2, rows, width - 2, batch, out_channels), out_block),
        out_shape=jax.ShapeDtypeStruct(
            (depth - 2, height - 2, width - 2, batch, out_channels), x.dtype
        ),
        scratch_shapes=[
            pltpu.VMEM((batch // 2, channels * rows, 2 * width), jnp.int32),
            pltpu.VMEM((planes, height // 2, width * batch // 2, 4 * channels), jnp.int32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, taps, jnp.tile(bias[None], (1, 4)).astype(jnp.float32))
    # The result as XLA stores it, no copy.
    return out[:, :, :, :images].transpose(3, 4, 0, 1, 2)
