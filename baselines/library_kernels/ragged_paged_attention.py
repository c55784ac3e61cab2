"""The ragged paged attention kernel that jax ships."""

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

PAGES = 64  # fetched at a time
QUERIES = 64  # of a block
VMEM_LIMIT_BYTES = 64 << 20

TUNABLES = {"PAGES": (16, 32, 64), "QUERIES": (16, 32, 64, 128)}


def constraints(PAGES, QUERIES):
    """What must hold between the tunables at the published size."""
    buffers, page_bytes, heads, width = 2, 16 * 16 * 128 * 2, 64, 128
    used = buffers * (PAGES * page_bytes + 2 * QUERIES * heads * width * 2)
    return {"blocks fit in VMEM": used <= VMEM_LIMIT_BYTES // 2}


def workload(queries, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs):
    """Attends with ragged queries over keys and values in pages."""
    out = ragged_paged_attention(
        queries,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale=CONFIG["scale"],
        num_kv_pages_per_block=PAGES,
        num_queries_per_block=QUERIES,
        vmem_limit_bytes=VMEM_LIMIT_BYTES,
    )
    # The kernel leaves the rows after the last sequence as they are.
    used = jnp.arange(queries.shape[0]) < cu_q_lens[num_seqs[0]]
    return jnp.where(used[:, None, None], out, jnp.zeros_like(out))
