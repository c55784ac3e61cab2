"""Normalisations."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Workload


def rms_norm(CONFIG, x, scale):
    """Root-mean-square norm of the last axis in float32, then times scale in the type of x."""
    x32 = x.astype(jnp.float32)
    mean_square = jnp.mean(x32 * x32, axis=-1, keepdims=True)
    return (x32 * lax.rsqrt(mean_square + CONFIG["eps"])).astype(x.dtype) * scale


def _generate_rms_norm(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Rows of very different magnitude.

    The published rows all have unit variance, so that the statistics hardly matter: x * scale is
    right to 3 %. Here every row has its own magnitude (10^U(-3, 1), so that epsilon matters too);
    `shifted` adds a mean, which an RMS norm must not remove; `structured` has rows of few large
    values, for which a mean over a part of the row is wrong.
    """
    batch, seq, dim = preset.args["x"].shape
    x = rng.standard_normal((batch, seq, dim), np.float32)
    magnitude = np.float32(10) ** rng.uniform(-3, 1, (batch, seq, 1)).astype(np.float32)
    scale = 1 + np.float32(0.3) * rng.standard_normal(dim, np.float32)
    if draw == "shifted":
        x += np.float32(1.5)
    elif draw == "structured":
        spikes = rng.integers(0, dim, (batch, seq, 4))
        np.put_along_axis(x, spikes, np.float32(0.5 * dim**0.5), axis=-1)
    return {"x": x * magnitude, "scale": scale}


register(
    Workload(
        id="rms_norm",
        number="12p",
        upstream_name="RMSNorm",
        family="norm",
        model="Llama-3.1-70B",
        summary="Root-mean-square normalisation of every row, then an elementwise scale.",
        reference=rms_norm,
        shapes=lambda s: {
            "x": ArraySpec((s["B"], s["S"], s["D"]), "bfloat16"),
            "scale": ArraySpec((s["D"],), "bfloat16"),
        },
        sizes={
            "v6e": {"B": 8, "S": 4096, "D": 8192},
            "tiles": {"B": 2, "S": 1024, "D": 2048},
            "varied": {"B": 3, "S": 192, "D": 1536},
        },
        constants={"eps": 1e-5},
        published_names={"batch": "B", "seq_len": "S", "emb_dim": "D", "epsilon": "eps"},
        generate=_generate_rms_norm,
        flops=lambda s: 5 * s["B"] * s["S"] * s["D"],
        flops_useful=lambda s: 5 * s["B"] * s["S"] * s["D"],
    )
)
