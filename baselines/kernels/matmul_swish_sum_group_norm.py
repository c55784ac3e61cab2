"""Matrix product with swish, bias and a group norm, all before the only store.

The swish of a part of the columns is turned, so that its features lie in the sublanes: a group of
64 features is eight vector registers high there, and its sums need no reduction across lanes. What
is normalised is turned back in bfloat16.

VMEM at K = 4096: two buffers each of the panel of x (8 MiB), weights (8 MiB) and result (2 MiB),
36 MiB, and float32 products.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 1024
BLOCK_N = 1024
PART = 512  # columns that are finished while the next are multiplied
VMEM_LIMIT_BYTES = 110 * 2**20

TUNABLES = {
    "BLOCK_M": (256, 512, 1024),
    "BLOCK_N": (256, 512, 1024),
    "PART": (128, 256, 512),
}


def constraints(BLOCK_M, BLOCK_N, PART):
    """What must hold between the tunables at the published size."""
    k, buffers, item = 4096, 2, 2
    used = buffers * item * (BLOCK_M * k + k * BLOCK_N + BLOCK_M * BLOCK_N)
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


def _kernel(x_hbm, weight_ref, vector_ref, out_ref, x_ref, arrived, *, part):
    x_panel = _panel(x_hbm, x_ref, arrived)

    def norm(z):
        """Normalises the groups of features of z (features, rows)."""
        groups = z.reshape(-1, CONFIG["group_size"], z.shape[1])
        groups -= jnp.mean(groups, axis=1, keepdims=True)
        variance = jnp.mean(groups * groups, axis=1, keepdims=True)
        return (groups * lax.rsqrt(variance + CONFIG["eps"])).reshape(z.shape)

    def start(column):
        at = slice(column, column + part)
        return at, jnp.dot(x_panel(), weight_ref[:, at], preferred_element_type=jnp.float32)

    def finish(at, z):
        half = 0.5 * z  # x * sigmoid(x) = x / 2 * (1 + tanh(x / 2))
        z = half + half * jnp.tanh(half) + vector_ref[:1, at]
        normed = norm(z.T).astype(out_ref.dtype).T.astype(jnp.float32)
        normed = normed * vector_ref[1:2, at] + vector_ref[2:, at]
        out_ref[:, at] = normed.astype(out_ref.dtype)

    # A software pipeline by the order of the source, which the compiler's scheduler mostly keeps.
    started = []
    for column in range(0, out_ref.shape[1], part):
        started.append(start(column))
        if len(started) > 1:
            finish(*started.pop(0))
    finish(*started.pop(0))


def workload(x, weight, bias, gn_weight, gn_bias):
    """Normalises swish of x (M, K) times weight (K, N), plus bias, in groups of the features."""
    (m, k), n = x.shape, weight.shape[1]
    # At least three panels and four blocks: the small sizes take every turn of the large one.
    block_m, block_n = _block(m, min(BLOCK_M, m // 3)), _block(n, min(BLOCK_N, n // 4))
    panels, blocks = m // block_m, n // block_n
    shares = math.gcd(blocks, block_m // 16)  # of whole tiles
    vectors = jnp.concatenate([bias, gn_weight, gn_bias]).reshape(3, n).astype(jnp.float32)
    return pl.pallas_call(
        functools.partial(_kernel, part=_block(block_n, PART)),
        grid=(panels, blocks),
        in_specs=[
            pl.BlockSpec(memory_space=pl.ANY),
            pl.BlockSpec((k, block_n), lambda i, j: (0, j)),
            pl.BlockSpec((3, block_n), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((2, shares, block_m // shares, k), x.dtype),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x.reshape(panels, shares, -1, k), weight, vectors)
