"""The grouped matmul kernel that jax ships."""

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox import gmm

TILE_M = 512
TILE_K = 1024
TILE_N = 512

TUNABLES = {
    "TILE_M": (128, 256, 512),
    "TILE_K": (256, 512, 1024),
    "TILE_N": (256, 512, 1024),
}


def constraints(TILE_M, TILE_K, TILE_N):
    """What must hold between the tunables at the published size."""
    buffers, item, limit = 2, 2, 32 * 2**20
    used = buffers * item * (TILE_M * TILE_K + TILE_K * TILE_N + TILE_M * TILE_N)
    return {"tiles and accumulator fit in VMEM": used + 4 * TILE_M * TILE_N <= limit}


def workload(lhs, rhs, group_sizes, max_expert_size):
    """Multiplies the rows of lhs (M, K), group by group, with rhs (G, K, N)."""
    out = gmm(lhs, rhs, group_sizes, lhs.dtype, (TILE_M, TILE_K, TILE_N))
    # The kernel leaves the rows after the last group as they are.
    used = jnp.arange(lhs.shape[0]) < jnp.sum(group_sizes)
    return jnp.where(used[:, None], out, jnp.zeros_like(out))
