"""Matrix products."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Workload


def gemm(CONFIG, A, B):
    """A @ B, accumulated in float32 and rounded once."""
    del CONFIG
    return jnp.matmul(A, B)


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
