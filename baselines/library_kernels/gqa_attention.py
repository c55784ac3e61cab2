"""The splash attention kernel that jax ships."""

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    CausalMask,
    MultiHeadMask,
    make_splash_mha_single_device,
)

BLOCK_Q = 1024
BLOCK_KV = 1024
BLOCK_KV_COMPUTE = 512

TUNABLES = {
    "BLOCK_Q": (256, 512, 1024),
    "BLOCK_KV": (256, 512, 1024),
    "BLOCK_KV_COMPUTE": (256, 512, 1024),
}


def constraints(BLOCK_Q, BLOCK_KV, BLOCK_KV_COMPUTE):
    """What must hold between the tunables at the published size."""
    return {"a block of keys divides the one that is fetched": BLOCK_KV % BLOCK_KV_COMPUTE == 0}


def workload(query, key, value):
    """Attends over query (B, S, H, D) and key, value (B, S, G, D)."""
    blocks = BlockSizes(block_q=BLOCK_Q, block_kv=BLOCK_KV, block_kv_compute=BLOCK_KV_COMPUTE)
    _, seq, heads, _ = query.shape
    mask = MultiHeadMask([CausalMask((seq, seq)) for _ in range(heads)])
    attend = make_splash_mha_single_device(mask, block_sizes=blocks)
    q = (query * CONFIG["scale"]).astype(query.dtype).swapaxes(1, 2)
    out = jax.vmap(attend)(q, key.swapaxes(1, 2), value.swapaxes(1, 2))
    return out.swapaxes(1, 2)
