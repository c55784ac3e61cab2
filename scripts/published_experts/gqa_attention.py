"""The splash attention kernel that jax ships, with blocks of 1024 rows and keys."""

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    CausalMask,
    MultiHeadMask,
    make_splash_mha_single_device,
)

BLOCKS = BlockSizes(block_q=1024, block_kv=1024, block_kv_compute=1024)


def workload(query, key, value):
    _, seq, heads, _ = query.shape
    mask = MultiHeadMask([CausalMask((seq, seq)) for _ in range(heads)])
    attend = make_splash_mha_single_device(mask, block_sizes=BLOCKS)
    q = (query * CONFIG["scale"]).astype(query.dtype).swapaxes(1, 2)
    out = jax.vmap(attend)(q, key.swapaxes(1, 2), value.swapaxes(1, 2))
    return out.swapaxes(1, 2)
