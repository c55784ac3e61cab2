"""Matrix product with the whole contraction in one grid step.

A float32 accumulator that lives across grid steps is read and written once per block of K, and at
that size this traffic costs more than the product itself. So a step multiplies a (BLOCK_M, K) row
panel by a (K, BLOCK_N) column panel at once, and the result is rounded and stored once.

VMEM at K = 8192: two buffers each of A (16 MiB), B (16 MiB) and the result (2 MiB), 68 MiB. The row
panel stays while the column panels stream past it, so A is read once and B once per row panel.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 1024
BLOCK_N = 1024
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "BLOCK_M": (256, 512, 1024, 2048),
    "BLOCK_N": (256, 512, 1024, 2048),
}


def constraints(BLOCK_M, BLOCK_N):
    """What must hold between the tunables at the published size."""
    k, buffers, item = 8192, 2, 2
    used = buffers * item * (BLOCK_M * k + k * BLOCK_N + BLOCK_M * BLOCK_N)
    # The product is rounded from float32, which the compiler keeps a part of.
    return {"blocks fit in VMEM": used + 4 * BLOCK_M * BLOCK_N <= VMEM_LIMIT_BYTES}


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _kernel(a_ref, b_ref, out_ref):
    product = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)
    out_ref[...] = product.astype(out_ref.dtype)


def workload(A, B):
    """A (M, K) times B (K, N)."""
    (m, k), (_, n) = A.shape, B.shape
    block_m, block_n = _block(m, BLOCK_M), _block(n, BLOCK_N)
    return pl.pallas_call(
        _kernel,
        grid=(m // block_m, n // block_n),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, block_n), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), A.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(A, B)
