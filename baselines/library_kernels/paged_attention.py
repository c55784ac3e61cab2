"""The paged attention kernel that jax ships."""

from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

PAGES = 64  # fetched at a time

TUNABLES = {"PAGES": (8, 16, 32, 64)}


def constraints(PAGES):
    """What must hold between the tunables at the published size."""
    return {"a sequence has whole blocks": 256 % PAGES == 0}


def workload(queries, k_pages, v_pages, kv_lens, page_indices, cu_q_lens):
    """Attends with one query per sequence over keys and values in pages."""
    q = queries[cu_q_lens[:-1]]
    return paged_attention(
        (q * CONFIG["scale"]).astype(q.dtype),
        k_pages.transpose(2, 0, 1, 3),
        v_pages.transpose(2, 0, 1, 3),
        kv_lens,
        page_indices,
        pages_per_compute_block=PAGES,
    )
