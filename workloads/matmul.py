"""Matrix products."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from workloads import draws
from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def gemm(CONFIG, A, B):
    """A @ B, accumulated in float32 and rounded once."""
    del CONFIG
    return jnp.matmul(A, B)


def swiglu_mlp(CONFIG, x, gate_kernel, up_kernel, down_kernel):
    """(silu(x @ gate_kernel) * (x @ up_kernel)) @ down_kernel."""
    del CONFIG
    gate = jax.nn.silu(x @ gate_kernel)
    return (gate * (x @ up_kernel)) @ down_kernel


def _generate_gemm(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Products whose entries have an RMS near one.

    The published draw (standard normal times 0.02) is kept up to the scale of B. `shifted` moves
    both means, so that a lost block of K shifts the whole result; `structured` gives every
    row-block of A and column-block of B its own magnitude, so that a block swapped with its
    neighbour, or one left out, stands out.
    """
    (m, k), (_, n) = preset.args["A"].shape, preset.args["B"].shape
    a = rng.standard_normal((m, k), np.float32)
    b = rng.standard_normal((k, n), np.float32) * np.float32(k**-0.5)
    if draw == "shifted":
        a = a * np.float32(0.5) + np.float32(0.25)
        b = b * np.float32(2) + np.float32(k**-0.5)
    elif draw == "structured":
        a *= rng.uniform(0.5, 2, (-(-m // 128), 1)).astype(np.float32).repeat(128, 0)[:m]
        b *= rng.uniform(0.5, 2, (1, -(-n // 128))).astype(np.float32).repeat(128, 1)[:, :n]
    return {"A": a, "B": b}


def _generate_swiglu(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Gates that reach both the flat and the straight part of silu, results of RMS near one.

    The published draw (standard normal times 0.02) is kept up to the scales. `shifted` moves the
    means of x and of all kernels; `structured` gives blocks of rows of x and of hidden features
    their own magnitude, and shuts every third block of hidden features: gates far below
    zero, behind which a kernel may not let anything through.
    """
    (_, seq, dim), hidden = preset.args["x"].shape, preset.args["gate_kernel"].shape[1]
    x = rng.standard_normal(preset.args["x"].shape, np.float32)
    gate = np.float32(1.5 * dim**-0.5) * rng.standard_normal((dim, hidden), np.float32)
    up = np.float32(dim**-0.5) * rng.standard_normal((dim, hidden), np.float32)
    down = np.float32(hidden**-0.5) * rng.standard_normal((hidden, dim), np.float32)
    if draw == "shifted":
        x = np.float32(0.5) * x + np.float32(0.2)
        gate += np.float32(3 / dim)
        up += np.float32(5 / dim)
        down = np.float32(2) * down + np.float32(1 / hidden)
    elif draw == "structured":
        x = np.float32(0.5) * (1 + x) * np.cbrt(draws.blocks(rng, seq, 64))[:, None]
        up *= draws.blocks(rng, hidden)
        shut = np.arange(hidden) // 128 % 3 == 1
        gate -= np.float32(16 / dim) * shut
    return {"x": x, "gate_kernel": gate, "up_kernel": up, "down_kernel": down}


register(
    Workload(
        id="gemm",
        number="8p",
        upstream_name="GEMM",
        family="matmul",
        model="Llama-3.1-70B",
        summary="One large matrix product: A (M,K) times B (K,N).",
        reference=gemm,
        shapes=lambda s: {
            "A": ArraySpec((s["M"], s["K"]), "bfloat16"),
            "B": ArraySpec((s["K"], s["N"]), "bfloat16"),
        },
        sizes={
            "v6e": {"M": 8192, "K": 8192, "N": 28672},
            "tiles": {"M": 2048, "K": 2048, "N": 1024},
            "varied": {"M": 384, "K": 768, "N": 1536},
        },
        generate=_generate_gemm,
        flops=lambda s: 2 * s["M"] * s["K"] * s["N"],
        flops_useful=lambda s: 2 * s["M"] * s["K"] * s["N"],
    )
)


register(
    Workload(
        id="swiglu_mlp",
        number="9p",
        upstream_name="SwiGLU_MLP",
        family="matmul",
        model="Llama-3.1-70B",
        summary=(
            "Gated feed-forward block of a transformer: silu of one product times another, then "
            "a third product back to the width of x."
        ),
        reference=swiglu_mlp,
        shapes=lambda s: {
            "x": ArraySpec((s["B"], s["S"], s["E"]), "bfloat16"),
            "gate_kernel": ArraySpec((s["E"], s["M"]), "bfloat16"),
            "up_kernel": ArraySpec((s["E"], s["M"]), "bfloat16"),
            "down_kernel": ArraySpec((s["M"], s["E"]), "bfloat16"),
        },
        sizes={
            "v6e": {"B": 2, "S": 4096, "E": 8192, "M": 28672},
            "tiles": {"B": 1, "S": 1024, "E": 1024, "M": 2048},
            "varied": {"B": 3, "S": 96, "E": 384, "M": 1536},
        },
        published_names={"batch": "B", "seq_len": "S", "emb_dim": "E", "mlp_dim": "M"},
        generate=_generate_swiglu,
        flops=lambda s: 6 * s["B"] * s["S"] * s["E"] * s["M"],
        flops_useful=lambda s: 6 * s["B"] * s["S"] * s["E"] * s["M"],
        # Three roundings before the last product: XLA's own worst element is off by 3e-2.
        tolerance=Tolerance(rel=4.5e-2),
    )
)
