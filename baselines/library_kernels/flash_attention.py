"""The flash attention kernel that jax ships."""

from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

BLOCK_Q = 2048
BLOCK_K_MAJOR = 2048
BLOCK_K = 1024

TUNABLES = {
    "BLOCK_Q": (512, 1024, 2048),
    "BLOCK_K_MAJOR": (512, 1024, 2048),
    "BLOCK_K": (256, 512, 1024, 2048),
}


def constraints(BLOCK_Q, BLOCK_K_MAJOR, BLOCK_K):
    """What must hold between the tunables at the published size."""
    return {"a block of keys divides the one that is fetched": BLOCK_K_MAJOR % BLOCK_K == 0}


def workload(query, key, value):
    """Attends over query, key, value (B, H, S, D)."""
    blocks = BlockSizes(block_b=1, block_q=BLOCK_Q, block_k_major=BLOCK_K_MAJOR, block_k=BLOCK_K)
    return flash_attention(
        query, key, value, causal=True, sm_scale=CONFIG["scale"], block_sizes=blocks
    )
