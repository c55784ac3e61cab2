"""The flash attention that jax ships, causal, with its block sizes as parameters."""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

from variants.case import Case, size

BATCH, HEADS, SEQUENCE, DEPTH = 1, 16, 4096, 128


def make(q: int, k_major: int, k: int, causal: bool = True) -> Case:
    """Blocks of q queries; k_major keys are moved and k of them multiplied at a time."""
    x = jax.ShapeDtypeStruct((BATCH, HEADS, SEQUENCE, DEPTH), jnp.bfloat16)
    blocks = BlockSizes(block_b=1, block_q=q, block_k_major=k_major, block_k=k)

    def call(query, key, value):
        return flash_attention(
            query, key, value, causal=causal, sm_scale=DEPTH**-0.5, block_sizes=blocks
        )

    pairs = SEQUENCE * (SEQUENCE + 1) // 2 if causal else SEQUENCE**2
    return Case(call, (x, x, x), 4 * BATCH * HEADS * pairs * DEPTH, size(*[x] * 4))
