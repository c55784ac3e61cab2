"""The splash attention kernel that jax ships, with blocks of 1024 rows and keys."""

from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    CausalMask,
    MultiHeadMask,
    make_splash_mha_single_device,
)

BLOCKS = BlockSizes(block_q=1024, block_kv=1024, block_kv_compute=1024)


def workload(q, k, v):
    heads, seq, _ = q.shape
    mask = MultiHeadMask([CausalMask((seq, seq)) for _ in range(heads)])
    return make_splash_mha_single_device(mask, block_sizes=BLOCKS)(q, k, v)
