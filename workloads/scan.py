"""Linear recurrences over a sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def mamba2_scan(CONFIG, query, key, value, A_log):
    """Gated linear attention in its quadratic form, the published form of the Mamba-2 scan.

    decay(i, j) = exp(l_{j+1} + ... + l_i) with l = log(sigmoid(A_log) + log_eps), for j <= i.
    """
    log_a = jnp.log(jax.nn.sigmoid(A_log.astype(jnp.float32)) + CONFIG["log_eps"])
    cumulative = jnp.cumsum(log_a, axis=-1)
    seq = query.shape[2]
    causal = jnp.tril(jnp.ones((seq, seq), dtype=bool))
    difference = cumulative[..., :, None] - cumulative[..., None, :]
    decay = jnp.exp(jnp.where(causal, difference, -jnp.inf))
    scores = jnp.einsum("bhid,bhjd->bhij", query, key, preferred_element_type=jnp.float32) * decay
    norm = jnp.maximum(jnp.abs(jnp.sum(scores, axis=-1, keepdims=True)), CONFIG["normaliser_floor"])
    weights = (scores / norm).astype(query.dtype)
    return jnp.einsum("bhij,bhjd->bhid", weights, value)


def _generate_mamba2(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Heads with memories from two to hundreds of positions.

    The published gate, sigmoid(-4 +- 0.5), forgets everything after two or three positions, so
    that a kernel which carries no state between its blocks is almost right. Here the gates' logits
    are spread over the heads from 6.5 to 0.5 (memory of roughly 600 to 2 positions). `shifted`
    gives query and key a mean, so that the normaliser is far above its floor; `structured` holds
    the gate open except for a few resets, so that the state must survive whole blocks, and makes
    the values of each stretch of 64 positions distinct.

    Query and key are smaller where the memory is longer, so that a row's scores sum to about one.
    Sums of many large scores that happen to cancel would magnify every rounding before them, and
    bfloat16 itself would fail.
    """
    shape = preset.args["query"].shape
    batch, heads, seq, dim = shape
    centre = np.linspace(6.5, 0.5, heads, dtype=np.float32)[None, :, None]
    if draw == "structured":
        centre = np.full_like(centre, 7)
    gate = centre + np.float32(0.5) * rng.standard_normal((batch, heads, seq), np.float32)
    memory = 1 + np.exp(centre[..., None])  # positions until a constant gate has faded by e
    scale = (memory * dim / 2) ** np.float32(-0.25)
    query = scale * rng.standard_normal(shape, np.float32)
    key = scale * rng.standard_normal(shape, np.float32)
    value = rng.standard_normal(shape, np.float32)
    if draw == "shifted":
        query += np.float32(0.1)
        key += np.float32(0.1)
        value += np.float32(0.5)
    elif draw == "structured":
        gate[rng.random((batch, heads, seq)) < 2 / seq] = np.float32(-6)
        stretches = rng.standard_normal((batch, heads, -(-seq // 64), dim), np.float32)
        value = np.float32(0.5) * value + stretches.repeat(64, axis=2)[:, :, :seq]
    return {"query": query, "key": key, "value": value, "A_log": gate}


def retnet_retention(CONFIG, query, key, value):
    """Retention in its quadratic form: causal linear attention whose scores fade with distance.

    r(i, j) = q_i . k_j * gamma^(i - j) for j <= i, with gamma = 1 - 2^(-5 - h) for head h, in
    float32; each row of r is divided by max(sum of |r|, 1).
    """
    heads, seq = query.shape[1], query.shape[2]
    gamma = 1 - 2.0 ** (-5 - jnp.arange(heads, dtype=jnp.float32))
    position = jnp.arange(seq)
    distance = position[:, None] - position[None, :]
    power = gamma[:, None, None] ** jnp.maximum(distance, 0).astype(jnp.float32)
    decay = jnp.where(distance >= 0, power, 0)
    scores = jnp.einsum("bhid,bhjd->bhij", query, key, preferred_element_type=jnp.float32) * decay
    norm = jnp.maximum(jnp.sum(jnp.abs(scores), axis=-1, keepdims=True), CONFIG["normaliser_floor"])
    weights = (scores / norm).astype(query.dtype)
    return jnp.einsum("bhij,bhjd->bhid", weights, value)


def _generate_retnet(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Rows whose normalisers lie on both sides of the floor, and heads of equal weight.

    The published scores have a standard deviation of 16, so that the floor of one never acts, and
    the results of the heads with a long memory are far below the tolerance. Here a query's
    magnitude is chosen so that the sum of its row's |r| lies between 1/4 and 6, another one for
    each stretch of 64 rows, and values are larger where more of them are averaged. `shifted`
    gives query and key a common part, so that scores are mostly positive, and value a mean;
    `structured` makes the keys' magnitude and the values of each stretch distinct.

    Signs of scores may cancel in the result but not in the normaliser, the sum of their absolute
    values, so that nothing magnifies the rounding of bfloat16.
    """
    shape = batch, heads, seq, dim = preset.args["query"].shape
    stretches = (batch, heads, -(-seq // 64), 1)
    gamma = 1 - 2.0 ** (-5 - np.arange(heads))
    faded = gamma[:, None] ** np.arange(1, seq + 1)
    memory = ((1 - faded) / (1 - gamma[:, None])).astype(np.float32)[..., None]
    levels = np.broadcast_to(np.linspace(np.log(0.25), np.log(6), stretches[2]), stretches[:3])
    total = np.exp(rng.permuted(levels, axis=2)).astype(np.float32)[..., None]
    query = rng.standard_normal(shape, np.float32)
    key = rng.standard_normal(shape, np.float32)
    value = rng.standard_normal(shape, np.float32) * np.sqrt(memory)
    if draw == "shifted":
        common = rng.standard_normal((1, heads, 1, dim), np.float32)
        query, key = (np.float32(dim**-0.25) * common + a for a in (query, key))
        value += 1
    elif draw == "structured":
        own = rng.uniform(-1.7, 1.7, (*stretches[:-1], dim)).astype(np.float32)
        value = np.float32(0.6) * value + np.sqrt(memory / 3) * own.repeat(64, 2)[:, :, :seq]
        key *= rng.uniform(0.4, 1.6, stretches).astype(np.float32).repeat(64, 2)[:, :, :seq]
    # Scores of standard deviation s sum to about 0.8 s * memory in absolute value.
    scale = total.repeat(64, 2)[:, :, :seq] / (np.float32(0.8) * memory)
    query *= scale * np.float32(dim**-0.5)
    return {"query": query, "key": key, "value": value}


def _mamba2_shapes(s):
    qkv = ArraySpec((s["B"], s["H"], s["S"], s["D"]), "bfloat16")
    gate = ArraySpec((s["B"], s["H"], s["S"]), "float32")
    return {"query": qkv, "key": qkv, "value": qkv, "A_log": gate}


def _retnet_shapes(s):
    qkv = ArraySpec((s["B"], s["H"], s["S"], s["D"]), "bfloat16")
    return {"query": qkv, "key": qkv, "value": qkv}


register(
    Workload(
        id="retnet_retention",
        number="15p",
        upstream_name="RetNet_Retention",
        family="scan",
        model="RetNet-6.7B",
        summary=(
            "Causal retention: scores q.k fade by a constant factor per position, another one for "
            "each head, and each row is divided by max(sum of the absolute scores, 1). The "
            "absolute values need every score: there is no recurrence for the normaliser."
        ),
        reference=retnet_retention,
        shapes=_retnet_shapes,
        sizes={
            "v6e": {"B": 4, "H": 16, "S": 4096, "D": 256},
            "tiles": {"B": 1, "H": 2, "S": 2048, "D": 256},
            "varied": {"B": 1, "H": 6, "S": 768, "D": 96},
        },
        constants={"normaliser_floor": 1.0},
        published_names={
            "batch": "B",
            "seq_len": "S",
            "num_heads": "H",
            "head_dim": "D",
            "d_model": 4096,
        },
        generate=_generate_retnet,
        flops=lambda s: 4 * s["B"] * s["H"] * s["S"] ** 2 * s["D"],
        # The causal half.
        flops_useful=lambda s: 2 * s["B"] * s["H"] * s["S"] * (s["S"] + 1) * s["D"],
    )
)

register(
    Workload(
        id="mamba2_scan",
        number="16p",
        upstream_name="Mamba2_SSD",
        family="scan",
        model="Mamba-2-2.7B",
        summary=(
            "Causal gated linear attention: scores q.k decay with the product of the gates "
            "between the two positions, and each row is divided by max(|its sum|, 1). The sum is "
            "signed, so the same result follows from a recurrence of D x D states."
        ),
        reference=mamba2_scan,
        shapes=_mamba2_shapes,
        sizes={
            "v6e": {"B": 4, "H": 64, "S": 4096, "D": 64},
            "tiles": {"B": 1, "H": 2, "S": 2048, "D": 64},
            "varied": {"B": 1, "H": 3, "S": 768, "D": 96},
        },
        constants={"log_eps": 1e-8, "normaliser_floor": 1.0},
        published_names={
            "batch": "B",
            "num_heads": "H",
            "seq_len": "S",
            "head_dim": "D",
            "d_state": 128,
            "d_model": 2560,
        },
        generate=_generate_mamba2,
        flops=lambda s: 4 * s["B"] * s["H"] * s["S"] ** 2 * s["D"],
        # Chunked form with full chunks of 256 positions: scores and state, two products each.
        flops_useful=lambda s: 4 * s["B"] * s["H"] * s["S"] * (256 * s["D"] + s["D"] ** 2),
        tolerance=Tolerance(rel=2.6e-2),
    )
)
