"""Matrix product with a norm over whole rows, a residual and a product with it.

A panel of rows stays while the weights of all columns stream past it. Every part of the columns is
kept in VMEM as bfloat16, with its mean and its squared deviations from it in each row. Once the
row is complete they give its mean and variance. The norm and what follows it are applied a panel
later: step j of a panel stores the columns j of the panel before it and puts its own in their
place. So that runs under the products, and one more panel only stores.

Numerics: a row whose spread is below 2^-8 of its mean comes out as the rounding of bfloat16.

VMEM at K = N = 8192: two buffers each of the panel of x (16 MiB), weights (8 MiB), y and result
(1 MiB), 52 MiB; the panel of products, 16 MiB, and float32 products.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 1024
BLOCK_N = 512
PART = 512  # columns that are finished while the next are multiplied
VMEM_LIMIT_BYTES = 110 * 2**20

TUNABLES = {
    "BLOCK_M": (256, 512, 1024),
    "BLOCK_N": (256, 512, 1024),
    "PART": (128, 256, 512),
}


def constraints(BLOCK_M, BLOCK_N, PART):
    """What must hold between the tunables at the published size."""
    k, n, buffers, item = 8192, 8192, 2, 2
    used = buffers * item * (BLOCK_M * k + k * BLOCK_N + 2 * BLOCK_M * BLOCK_N)
    used += item * BLOCK_M * n
    return {
        "a block is cut into whole parts": BLOCK_N % PART == 0,
        # Products and what is made of them wait in float32.
        "panels and blocks fit in VMEM": used + 16 * BLOCK_M * BLOCK_N <= VMEM_LIMIT_BYTES,
    }


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _panel(x_hbm, x_ref, arrived):
    """Awaits panel i of x (shares, rows, K) and starts to bring the next, a share in each step.

    A block of the grid would come whole in the step before it, and that is too short.
    """
    i, j = pl.program_id(0), pl.program_id(1)
    panels, shares = x_hbm.shape[:2]

    def copy(panel, n):
        slot = lax.rem(panel, 2)
        return pltpu.make_async_copy(x_hbm.at[panel, n], x_ref.at[slot, n], arrived.at[slot])

    @pl.when((i == 0) & (j == 0))
    def _():
        pl.loop(0, shares)(lambda n: copy(0, n).start())

    @pl.when((i < panels) & (j == 0))
    def _():
        pl.loop(0, shares)(lambda n: copy(i, n).wait())

    @pl.when((i + 1 < panels) & (j < shares))
    def _():
        copy(i + 1, j).start()

    return lambda: x_ref[lax.rem(i, 2)].reshape(-1, x_ref.shape[3])


def _kernel(
    x_hbm,
    y_ref,
    weight_ref,
    bias_ref,
    in_ref,
    out_ref,
    x_ref,
    arrived,
    panel_ref,
    means_ref,
    squares_ref,
    mean_ref,
    scale_ref,
    *,
    part,
):
    i, j = pl.program_id(0), pl.program_id(1)
    x_panel = _panel(x_hbm, x_ref, arrived)
    columns = weight_ref.shape[0]
    parts = pl.num_programs(1) * columns // part
    # What belongs to a part of the columns is in the lane of the part: there are at most 128.
    lane = lax.broadcasted_iota(jnp.int32, means_ref.shape, 1)

    @pl.when(j == 0)
    def _():
        mean = jnp.sum(means_ref[...], axis=1, keepdims=True) / parts
        apart = jnp.where(lane < parts, means_ref[...] - mean, 0.0)
        squares = squares_ref[...] + part * apart * apart
        variance = jnp.sum(squares, axis=1, keepdims=True) / (parts * part)
        mean_ref[...] = jnp.broadcast_to(mean, mean_ref.shape)
        scale_ref[...] = jnp.broadcast_to(lax.rsqrt(variance + CONFIG["eps"]), scale_ref.shape)
        means_ref[...] = jnp.zeros_like(means_ref)
        squares_ref[...] = jnp.zeros_like(squares_ref)

    def start(column):
        at = slice(column, column + part)
        product = lax.dot_general(
            x_panel(),
            weight_ref[at],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        return at, product

    def moments(at, z):
        """Keeps a part, its mean and its squared deviations from it."""
        z = z + bias_ref[:, at]
        panel_ref[j, :, at] = z.astype(panel_ref.dtype)
        mean = jnp.sum(z, axis=1, keepdims=True) * (1 / part)
        z = z - mean
        own = lane == (j * columns + at.start) // part
        means_ref[...] = jnp.where(own, mean, means_ref[...])
        squares = jnp.sum(z * z, axis=1, keepdims=True)
        squares_ref[...] = jnp.where(own, squares, squares_ref[...])

    def store(column):
        """Stores a part of the panel before this one."""
        for lanes in range(column, column + part, 128):
            at = slice(lanes, lanes + 128)
            z = (panel_ref[j, :, at].astype(jnp.float32) - mean_ref[...]) * scale_ref[...]
            y = y_ref[:, at].astype(jnp.float32)
            out_ref[:, at] = ((z * in_ref[:1, at] + in_ref[1:, at] + y) * y).astype(out_ref.dtype)

    @pl.when(i < x_hbm.shape[0])
    def _():
        # A software pipeline by the order of the source.
        started = []
        for column in range(0, columns, part):
            started.append(start(column))
            store(column)
            if len(started) > 1:
                moments(*started.pop(0))
        moments(*started.pop(0))

    @pl.when(i == x_hbm.shape[0])
    def _():
        for column in range(0, columns, part):
            store(column)


def workload(x, y, bmm_weight, bmm_bias, in_weight, in_bias):
    """Normalises x (M, K) times bmm_weight (N, K) transposed; y and the result are (M, N)."""
    (m, k), n = x.shape, bmm_weight.shape[0]
    # At least three panels and four blocks: the small sizes take every turn of the large one.
    block_m, block_n = _block(m, min(BLOCK_M, m // 3)), _block(n, min(BLOCK_N, n // 4))
    panels, blocks = m // block_m, n // block_n
    shares = math.gcd(blocks, block_m // 16)  # of whole tiles

    def column(i, j):
        return jnp.where(i < panels, j, blocks - 1)

    before = pl.BlockSpec(
        (block_m, block_n), lambda i, j: (jnp.maximum(i - 1, 0), jnp.where(i > 0, j, 0))
    )
    rows = pltpu.VMEM((block_m, 128), jnp.float32)
    return pl.pallas_call(
        functools.partial(_kernel, part=_block(block_n, PART)),
        grid=(panels + 1, blocks),
        in_specs=[
            pl.BlockSpec(memory_space=pl.ANY),
            before,
            pl.BlockSpec((block_n, k), lambda i, j: (column(i, j), 0)),
            pl.BlockSpec((1, block_n), lambda i, j: (0, column(i, j))),
            pl.BlockSpec((2, block_n), lambda i, j: (0, j)),
        ],
        out_specs=before,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((2, shares, block_m // shares, k), x.dtype),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.VMEM((blocks, block_m, block_n), x.dtype),
            rows,
            rows,
            rows,
            rows,
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(
        x.reshape(panels, shares, -1, k),
        y,
        bmm_weight,
        bmm_bias.reshape(1, n),
        jnp.concatenate([in_weight, in_bias]).reshape(2, n).astype(jnp.float32),
    )
