"""The flash attention kernel that jax ships, on heads padded to 256, and its matmul.

The output projection is in Pallas because more than half of the products would be outside else.
"""

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention
from jax.experimental.pallas.ops.tpu.matmul import matmul

BLOCK_Q = 1024
BLOCK_K_MAJOR = 1024
BLOCK_K = 1024

WIDTH = 256  # of a head

TUNABLES = {
    "BLOCK_Q": (256, 512, 1024),
    "BLOCK_K_MAJOR": (256, 512, 1024),
    "BLOCK_K": (256, 512, 1024),
}


def constraints(BLOCK_Q, BLOCK_K_MAJOR, BLOCK_K):
    """What must hold between the tunables at the published size."""
    return {"a block of keys divides the one that is fetched": BLOCK_K_MAJOR % BLOCK_K == 0}


def _rotate(x):
    """Rotates neighbouring columns of (B, S, heads, rope) by their position."""
    seq, rope = x.shape[1], x.shape[-1]
    frequency = CONFIG["rope_theta"] ** (-jnp.arange(0, rope, 2, dtype=jnp.float32) / rope)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] * frequency
    cos, sin = (f(angle)[:, None, :].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def _padded(x):
    """(B, S, H, D) to (B, H, S, WIDTH)."""
    x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, WIDTH - x.shape[-1])))
    return x.swapaxes(1, 2)


def workload(x, q_down_proj, q_up_proj, kv_down_proj, k_up_proj, v_up_proj, o_proj):
    """Attends over x (B, S, E) through low-rank projections."""
    blocks = BlockSizes(block_b=1, block_q=BLOCK_Q, block_k_major=BLOCK_K_MAJOR, block_k=BLOCK_K)
    batch, seq, _ = x.shape
    heads, nope, rope, vd = (CONFIG[name] for name in ("H", "nope", "rope", "vd"))
    q = ((x @ q_down_proj) @ q_up_proj).reshape(batch, seq, heads, nope + rope)
    compressed = x @ kv_down_proj
    latent, k_rope = compressed[..., : CONFIG["kvl"]], compressed[..., None, CONFIG["kvl"] :]
    k_nope = (latent @ k_up_proj).reshape(batch, seq, heads, nope)
    value = (latent @ v_up_proj).reshape(batch, seq, heads, vd)
    k_rope = jnp.broadcast_to(_rotate(k_rope), (batch, seq, heads, rope))
    query = jnp.concatenate([q[..., :nope], _rotate(q[..., nope:])], axis=-1)
    key = jnp.concatenate([k_nope, k_rope], axis=-1)
    out = flash_attention(
        _padded(query),
        _padded(key),
        _padded(value),
        causal=True,
        sm_scale=CONFIG["scale"],
        block_sizes=blocks,
    )
    out = out[..., :vd].swapaxes(1, 2).reshape(batch * seq, -1)
    return matmul(out, o_proj, block_shape=(1024, 1024), block_k=1024).reshape(x.shape)
