"""The ragged paged attention kernel that jax ships, 32 queries and 64 pages at a time."""

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention


def workload(queries, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs):
    out = ragged_paged_attention(
        queries,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale=CONFIG["scale"],
        num_kv_pages_per_block=64,
        num_queries_per_block=64,
        vmem_limit_bytes=64 << 20,
    )
    # The kernel leaves the rows after the last sequence as they are.
    used = jnp.arange(queries.shape[0]) < cu_q_lens[num_seqs[0]]
    return jnp.where(used[:, None, None], out, jnp.zeros_like(out))
