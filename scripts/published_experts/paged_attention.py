"""The paged attention kernel that jax ships, 64 pages at a time."""

from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention


def workload(queries, k_pages, v_pages, kv_lens, page_indices, cu_q_lens):
    q = queries[cu_q_lens[:-1]]
    return paged_attention(
        (q * CONFIG["scale"]).astype(q.dtype),
        k_pages.transpose(2, 0, 1, 3),
        v_pages.transpose(2, 0, 1, 3),
        kv_lens,
        page_indices,
        pages_per_compute_block=64,
    )
