"""The grouped matmul kernel that jax ships, with tiles of 256 x 1024 x 512."""

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox import gmm


def workload(lhs, rhs, group_sizes, max_expert_size):
    out = gmm(lhs, rhs, group_sizes, lhs.dtype, (256, 1024, 512))
    # The kernel leaves the rows after the last group as they are.
    used = jnp.arange(lhs.shape[0]) < jnp.sum(group_sizes)
    return jnp.where(used[:, None], out, jnp.zeros_like(out))
