"""Attention over dense keys and values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def flash_attention(CONFIG, query, key, value):
    """softmax(query key^T * scale, causal) value, with the whole matrix of scores in memory."""
    seq = query.shape[2]
    scores = jnp.einsum("bhid,bhjd->bhij", query, key) * CONFIG["scale"]
    causal = jnp.tril(jnp.ones((seq, seq), dtype=bool))
    scores = jnp.where(causal, scores, CONFIG["mask_fill"])
    return jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores, axis=-1), value)


def gqa_attention(CONFIG, query, key, value):
    """Causal attention in which Hq / Hkv consecutive query heads share a key and value head."""
    seq, group = query.shape[1], query.shape[2] // key.shape[2]
    query = query.transpose(0, 2, 1, 3)
    key = jnp.repeat(key, group, axis=2).transpose(0, 2, 1, 3)
    value = jnp.repeat(value, group, axis=2).transpose(0, 2, 1, 3)
    scores = jnp.einsum("bhid,bhjd->bhij", query, key) * CONFIG["scale"]
    causal = jnp.tril(jnp.ones((seq, seq), dtype=bool))
    scores = jnp.where(causal, scores, CONFIG["mask_fill"])
    out = jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores, axis=-1), value)
    return out.transpose(0, 2, 1, 3)


def sparse_attention(CONFIG, q, k, v):
    """Causal attention with shared key heads, without a batch axis: q carries the scale already."""
    seq, group = q.shape[1], q.shape[0] // k.shape[0]
    k = jnp.repeat(k, group, axis=0)
    v = jnp.repeat(v, group, axis=0)
    scores = jnp.einsum("hid,hjd->hij", q, k) * CONFIG["scale"]
    causal = jnp.tril(jnp.ones((seq, seq), dtype=bool))
    scores = jnp.where(causal, scores, CONFIG["mask_fill"])
    return jnp.einsum("hij,hjd->hid", jax.nn.softmax(scores, axis=-1), v)


def flex_attention(CONFIG, q, k, v, rel_pos_bias):
    """softmax(q k^T * scale + rel_pos_bias[head, i, j], causal) v."""
    seq = q.shape[2]
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * CONFIG["scale"] + rel_pos_bias[None]
    causal = jnp.tril(jnp.ones((seq, seq), dtype=bool))
    scores = jnp.where(causal, scores, CONFIG["mask_fill"])
    return jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores, axis=-1), v)


def _draw_heads(
    rng: np.random.Generator,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
    draw: str,
    spread: float = 1.6,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, key and value as (..., heads, S, D), for logits q.k / sqrt(D) of a given spread.

    With the published logits, of standard deviation 1 or far less, late rows are close to the mean
    of all values before them. At the spread used here a row is a mean of fewer values, wherever in
    the sequence they lie. A larger one would only magnify the rounding of the logits to bfloat16.
    The values of a head vary about a vector of its own, so that late rows are not small beside
    early ones and errors in them count.

    `shifted` moves the means of all three and rescales them. `structured` has keys and values that
    are alike within stretches of 64 positions, so that late rows select whole stretches, and a
    first key that draws a part of the attention of every row, so that no row can be found near the
    diagonal.
    """
    *outer, seq, dim = key_shape
    query = rng.standard_normal(query_shape, np.float32)
    key = rng.standard_normal(key_shape, np.float32)
    value = rng.standard_normal(key_shape, np.float32)
    centre = rng.standard_normal((*outer, 1, dim), np.float32)
    if draw == "shifted":
        query = np.float32(spread / 2) * query + np.float32(0.2)
        key = np.float32(2) * key + np.float32(0.2)
        value = np.float32(2) * value + np.float32(3)
    elif draw == "structured":
        stretches = (2, *outer, -(-seq // 64), dim)
        common = rng.standard_normal(stretches, np.float32).repeat(64, axis=-2)[..., :seq, :]
        query *= np.float32(spread)
        key = np.float32(0.4) * key + common[0]
        value = np.float32(0.4) * value + common[1] + centre
        # The same direction in all queries and in the first key: a logit of about 3.
        sink = rng.choice(np.float32([-1, 1]), dim)
        query += np.float32(0.3) * sink
        key[..., 0, :] += np.float32(10 / dim**0.5) * sink
    else:
        query *= np.float32(spread)
        value += centre
    return query, key, value


def _generate_flash(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """The draws of `_draw_heads`."""
    shape = preset.args["query"].shape
    return dict(zip(preset.args, _draw_heads(rng, shape, shape, draw), strict=True))


def _generate_gqa(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """The draws of `_draw_heads`, positions before heads."""
    shapes = [spec.shape for spec in preset.args.values()]
    query, key = ((batch, heads, seq, dim) for batch, seq, heads, dim in shapes[:2])
    arrays = _draw_heads(rng, query, key, draw)
    return {name: a.swapaxes(1, 2) for name, a in zip(preset.args, arrays, strict=True)}


def _generate_sparse(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """The draws of `_draw_heads`, with 1 / sqrt(D) in q as published.

    The published k and v are 50 times smaller, which makes every softmax uniform.
    """
    q, k, v = _draw_heads(rng, preset.args["q"].shape, preset.args["k"].shape, draw)
    return {"q": q * np.float32(q.shape[-1] ** -0.5), "k": k, "v": v}


def _generate_flex(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """The draws of `_draw_heads` and a bias that moves logits as much as the products do.

    The published k, v and bias are so small (0.02 and 0.01) that every softmax is uniform.
    `shifted` adds a mean to the bias, which no softmax may see; `structured` favours near or far
    positions with a slope for each head and holds large values above the diagonal, where nothing
    may read them.
    """
    shape, (heads, seq, _) = preset.args["q"].shape, preset.args["rel_pos_bias"].shape
    q, k, v = _draw_heads(rng, shape, shape, draw, spread=1.1)
    bias = rng.standard_normal((heads, seq, seq), np.float32)
    bias *= np.float32(0.8)
    if draw == "shifted":
        bias += np.float32(0.5)
    elif draw == "structured":
        distance = np.subtract.outer(np.arange(seq), np.arange(seq)).astype(np.float32)
        # One head at a time: at the published size the bias takes four gigabytes.
        for of_head, slope in zip(bias, np.linspace(-1.5, 1.5, heads) / seq, strict=True):
            of_head += np.where(distance < 0, np.float32(20), np.float32(slope) * distance)
    return {"q": q, "k": k, "v": v, "rel_pos_bias": bias}


def _bhsd(s):
    return ArraySpec((s["B"], s["H"], s["S"], s["D"]), "bfloat16")


register(
    Workload(
        id="flash_attention",
        number="1p",
        upstream_name="Flash_Attention",
        family="attention",
        model="plain MHA at Llama-3.1-70B head count",
        summary="Causal attention with as many key as query heads.",
        reference=flash_attention,
        shapes=lambda s: {name: _bhsd(s) for name in ("query", "key", "value")},
        sizes={
            "v6e": {"B": 4, "H": 64, "S": 4096, "D": 128},
            "tiles": {"B": 1, "H": 2, "S": 2048, "D": 128},
            "varied": {"B": 2, "H": 3, "S": 384, "D": 128},
        },
        constants={"scale": 128**-0.5, "mask_fill": -1e9},
        published_names={"batch": "B", "seq_len": "S", "num_heads": "H", "head_dim": "D"},
        generate=_generate_flash,
        flops=lambda s: 4 * s["B"] * s["H"] * s["S"] ** 2 * s["D"],
        flops_useful=lambda s: 2 * s["B"] * s["H"] * s["S"] * (s["S"] + 1) * s["D"],
        tolerance=Tolerance(rel=6.1e-2),
    )
)


register(
    Workload(
        id="gqa_attention",
        number="2p",
        upstream_name="GQA_Attention",
        family="attention",
        model="Llama-3.1-405B",
        summary=(
            "Causal attention with fewer key than query heads, positions before heads: query head "
            "h uses key and value head h // (Hq / Hkv)."
        ),
        reference=gqa_attention,
        shapes=lambda s: {
            "query": ArraySpec((s["B"], s["S"], s["Hq"], s["D"]), "bfloat16"),
            "key": ArraySpec((s["B"], s["S"], s["Hkv"], s["D"]), "bfloat16"),
            "value": ArraySpec((s["B"], s["S"], s["Hkv"], s["D"]), "bfloat16"),
        },
        sizes={
            "v6e": {"B": 4, "S": 4096, "Hq": 128, "Hkv": 8, "D": 128},
            "tiles": {"B": 1, "S": 1024, "Hq": 8, "Hkv": 2, "D": 128},
            "varied": {"B": 2, "S": 384, "Hq": 6, "Hkv": 3, "D": 128},
        },
        constants={"scale": 128**-0.5, "mask_fill": -1e9},
        published_names={
            "batch": "B",
            "seq_len": "S",
            "num_query_heads": "Hq",
            "num_kv_heads": "Hkv",
            "head_dim": "D",
            "emb_dim": 16384,
        },
        generate=_generate_gqa,
        flops=lambda s: 4 * s["B"] * s["Hq"] * s["S"] ** 2 * s["D"],
        flops_useful=lambda s: 2 * s["B"] * s["Hq"] * s["S"] * (s["S"] + 1) * s["D"],
        tolerance=Tolerance(rel=6.8e-2),
    )
)


register(
    Workload(
        id="sparse_attention",
        number="4p",
        upstream_name="Sparse_Attention",
        family="attention",
        model="Llama-3.1-70B",
        summary=(
            "Causal attention with fewer key than query heads, without a batch axis and without a "
            "scale: q carries it. Query head h uses key and value head h // (Hq / Hkv). The mask "
            "is plain causal, in spite of the name."
        ),
        reference=sparse_attention,
        shapes=lambda s: {
            "q": ArraySpec((s["Hq"], s["S"], s["D"]), "bfloat16"),
            "k": ArraySpec((s["Hkv"], s["S"], s["D"]), "bfloat16"),
            "v": ArraySpec((s["Hkv"], s["S"], s["D"]), "bfloat16"),
        },
        sizes={
            "v6e": {"Hq": 64, "Hkv": 8, "S": 4096, "D": 128},
            "tiles": {"Hq": 8, "Hkv": 2, "S": 1024, "D": 128},
            "varied": {"Hq": 6, "Hkv": 3, "S": 384, "D": 128},
        },
        constants={"scale": 1.0, "mask_fill": -1e30},
        published_names={
            "batch": 4,
            "seq_len": "S",
            "num_query_heads": "Hq",
            "num_kv_heads": "Hkv",
            "head_dim": "D",
        },
        generate=_generate_sparse,
        flops=lambda s: 4 * s["Hq"] * s["S"] ** 2 * s["D"],
        flops_useful=lambda s: 2 * s["Hq"] * s["S"] * (s["S"] + 1) * s["D"],
        tolerance=Tolerance(rel=6.8e-2),
    )
)


register(
    Workload(
        id="flex_attention",
        number="5p",
        upstream_name="Flex_Attention",
        family="attention",
        model="Llama-3.1-70B",
        summary=(
            "Causal attention with a bias for every head, query and key position, the same for "
            "all of the batch, added to the scaled scores."
        ),
        reference=flex_attention,
        shapes=lambda s: {
            "q": _bhsd(s),
            "k": _bhsd(s),
            "v": _bhsd(s),
            "rel_pos_bias": ArraySpec((s["H"], s["S"], s["S"]), "bfloat16"),
        },
        sizes={
            "v6e": {"B": 4, "H": 64, "S": 4096, "D": 128},
            "tiles": {"B": 2, "H": 2, "S": 1024, "D": 128},
            "varied": {"B": 2, "H": 3, "S": 384, "D": 128},
        },
        constants={"scale": 128**-0.5, "mask_fill": -1e30},
        published_names={"batch": "B", "seq_len": "S", "num_heads": "H", "head_dim": "D"},
        generate=_generate_flex,
        flops=lambda s: 4 * s["B"] * s["H"] * s["S"] ** 2 * s["D"],
        flops_useful=lambda s: 2 * s["B"] * s["H"] * s["S"] * (s["S"] + 1) * s["D"],
        tolerance=Tolerance(rel=4.6e-2),
    )
)
