"""Matrix product with a group norm, the minimum of each row, and an outer sum.

The product is formed with its features in the sublanes, as the result has them: a group of 16
features is two vector registers high, and neither its sums nor the minimum need reductions across
lanes. The minima of a panel of rows are complete when its last features are. So its part of the
outer sum is stored a panel later, under the products, and one more panel only stores.

VMEM at K = 8192: two buffers each of the panel of x (16 MiB), weights (8 MiB) and result (1 MiB),
50 MiB, and float32 products.
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
PART = 512  # rows of x that are finished while the next are multiplied
VMEM_LIMIT_BYTES = 110 * 2**20

TUNABLES = {
    "BLOCK_M": (256, 512, 1024),
    "BLOCK_N": (256, 512, 1024),
    "PART": (128, 256, 512),
}


def constraints(BLOCK_M, BLOCK_N, PART):
    """What must hold between the tunables at the published size."""
    k, buffers, item = 8192, 2, 2
    used = buffers * item * (BLOCK_M * k + k * BLOCK_N + BLOCK_M * BLOCK_N)
    return {
        "a block is cut into whole parts": BLOCK_M % PART == 0,
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

    def load(row, rows):
        at = slice(row // x_ref.shape[2], (row + rows) // x_ref.shape[2])
        return x_ref[lax.rem(i, 2), at].reshape(rows, -1)

    return load


def _kernel(
    x_hbm,
    weight_ref,
    vector_ref,
    bias_ref,
    out_ref,
    x_ref,
    arrived,
    min_ref,
    row_ref,
    *,
    part,
):
    i, j = pl.program_id(0), pl.program_id(1)
    x_panel = _panel(x_hbm, x_ref, arrived)
    linear_bias, gn_weight, gn_bias = (vector_ref[:, n : n + 1] for n in range(3))

    @pl.when(j == 0)
    def _():
        row_ref[...] = min_ref[...]
        min_ref[...] = jnp.full_like(min_ref, jnp.inf)

    def norm(z):
        """Normalises the groups of features of z (features, rows)."""
        groups = z.reshape(-1, CONFIG["group_size"], z.shape[1])
        groups -= jnp.mean(groups, axis=1, keepdims=True)
        variance = jnp.mean(groups * groups, axis=1, keepdims=True)
        return (groups * lax.rsqrt(variance + CONFIG["eps"])).reshape(z.shape)

    def start(row):
        at = slice(row, row + part)
        product = lax.dot_general(
            weight_ref[...],
            x_panel(row, part),
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        return at, product

    def finish(at, z):
        y = norm(z + linear_bias) * gn_weight + gn_bias
        min_ref[:, at] = jnp.minimum(min_ref[:, at], jnp.min(y, axis=0, keepdims=True))

    def store(at):
        """Stores some columns of the outer sum of the panel before this one."""
        out_ref[:, at] = (bias_ref[...] + row_ref[:, at]).astype(out_ref.dtype)

    @pl.when(i < x_hbm.shape[0])
    def _():
        # A software pipeline by the order of the source, which the scheduler mostly keeps.
        started = []
        for row in range(0, out_ref.shape[1], part):
            started.append(start(row))
            store(slice(row, row + part))
            if len(started) > 1:
                finish(*started.pop(0))
        finish(*started.pop(0))

    @pl.when(i == x_hbm.shape[0])
    def _():
        store(slice(None))


def workload(x, weight, linear_bias, gn_weight, gn_bias, bias):
    """Normalises x (M, K) times weight (N, K) transposed; bias and result are (1, N, 1 or M, 1)."""
    (m, k), n = x.shape, weight.shape[0]
    # At least three panels and four blocks: the small sizes take every turn of the large one.
    block_m, block_n = _block(m, min(BLOCK_M, m // 3)), _block(n, min(BLOCK_N, n // 4))
    panels, blocks = m // block_m, n // block_n
    shares = math.gcd(blocks, block_m // 16)  # of whole tiles
    vectors = jnp.stack([linear_bias, gn_weight, gn_bias], axis=1).astype(jnp.float32)

    def features(i, j):
        return jnp.where(i < panels, j, blocks - 1), 0

    out = pl.pallas_call(
        functools.partial(_kernel, part=_block(block_m, PART)),
        grid=(panels + 1, blocks),
        in_specs=[
            pl.BlockSpec(memory_space=pl.ANY),
            pl.BlockSpec((block_n, k), features),
            pl.BlockSpec((block_n, 3), features),
            pl.BlockSpec((block_n, 1), lambda i, j: (j, 0)),
        ],
        out_specs=pl.BlockSpec(
            (block_n, block_m), lambda i, j: (jnp.where(i > 0, j, 0), jnp.maximum(i - 1, 0))
        ),
        out_shape=jax.ShapeDtypeStruct((n, m), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((2, shares, block_m // shares, k), x.dtype),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.VMEM((1, block_m), jnp.float32),
            pltpu.VMEM((1, block_m), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x.reshape(panels, shares, -1, k), weight, vectors, bias.reshape(n, 1).astype(jnp.float32))
    return out.reshape(1, n, m, 1)
