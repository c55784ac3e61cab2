"""The flash attention kernel that jax ships, with blocks of 2048 rows and keys."""

from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

BLOCKS = BlockSizes(block_b=1, block_q=2048, block_k_major=2048, block_k=1024)


def workload(query, key, value):
    return flash_attention(
        query, key, value, causal=True, sm_scale=CONFIG["scale"], block_sizes=BLOCKS
    )
