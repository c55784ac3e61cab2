"""The paged attention kernel that jax ships, on pages in its own layout and without a scale."""

from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention


def published_shapes(shapes):
    """Pages by head first: (heads, pages, slots, size)."""
    pages = {name: shapes[name] for name in ("k_pages", "v_pages")}
    return {**shapes, **{name: (h, p, s, d) for name, (p, s, h, d) in pages.items()}}


def workload(queries, k_pages, v_pages, kv_lens, page_indices, cu_q_lens):
    return paged_attention(
        queries, k_pages, v_pages, kv_lens, page_indices, pages_per_compute_block=64
    )
