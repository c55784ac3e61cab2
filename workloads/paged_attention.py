"""Attention over keys and values that lie in pages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def paged_attention(CONFIG, queries, k_pages, v_pages, kv_lens, page_indices, cu_q_lens):
    """One query per sequence, row cu_q_lens[s] of queries, over kv_lens[s] paged positions.

    Position t of sequence s is slot t % page_size of page page_indices[s, t // page_size].
    """
    num_seqs, (_, q_heads, dim) = page_indices.shape[0], queries.shape
    kv_heads = k_pages.shape[2]
    q = queries[cu_q_lens[:-1]][:, None]
    k = k_pages[page_indices].reshape(num_seqs, -1, kv_heads, dim)
    v = v_pages[page_indices].reshape(num_seqs, -1, kv_heads, dim)
    k = jnp.repeat(k, q_heads // kv_heads, axis=2)
    v = jnp.repeat(v, q_heads // kv_heads, axis=2)
    scores = jnp.einsum("nqhd,nthd->nhqt", q, k) * CONFIG["scale"]
    valid = jnp.arange(k.shape[1])[None, :] < kv_lens[:, None]
    scores = jnp.where(valid[:, None, None, :], scores, CONFIG["mask_fill"])
    return jnp.einsum("nhqt,nthd->nqhd", jax.nn.softmax(scores, axis=-1), v)[:, 0]


def ragged_paged_attention(CONFIG, queries, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs):
    """Causal attention of each sequence's newest T tokens over its kv_lens[s] paged positions.

    T is the number of queries over the number of sequences. Keys have the even heads of a page and
    values the odd ones. The blocks of sequences from num_seqs[0] on are zero.
    """
    max_seqs, (tokens, q_heads, dim) = page_indices.shape[0], queries.shape
    kv_heads = kv_pages.shape[2] // 2
    length = tokens // max_seqs
    outputs = []
    for s in range(max_seqs):
        q = jax.lax.dynamic_slice_in_dim(queries, cu_q_lens[s], length)
        kv = kv_pages[page_indices[s]].reshape(-1, 2 * kv_heads, dim)
        k = jnp.repeat(kv[:, 0::2], q_heads // kv_heads, axis=1)
        v = jnp.repeat(kv[:, 1::2], q_heads // kv_heads, axis=1)
        scores = jnp.einsum("ihd,jhd->hij", q, k, preferred_element_type=jnp.float32)
        scores = scores * CONFIG["scale"]
        row = kv_lens[s] - length + jnp.arange(length)[:, None]
        column = jnp.arange(k.shape[0])[None, :]
        valid = (column <= row) & (column < kv_lens[s])
        scores = jnp.where(valid, scores, CONFIG["mask_fill"])
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        out = jnp.einsum("hij,jhd->ihd", weights, v).astype(queries.dtype)
        outputs.append(jnp.where(s < num_seqs[0], out, jnp.zeros_like(out)))
    return jnp.concatenate(outputs)


def _lengths(rng: np.random.Generator, preset: Preset, draw: str, least: int) -> np.ndarray:
    """Lengths of the sequences, from `least` on, in a random order, some shorter than the table.

    `structured` has a full one, the least, one that ends with its page and one that has a single
    position on its last page.
    """
    count, length = preset.args["kv_lens"].shape[0], preset.config["L"]
    page = preset.config["page_size"]
    lengths = rng.integers(max(least, length // 2), length, count, endpoint=True)
    lengths[0] = length - page - 1
    if draw == "shifted":
        lengths = rng.integers(least, length, count)
    elif draw == "structured":
        boundary = -(-max(least, length // 3) // page) * page
        lengths[:4] = length, least, boundary, boundary + 1
    return rng.permutation(lengths)


def _pool(
    rng: np.random.Generator, preset: Preset, draw: str, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, values (pages, page_size, Hkv, D) and the table of their pages, a permutation.

    The keys and values of a page are alike, so that a row selects pages. The last value of a
    sequence is larger than the others, so that its loss shows; what lies behind it is larger still
    and likely to be selected where it is read.
    """
    pages_per_seq = preset.args["page_indices"].shape[1]
    slots, heads, dim = preset.config["page_size"], preset.config["Hkv"], preset.config["D"]
    count = len(lengths)
    shape = (count, pages_per_seq, slots, heads, dim)
    common = rng.standard_normal((2, count, pages_per_seq, 1, heads, dim), np.float32)
    # In place: at the published size each of the two takes a gigabyte.
    key, value = rng.standard_normal(shape, np.float32), rng.standard_normal(shape, np.float32)
    for array, share, part in ((key, 0.75, common[0]), (value, 1, common[1])):
        array *= np.float32(0.5)
        array += np.float32(share) * part
    value += np.float32(0.5) * rng.standard_normal((heads, dim), np.float32)
    if draw == "shifted":
        key *= np.float32(0.5)
        key += np.float32(0.1)
        value *= np.float32(2)
        value += np.float32(2)
    elif draw == "structured":
        value *= rng.uniform(0.5, 2, (count, pages_per_seq, 1, 1, 1)).astype(np.float32)
    position = np.arange(pages_per_seq * slots).reshape(pages_per_seq, slots)
    value[(position > 0) & (position == lengths[:, None, None] - 1)] *= np.float32(3)
    behind = position >= lengths[:, None, None]
    key[behind] *= np.float32(4)
    value[behind] *= np.float32(50)
    table = rng.permutation(count * pages_per_seq)
    order = np.argsort(table)
    key, value = (a.reshape(-1, slots, heads, dim)[order] for a in (key, value))
    return key, value, table.reshape(count, pages_per_seq)


def _generate_paged(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Sequences of many lengths on pages in a random order.

    The published sequences are all full, their table is the identity, and keys and values are so
    small (0.02) that every row is the mean of its values, about zero. Here keys select, lengths
    and page table matter on every draw (`_lengths`, `_pool`), and where there are more query rows
    than sequences, rows that no sequence uses lie between the others.
    """
    rows, heads, dim = preset.args["queries"].shape
    lengths = _lengths(rng, preset, draw, least=1)
    k_pages, v_pages, table = _pool(rng, preset, draw, lengths)
    scale = np.float32(3 if draw == "shifted" else 1.5)
    starts = _starts(rng, rows, len(lengths))
    return {
        "queries": scale * rng.standard_normal((rows, heads, dim), np.float32),
        "k_pages": k_pages,
        "v_pages": v_pages,
        "kv_lens": lengths,
        "page_indices": table,
        "cu_q_lens": starts,
    }


def _starts(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """The row of each sequence's query, and the number of rows."""
    starts = np.arange(count)
    if rows > count:
        # The first sequence has at least two rows, so that no other one starts at its own number.
        starts[1:] = 2 + np.sort(rng.choice(rows - 2, count - 1, replace=False))
    return np.append(starts, rows)


def _table(rng: np.random.Generator, preset: Preset) -> np.ndarray:
    """A page table alone: any permutation, as in `_pool`."""
    shape = preset.args["page_indices"].shape
    return rng.permutation(shape[0] * shape[1]).reshape(shape)


def _steer_paged(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """The integers of `_generate_paged`, without the pages."""
    lengths = _lengths(rng, preset, draw, least=1)
    return {
        "kv_lens": lengths,
        "page_indices": _table(rng, preset),
        "cu_q_lens": _starts(rng, preset.args["queries"].shape[0], len(lengths)),
    }


def _generate_ragged(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Sequences of many lengths on pages in a random order, and not all of the blocks in use.

    The published sequences are all full and their table is the identity. Here lengths and page
    table matter on every draw (`_lengths`, `_pool`). The number of queries stays the same for all
    sequences, as the published form demands, and no sequence is shorter than that. `shifted` and
    `structured` leave blocks at the end unused; their offsets repeat the end of the last used one.
    """
    tokens, heads, dim = preset.args["queries"].shape
    count = preset.args["kv_lens"].shape[0]
    length = tokens // count
    lengths = _lengths(rng, preset, draw, least=length)
    keys, values, table = _pool(rng, preset, draw, lengths)
    scale = np.float32(3 if draw == "shifted" else 1.5)
    return {
        "queries": scale * rng.standard_normal((tokens, heads, dim), np.float32),
        "kv_pages": np.stack([keys, values], axis=3).reshape(preset.args["kv_pages"].shape),
        "kv_lens": lengths,
        "page_indices": table,
        **_used(count, length, draw),
    }


def _used(count: int, length: int, draw: str) -> dict[str, np.ndarray]:
    """How many sequences are in use, and where their queries, `length` of each, start."""
    used = {"nominal": count, "shifted": count - 1, "structured": -(-count // 2)}[draw]
    starts = length * np.minimum(np.arange(count + 1), used)
    return {"cu_q_lens": starts, "num_seqs": np.array([used])}


def _steer_ragged(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """The integers of `_generate_ragged`, without the pages."""
    count = preset.args["kv_lens"].shape[0]
    length = preset.args["queries"].shape[0] // count
    return {
        "kv_lens": _lengths(rng, preset, draw, least=length),
        "page_indices": _table(rng, preset),
        **_used(count, length, draw),
    }


def _paged_shapes(s):
    pages = s["num_seqs"] * s["pages_per_seq"]
    pool = ArraySpec((pages, s["page_size"], s["Hkv"], s["D"]), "bfloat16")
    return {
        "queries": ArraySpec((s["T"], s["Hq"], s["D"]), "bfloat16"),
        "k_pages": pool,
        "v_pages": pool,
        "kv_lens": ArraySpec((s["num_seqs"],), "int32"),
        "page_indices": ArraySpec((s["num_seqs"], s["pages_per_seq"]), "int32"),
        "cu_q_lens": ArraySpec((s["num_seqs"] + 1,), "int32"),
    }


register(
    Workload(
        id="paged_attention",
        number="6p",
        upstream_name="Paged_Attention",
        family="attention",
        model="Llama-3.1-70B",
        summary=(
            "Decoding: one query per sequence attends to the sequence's keys and values, which "
            "lie in pages that a table lists. Query head h uses key and value head h // (Hq / Hkv)."
        ),
        reference=paged_attention,
        shapes=_paged_shapes,
        sizes={
            "v6e": {
                "num_seqs": 64,
                "T": 64,
                "Hq": 64,
                "Hkv": 8,
                "D": 128,
                "page_size": 16,
                "pages_per_seq": 256,
                "L": 4096,
            },
            "tiles": {
                "num_seqs": 8,
                "T": 8,
                "Hq": 16,
                "Hkv": 2,
                "D": 128,
                "page_size": 16,
                "pages_per_seq": 64,
                "L": 1024,
            },
            "varied": {
                "num_seqs": 6,
                "T": 12,
                "Hq": 12,
                "Hkv": 3,
                "D": 128,
                "page_size": 16,
                "pages_per_seq": 24,
                "L": 384,
            },
        },
        constants={"scale": 128**-0.5, "mask_fill": -1e30},
        published_names={
            "max_seq_len": "L",
            "num_query_heads": "Hq",
            "num_kv_heads": "Hkv",
            "head_dim": "D",
        },
        generate=_generate_paged,
        generate_steering=_steer_paged,
        flops=lambda s: 4 * s["num_seqs"] * s["Hq"] * s["L"] * s["D"],
        flops_useful=lambda s: 4 * s["num_seqs"] * s["Hq"] * s["L"] * s["D"],
        partly_read=("k_pages", "v_pages", "page_indices"),
        tolerance=Tolerance(rel=3.2e-2),
    )
)


def _ragged_shapes(s):
    pages = s["max_seqs"] * s["pages_per_seq"]
    return {
        "queries": ArraySpec((s["tokens"], s["Hq"], s["D"]), "bfloat16"),
        "kv_pages": ArraySpec((pages, s["page_size"], 2 * s["Hkv"], s["D"]), "bfloat16"),
        "kv_lens": ArraySpec((s["max_seqs"],), "int32"),
        "page_indices": ArraySpec((s["max_seqs"], s["pages_per_seq"]), "int32"),
        "cu_q_lens": ArraySpec((s["max_seqs"] + 1,), "int32"),
        "num_seqs": ArraySpec((1,), "int32"),
    }


register(
    Workload(
        id="ragged_paged_attention",
        number="7p",
        upstream_name="Ragged_Paged_Attention",
        family="attention",
        model="Llama-3.1-70B",
        summary=(
            "Chunked prefill: the newest T tokens of every sequence attend causally to the "
            "sequence's keys and values, which lie in pages that a table lists, keys at even and "
            "values at odd heads. All used sequences have T queries; blocks of unused ones are "
            "zero. Query head h uses key and value head h // (Hq / Hkv)."
        ),
        reference=ragged_paged_attention,
        shapes=_ragged_shapes,
        sizes={
            "v6e": {
                "max_seqs": 64,
                "T": 64,
                "tokens": 4096,
                "Hq": 64,
                "Hkv": 8,
                "D": 128,
                "page_size": 16,
                "pages_per_seq": 256,
                "L": 4096,
            },
            "tiles": {
                "max_seqs": 4,
                "T": 64,
                "tokens": 256,
                "Hq": 16,
                "Hkv": 2,
                "D": 128,
                "page_size": 16,
                "pages_per_seq": 64,
                "L": 1024,
            },
            "varied": {
                "max_seqs": 4,
                "T": 24,
                "tokens": 96,
                "Hq": 12,
                "Hkv": 3,
                "D": 128,
                "page_size": 16,
                "pages_per_seq": 24,
                "L": 384,
            },
        },
        constants={
            "scale": 128**-0.5,
            "mask_fill": -0.7 * float(np.finfo(np.float32).max),
        },
        published_names={
            "max_num_batched_tokens": "tokens",
            "max_num_seqs": "max_seqs",
            "num_q_heads": "Hq",
            "num_kv_heads": "Hkv",
            "head_dim": "D",
        },
        generate=_generate_ragged,
        generate_steering=_steer_ragged,
        flops=lambda s: 4 * s["max_seqs"] * s["Hq"] * s["T"] * s["L"] * s["D"],
        # Without the keys that come after a query, at full lengths.
        flops_useful=lambda s: (
            4 * s["max_seqs"] * s["Hq"] * s["D"] * (s["T"] * s["L"] - s["T"] * (s["T"] - 1) // 2)
        ),
        partly_read=("queries", "kv_pages", "page_indices"),
    )
)
