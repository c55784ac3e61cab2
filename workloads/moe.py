"""Mixtures of experts and the grouped matrix products that they are made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from workloads import draws
from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def sparse_moe(
    CONFIG, x, router_weights, expert_gate_kernels, expert_up_kernels, expert_down_kernels
):
    """Sum over the chosen experts of weight * (silu(x @ gate) * (x @ up)) @ down, in float32.

    Each token has the experts of its largest router logits, as many as CONFIG says; their weights
    are the softmax of these logits alone.
    """
    logits = jnp.einsum("bse,en->bsn", x, router_weights)
    largest, chosen = lax.top_k(logits, CONFIG["num_experts_per_tok"])
    weights = jax.nn.softmax(largest, axis=-1)
    experts = jax.nn.one_hot(chosen, logits.shape[-1])  # float32, as is all that comes after it
    combine = jnp.einsum("bsk,bskn->bsn", weights, experts)
    gate = jax.nn.silu(jnp.einsum("bse,nem->bsnm", x, expert_gate_kernels))
    up = jnp.einsum("bse,nem->bsnm", x, expert_up_kernels)
    down = jnp.einsum("bsnm,nme->bsne", gate * up, expert_down_kernels)
    return jnp.einsum("bsne,bsn->bse", down, combine)


def megablox_gmm(CONFIG, lhs, rhs, group_sizes):
    """Rows sorted by group, each times the matrix of its group: lhs (M,K), rhs (G,K,N) -> (M,N).

    Group g has the group_sizes[g] rows after those of the groups before it, at most
    max_expert_size of them. Rows past the last group are zero.
    """
    size = CONFIG["max_expert_size"]
    starts = jnp.cumsum(group_sizes) - group_sizes
    rows = jnp.arange(size)[:, None]

    def add_group(out, group):
        matrix, start, count = group
        block = lax.dynamic_slice_in_dim(lhs, start, size)
        product = jnp.dot(block, matrix, preferred_element_type=jnp.float32).astype(lhs.dtype)
        before = lax.dynamic_slice_in_dim(out, start, size)
        after = jnp.where(rows < count, product, before)
        return lax.dynamic_update_slice_in_dim(out, after, start, 0), None

    empty = jnp.zeros((lhs.shape[0], rhs.shape[2]), lhs.dtype)
    return lax.scan(add_group, empty, (rhs, starts, group_sizes))[0]


def ragged_dot(CONFIG, x, weights):
    """out[g] = x[g] @ weights[g], accumulated in float32 and rounded once."""
    del CONFIG
    return jnp.einsum("gmk,gkn->gmn", x, weights)


def _router_logits(rng: np.random.Generator, tokens: int, experts: int, draw: str) -> np.ndarray:
    """Logits of every token, with a gap below its two largest.

    `nominal` prefers some experts to others, the last being the least popular; in `shifted` one
    expert gets no token at all; in `structured` stretches of 48 tokens have the same two experts.
    """
    popularity = np.log(1 + np.arange(experts)[::-1])
    if draw == "shifted" and experts > 2:
        popularity[rng.integers(experts)] = -1e9
    choosers = -(-tokens // 48) if draw == "structured" else tokens
    # Largest log-weights plus Gumbel noise: a draw without replacement by popularity.
    order = np.argsort(-(popularity + rng.gumbel(size=(choosers, experts))), axis=1)
    if draw == "structured":
        order = order.repeat(48, 0)[:tokens]
    first = rng.uniform(1, 3, (tokens, 1))
    second = first - rng.uniform(0, 1.5, (tokens, 1))
    rest = second - rng.uniform(0.4, 2, (tokens, experts - 2))
    logits = np.empty((tokens, experts))
    np.put_along_axis(logits, order, np.concatenate([first, second, rest], axis=1), axis=1)
    return logits.astype(np.float32)


def _generate_moe(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Uneven loads, and choices that no rounding changes.

    The published router is random: every expert has about the same load, and near ties between the
    second and the third logit fall one way in bfloat16 and the other way in exact arithmetic, which
    changes the result by its whole size. Here the logits are drawn first, with a gap of 0.4 below
    the second one, and each token is then moved within the span of the router's columns until it
    has these logits. The experts differ in magnitude.
    """
    routed = _route(rng, preset, draw)
    (width, experts), mlp = preset.args["router_weights"].shape, preset.config["M"]
    magnitude = draws.uniform(rng, 0.7, 1.3, (experts, 1, 1))
    return {
        **routed,
        "expert_gate_kernels": draws.normal(rng, (experts, width, mlp), std=width**-0.5),
        "expert_up_kernels": draws.normal(rng, (experts, width, mlp), std=width**-0.5),
        "expert_down_kernels": draws.normal(rng, (experts, mlp, width), std=2 * mlp**-0.5)
        * magnitude,
    }


