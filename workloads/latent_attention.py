"""Attention whose queries, keys and values are expanded from a latent of low rank."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def mla_attention(CONFIG, x, q_down_proj, q_up_proj, kv_down_proj, k_up_proj, v_up_proj, o_proj):
    """Multi-head latent attention: low-rank projections, rotary part, causal softmax, output.

    A head's query and key have a content part and a rotary part. The rotary key is the same for
    all heads. Neighbouring columns (2i, 2i + 1) of a rotary part are rotated by
    position * rope_theta ** (-2i / rope).
    """
    batch, seq, _ = x.shape
    latent_dim = k_up_proj.shape[0]
    rope = kv_down_proj.shape[1] - latent_dim
    heads = (q_up_proj.shape[1] - k_up_proj.shape[1]) // rope
    nope = k_up_proj.shape[1] // heads

    frequency = CONFIG["rope_theta"] ** (-jnp.arange(0, rope, 2, dtype=jnp.float32) / rope)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)

    def rotate(pairs):  # (B, S, heads, rope)
        even, odd = pairs[..., 0::2], pairs[..., 1::2]
        c, s = cos[:, None, :], sin[:, None, :]
        return jnp.stack([even * c - odd * s, even * s + odd * c], axis=-1).reshape(pairs.shape)

    q = (x @ q_down_proj @ q_up_proj).reshape(batch, seq, heads, nope + rope)
    compressed = x @ kv_down_proj
    latent, k_rope = compressed[..., :latent_dim], compressed[..., None, latent_dim:]
    k_nope = (latent @ k_up_proj).reshape(batch, seq, heads, nope)
    value = (latent @ v_up_proj).reshape(batch, seq, heads, -1)

    k_rope = jnp.broadcast_to(rotate(k_rope), (batch, seq, heads, rope))
    query = jnp.concatenate([q[..., :nope], rotate(q[..., nope:])], axis=-1)
    key = jnp.concatenate([k_nope, k_rope], axis=-1)

    query, key, value = (a.transpose(0, 2, 1, 3) for a in (query, key, value))
    scores = jnp.einsum("bhid,bhjd->bhij", query, key) * CONFIG["scale"]
    causal = jnp.tril(jnp.ones((seq, seq), dtype=bool))
    scores = jnp.where(causal, scores, CONFIG["mask_fill"])
    out = jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores, axis=-1), value)
    return out.transpose(0, 2, 1, 3).reshape(batch, seq, -1) @ o_proj


def _generate_mla(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Projections that keep the variance, and logits to which both parts contribute alike.

    The published factor 0.02 for all weights makes logits of a spread that depends on the sizes
    (about 1.5 at the published ones, mostly by the rotary part, and 0.03 at `varied`). Here every
    projection keeps its input's variance, except that of the queries, which sets the spread, and
    all positions share a part of x, so that late rows are not small beside early ones.

    `shifted` adds a mean to x and so the same vector
    to all rotary keys: logits that depend on the distance of two positions alone. `structured`
    gives each stretch of 64 positions an input in common, so that late rows select whole
    stretches, and every head its own share of the output.
    """
    shapes = {name: spec.shape for name, spec in preset.args.items()}
    sizes = preset.config
    arrays = {
        name: rng.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
        for name, shape in shapes.items()
        if name != "x"
    }
    x = rng.standard_normal(shapes["x"], np.float32)
    arrays["q_up_proj"] *= np.float32(1.4)
    if draw == "shifted":
        x = np.float32(0.7) * x + np.float32(0.25)
        arrays["v_up_proj"] *= np.float32(2)
    elif draw == "structured":
        batch, seq, dim = shapes["x"]
        common = rng.standard_normal((batch, -(-seq // 64), dim), np.float32)
        x = np.float32(0.6) * x + np.float32(0.8) * common.repeat(64, axis=1)[:, :seq]
        share = np.linspace(0.5, 1.5, sizes["H"], dtype=np.float32).repeat(sizes["vd"])
        arrays["o_proj"] *= share[:, None]
    else:
        x += np.float32(0.5) * rng.standard_normal(shapes["x"][-1], np.float32)
    arrays["o_proj"] *= np.float32(2)
    return {"x": x, **arrays}


def _mla_shapes(s):
    shapes = {
        "x": (s["B"], s["S"], s["E"]),
        "q_down_proj": (s["E"], s["ql"]),
        "q_up_proj": (s["ql"], s["H"] * (s["nope"] + s["rope"])),
        "kv_down_proj": (s["E"], s["kvl"] + s["rope"]),
        "k_up_proj": (s["kvl"], s["H"] * s["nope"]),
        "v_up_proj": (s["kvl"], s["H"] * s["vd"]),
        "o_proj": (s["H"] * s["vd"], s["E"]),
    }
    return {name: ArraySpec(shape, "bfloat16") for name, shape in shapes.items()}


def _projection_flops(s):
    columns_of_x = s["ql"] + s["kvl"] + s["rope"]
    per_head = s["ql"] * (s["nope"] + s["rope"]) + s["kvl"] * (s["nope"] + s["vd"])
    per_row = s["E"] * columns_of_x + s["H"] * (per_head + s["vd"] * s["E"])
    return 2 * s["B"] * s["S"] * per_row


register(
    Workload(
        id="mla_attention",
        number="3p",
        upstream_name="MLA_Attention",
        family="attention",
        model="DeepSeek-V3-671B",
        summary=(
            "Multi-head latent attention: queries, keys and values are expanded from projections "
            "of low rank, each head's query and key have a content part and a rotary part (whose "
            "key all heads share), causal attention, output projection."
        ),
        reference=mla_attention,
        shapes=_mla_shapes,
        sizes={
            "v6e": {
                "B": 4,
                "S": 2048,
                "E": 7168,
                "H": 128,
                "ql": 1536,
                "kvl": 512,
                "nope": 128,
                "rope": 64,
                "vd": 128,
            },
            "tiles": {
                "B": 1,
                "S": 1024,
                "E": 1024,
                "H": 8,
                "ql": 1024,
                "kvl": 512,
                "nope": 128,
                "rope": 64,
                "vd": 128,
            },
            "varied": {
                "B": 2,
                "S": 192,
                "E": 384,
                "H": 3,
                "ql": 192,
                "kvl": 96,
                "nope": 128,
                "rope": 64,
                "vd": 128,
            },
        },
        constants={"scale": 192**-0.5, "mask_fill": -1e9, "rope_theta": 10000},
        published_names={
            "batch": "B",
            "seq_len": "S",
            "emb_dim": "E",
            "num_heads": "H",
            "q_lora_rank": "ql",
            "kv_lora_rank": "kvl",
            "qk_nope_head_dim": "nope",
            "qk_rope_head_dim": "rope",
            "v_head_dim": "vd",
        },
        generate=_generate_mla,
        flops=lambda s: (
            _projection_flops(s)
            + 2 * s["B"] * s["H"] * s["S"] ** 2 * (s["nope"] + s["rope"] + s["vd"])
        ),
        # The causal half of the scores.
        flops_useful=lambda s: (
            _projection_flops(s)
            + s["B"] * s["H"] * s["S"] * (s["S"] + 1) * (s["nope"] + s["rope"] + s["vd"])
        ),
        tolerance=Tolerance(rel=6.2e-2),
    )
)
