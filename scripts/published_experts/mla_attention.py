"""The flash attention kernel that jax ships, as published: float32 rotary parts, heads of 256."""

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

BLOCKS = BlockSizes(block_b=1, block_q=1024, block_k_major=1024, block_k=512)
WIDTH = 256


def rotate(x):
    """Rotates both halves of (B, S, heads, rope) by their position, in float32."""
    seq, rope = x.shape[1], x.shape[-1]
    frequency = CONFIG["rope_theta"] ** (-jnp.arange(0, rope, 2, dtype=jnp.float32) / rope)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def padded(x):
    """(B, S, H, D) to (B, H, S, WIDTH)."""
    x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, WIDTH - x.shape[-1])))
    return x.swapaxes(1, 2)


def workload(x, q_down_proj, q_up_proj, kv_down_proj, k_up_proj, v_up_proj, o_proj):
    batch, seq, _ = x.shape
    heads, nope, rope, vd = (CONFIG[name] for name in ("H", "nope", "rope", "vd"))
    q = ((x @ q_down_proj) @ q_up_proj).reshape(batch, seq, heads, nope + rope)
    compressed = x @ kv_down_proj
    latent, k_rope = compressed[..., : CONFIG["kvl"]], compressed[..., None, CONFIG["kvl"] :]
    k_nope = (latent @ k_up_proj).reshape(batch, seq, heads, nope)
    value = (latent @ v_up_proj).reshape(batch, seq, heads, vd)
    k_rope = jnp.broadcast_to(rotate(k_rope), (batch, seq, heads, rope))
    query = jnp.concatenate([q[..., :nope], rotate(q[..., nope:])], axis=-1)
    key = jnp.concatenate([k_nope, k_rope], axis=-1)
    out = flash_attention(
        padded(query),
        padded(key),
        padded(value),
        causal=True,
        sm_scale=CONFIG["scale"],
        block_sizes=BLOCKS,
    )
    return out[..., :vd].swapaxes(1, 2).reshape(batch, seq, -1).astype(x.dtype) @ o_proj