def _route(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """The tokens and the router of `_generate_moe`."""
    shape, (width, experts) = preset.args["x"].shape, preset.args["router_weights"].shape
    x = draws.normal(rng, shape)
    if draw == "shifted":
        x = np.float32(0.9) * x + np.float32(0.4)
    x = x.reshape(-1, width)
    router = draws.normal(rng, (width, experts), std=width**-0.5)
    wanted = _router_logits(rng, len(x), experts, draw)
    x += (wanted - x @ router) @ np.linalg.pinv(router)
    return {"x": x.reshape(shape), "router_weights": router}


def _group_sizes(
    rng: np.random.Generator, groups: int, rows: int, largest: int, draw: str
) -> np.ndarray:
    """Ragged sizes, multiples of nothing, of which the last is `largest` and one is zero.

    The published function reads `largest` rows from the start of every group, and reads the wrong
    ones where fewer are left. The last group being the largest, that happens nowhere. In `nominal`
    the groups fill all rows if they can; `shifted` leaves the last rows to no group; `structured`
    has full, empty and one-row groups.
    """
    if draw == "structured":
        sizes = rng.choice([0, 1, largest // 2 + 1, largest], groups)
        sizes[: min(3, groups - 1)] = (0, largest, 1)[: groups - 1]
    else:
        sizes = rng.integers(1, largest, groups)
        sizes[rng.integers(groups - 1)] = 0
    sizes[-1] = largest
    total = rows - (largest // 3 if draw == "shifted" else 0)
    free = np.flatnonzero(sizes[:-1] > 0)
    while sizes.sum() > total:
        shrunk = rng.choice(free[sizes[free] > 1])
        sizes[shrunk] -= min(sizes.sum() - total, rng.integers(1, sizes[shrunk]))
    grown = free[sizes[free] < largest - 1]
    while draw == "nominal" and sizes.sum() < total and grown.size:
        chosen = rng.choice(grown)
        sizes[chosen] += min(total - sizes.sum(), rng.integers(1, largest - sizes[chosen]))
        grown = free[sizes[free] < largest - 1]
    return sizes.astype(np.int32)


def _generate_gmm(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Ragged groups and products with an RMS near one.

    The published inputs lie within 7.45e-9 of zero, so that the results, about 1e-15, are zero by
    any absolute tolerance, and all groups are equal. Groups differ in the magnitude of their
    matrix; `shifted` moves the mean of lhs; rows past the last group are as large as all others, so
    that a kernel which leaves them anything but zero is wrong.
    """
    (rows, width), (groups, _, cols) = preset.args["lhs"].shape, preset.args["rhs"].shape
    lhs = draws.normal(rng, (rows, width))
    rhs = draws.normal(rng, (groups, width, cols), std=width**-0.5)
    if draw == "shifted":
        lhs = np.float32(0.7) * lhs + np.float32(0.5)
    rhs *= draws.uniform(rng, 0.6, 1.4, (groups, 1, 1))
    sizes = _group_sizes(rng, groups, rows, preset.config["max_expert_size"], draw)
    return {"lhs": lhs, "rhs": rhs, "group_sizes": sizes}


def _steer_gmm(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """The sizes of the groups alone."""
    rows, groups = preset.args["lhs"].shape[0], preset.args["group_sizes"].shape[0]
    largest = preset.config["max_expert_size"]
    return {"group_sizes": _group_sizes(rng, groups, rows, largest, draw)}


def _generate_ragged_dot(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Products with an RMS near one.

    The published draw (standard normal times 0.02) is kept up to the scale of the weights, and the
    groups differ in magnitude. `shifted` moves both means, so that a lost block of K shifts the
    whole result; `structured` gives every block of 64 rows and of 128 columns its own magnitude.
    """
    (groups, rows, width), (_, _, cols) = preset.args["x"].shape, preset.args["weights"].shape
    x = draws.normal(rng, (groups, rows, width))
    weights = draws.normal(rng, (groups, width, cols), std=width**-0.5)
    if draw == "shifted":
        x = np.float32(0.5) * x + np.float32(0.25)
        weights = 2 * weights + np.float32(width**-0.5)
    elif draw == "structured":
        x *= draws.uniform(rng, 0.5, 2, (groups, -(-rows // 64), 1)).repeat(64, 1)[:, :rows]
        blocks = draws.uniform(rng, 0.5, 2, (groups, 1, -(-cols // 128)))
        weights *= blocks.repeat(128, 2)[:, :, :cols]
    weights *= draws.uniform(rng, 0.6, 1.4, (groups, 1, 1))
    return {"x": x, "weights": weights}


def _moe_shapes(s):
    wide = ArraySpec((s["N"], s["E"], s["M"]), "bfloat16")
    return {
        "x": ArraySpec((s["B"], s["S"], s["E"]), "bfloat16"),
        "router_weights": ArraySpec((s["E"], s["N"]), "bfloat16"),
        "expert_gate_kernels": wide,
        "expert_up_kernels": wide,
        "expert_down_kernels": ArraySpec((s["N"], s["M"], s["E"]), "bfloat16"),
    }


def _moe_flops(s, experts: int) -> int:
    """Three products of every token with `experts` experts, the router, and the weighted sum."""
    tokens = s["B"] * s["S"]
    expert = 6 * tokens * s["E"] * s["M"] * experts
    return expert + 2 * tokens * s["E"] * s["N"] + 2 * tokens * experts * s["E"]


register(
    Workload(
        id="sparse_moe",
        number="10p",
        upstream_name="Sparse_MoE",
        family="moe",
        model="Mixtral-8x7B",
        summary=(
            "A mixture of experts: each token goes through the gated MLPs of the two experts with "
            "its largest router logits; the result is their float32 sum, weighted by the softmax "
            "of these two logits. The logits are bfloat16; no input has near ties."
        ),
        reference=sparse_moe,
        shapes=_moe_shapes,
        sizes={
            "v6e": {"B": 2, "S": 4096, "E": 4096, "M": 14336, "N": 8, "K": 2},
            "tiles": {"B": 1, "S": 1024, "E": 1024, "M": 1024, "N": 3, "K": 2},
            "varied": {"B": 2, "S": 96, "E": 192, "M": 384, "N": 6, "K": 2},
        },
        published_names={
            "batch": "B",
            "seq_len": "S",
            "emb_dim": "E",
            "mlp_dim": "M",
            "num_experts": "N",
            "num_experts_per_tok": "K",
        },
        generate=_generate_moe,
        generate_steering=_route,
        flops=lambda s: _moe_flops(s, s["N"]),
        # Only the chosen experts of each token.
        flops_useful=lambda s: _moe_flops(s, s["K"]),
        partly_read=("expert_gate_kernels", "expert_up_kernels", "expert_down_kernels"),
        # XLA's own roundings between the products reach 3.4e-2 among a million elements.
        tolerance=Tolerance(rel=5e-2),
    )
)

register(
    Workload(
        id="megablox_gmm",
        number="11p",
        upstream_name="Megablox_GMM",
        family="moe",
        model="Qwen3-235B-A22B",
        summary=(
            "Grouped matrix product: rows of lhs are sorted by group, and each group's rows are "
            "multiplied by that group's matrix. Groups are ragged, some are empty, none has more "
            "rows than max_expert_size; rows that belong to no group are zero."
        ),
        reference=megablox_gmm,
        shapes=lambda s: {
            "lhs": ArraySpec((s["M"], s["K"]), "bfloat16"),
            "rhs": ArraySpec((s["G"], s["K"], s["N"]), "bfloat16"),
            "group_sizes": ArraySpec((s["G"],), "int32"),
        },
        sizes={
            "v6e": {"M": 32768, "K": 4096, "G": 128, "N": 1536, "max_expert_size": 256},
            "tiles": {"M": 1024, "K": 1024, "G": 8, "N": 1024, "max_expert_size": 256},
            "varied": {"M": 384, "K": 192, "G": 6, "N": 768, "max_expert_size": 96},
        },
        static_arguments=("max_expert_size",),
        published_names={
            "num_experts": "G",
            "num_experts_per_tok": 8,
            "emb_dim": "K",
            "moe_mlp_dim": "N",
            "seq_len": 4096,
        },
        generate=_generate_gmm,
        generate_steering=_steer_gmm,
        flops=lambda s: 2 * s["M"] * s["K"] * s["N"],
        flops_useful=lambda s: 2 * s["M"] * s["K"] * s["N"],
        partly_read=("lhs", "rhs"),
    )
)

register(
    Workload(
        id="ragged_dot",
        number="14p",
        upstream_name="Ragged_Dot",
        family="moe",
        model="Mixtral-8x7B",
        summary=(
            "One matrix product per group: x (G,m,K) times weights (G,K,N). Despite the name all "
            "groups have the same number of rows."
        ),
        reference=ragged_dot,
        shapes=lambda s: {
            "x": ArraySpec((s["G"], s["m"], s["K"]), "bfloat16"),
            "weights": ArraySpec((s["G"], s["K"], s["N"]), "bfloat16"),
        },
        sizes={
            "v6e": {"G": 8, "m": 1024, "M": 8192, "K": 4096, "N": 14336},
            "tiles": {"G": 2, "m": 1024, "M": 2048, "K": 1024, "N": 1024},
            "varied": {"G": 4, "m": 192, "M": 768, "K": 384, "N": 768},
        },
        published_names={"num_groups": "G"},
        generate=_generate_ragged_dot,
        flops=lambda s: 2 * s["G"] * s["m"] * s["K"] * s["N"],
        flops_useful=lambda s: 2 * s["G"] * s["m"] * s["K"] * s["N"],
    )
)
