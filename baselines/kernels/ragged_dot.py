"""One matrix product per group, each with the whole contraction in one grid step.

The groups are of one size, so this is the product of `gemm` with an axis of groups before it: a
group's rows stay in VMEM while the column panels of its matrix stream past them, and everything is
read once. A float32 accumulator across grid steps would cost more than the product.

The next group's rows are loaded during the last panel of this group, with the next panel. Wide
panels give the loads the time they need.

VMEM at K = 4096: two buffers each of the rows (8 MiB), the panel (16 MiB) and the result (4 MiB),
56 MiB, and what the compiler keeps of the product in float32.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 1024
BLOCK_N = 2048
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "BLOCK_M": (256, 512, 1024),
    "BLOCK_N": (256, 512, 1024, 2048),
}


def constraints(BLOCK_M, BLOCK_N):
    """What must hold between the tunables at the published size."""
    k, buffers, item = 4096, 2, 2
    used = buffers * item * (BLOCK_M * k + k * BLOCK_N + BLOCK_M * BLOCK_N)
    # The product is rounded from float32, which the compiler keeps a part of.
    return {"blocks fit in VMEM": used + 4 * BLOCK_M * BLOCK_N <= VMEM_LIMIT_BYTES}


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _kernel(x_ref, weights_ref, out_ref):
    product = jnp.dot(x_ref[...], weights_ref[...], preferred_element_type=jnp.float32)
    out_ref[...] = product.astype(out_ref.dtype)


def workload(x, weights):
    """Multiplies each group x[g] (m, K) by weights[g] (K, N)."""
    (groups, m, k), n = x.shape, weights.shape[2]
    block_m, block_n = _block(m, BLOCK_M), _block(n, BLOCK_N)
    return pl.pallas_call(
        _kernel,
        grid=(groups, m // block_m, n // block_n),
        in_specs=[
            pl.BlockSpec((None, block_m, k), lambda g, i, j: (g, i, 0)),
            pl.BlockSpec((None, k, block_n), lambda g, i, j: (g, 0, j)),
        ],
        out_specs=pl.BlockSpec((None, block_m, block_n), lambda g, i, j: (g, i, j)),
        out_shape=jax.ShapeDtypeStruct((groups, m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * 3, vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, weights)
