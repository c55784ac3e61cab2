"""Updates of pair representations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def triangle_multiplication(
    CONFIG,
    pair_act,
    mask,
    left_proj_w,
    right_proj_w,
    left_gate_w,
    right_gate_w,
    center_scale,
    out_proj_w,
    out_gate_w,
):
    """Triangle multiplication with outgoing edges: t[i, j] = sum_k left[i, k] * right[j, k].

    left and right are gated projections of the masked activations, t is normalised by its root
    mean square over the channels, and the output gate sees the activations without mask.
    """
    act = pair_act * mask
    left = (act @ left_proj_w) * jax.nn.sigmoid(act @ left_gate_w)
    right = (act @ right_proj_w) * jax.nn.sigmoid(act @ right_gate_w)
    product = jnp.einsum("ikc,jkc->ijc", left, right)
    mean_square = jnp.mean(product * product, axis=-1, keepdims=True)
    product = product / jnp.sqrt(mean_square + CONFIG["eps"]) * center_scale
    return (product @ out_proj_w) * jax.nn.sigmoid(pair_act @ out_gate_w)


def _generate_triangle(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Masks with holes, gates that open and close, and rows of different magnitude.

    The published mask is all ones and the published gates are near one half; here the mask hides
    pairs and the gates' weights are four times as large. Every row of the pair matrix has its own
    mean and magnitude: products of rows then differ in size, so that the norm has something to do,
    and have a part that does not average out, which bfloat16 renders better.

    `shifted` moves the activations and the scales; `structured` masks whole residues at the end
    and a stretch within, as padding does, and has rows so small that epsilon counts. Activations
    that the mask hides are large on every draw; only the output gate may see them.
    """
    n, _, channels = preset.args["pair_act"].shape
    weight = np.float32(channels**-0.5)
    act = rng.standard_normal((n, n, channels), np.float32)
    act += rng.standard_normal((n, 1, channels), np.float32)
    mask = (rng.random((n, n, 1)) < 0.8).astype(np.float32)
    magnitude = np.float32(2) ** rng.uniform(-1, 1, (n, 1, 1)).astype(np.float32)
    arrays = {
        name: weight * rng.standard_normal((channels, channels), np.float32)
        for name in preset.args
        if name.endswith("_w")
    }
    scale = 1 + np.float32(0.3) * rng.standard_normal(channels, np.float32)
    if draw == "shifted":
        act = np.float32(0.7) * act + np.float32(0.3)
        scale = 2 + np.float32(0.5) * rng.standard_normal(channels, np.float32)
    elif draw == "structured":
        magnitude = np.float32(10) ** rng.uniform(-2.5, 0, (n, 1, 1)).astype(np.float32)
        present = np.arange(n) < n - n // 16
        present[n // 3 : n // 3 + n // 24] = False
        mask = (present[:, None] & present & (rng.random((n, n)) < 0.95)).astype(np.float32)
        mask = mask[..., None]
    act = np.where(mask == 0, 2 * act, act * magnitude)
    return {"pair_act": act, "mask": mask, "center_scale": scale, **arrays}


def _triangle_shapes(s):
    shapes = {"pair_act": (s["N"], s["N"], s["C"]), "mask": (s["N"], s["N"], 1)}
    for name in ("left_proj_w", "right_proj_w", "left_gate_w", "right_gate_w"):
        shapes[name] = (s["C"], s["C"])
    shapes["center_scale"] = (s["C"],)
    shapes["out_proj_w"] = shapes["out_gate_w"] = (s["C"], s["C"])
    return {name: ArraySpec(shape, "bfloat16") for name, shape in shapes.items()}


register(
    Workload(
        id="triangle_multiplication",
        number="17p",
        upstream_name="Triangle_Multiplication",
        family="pair",
        model="AlphaFold2",
        summary=(
            "Triangle multiplication with outgoing edges: two gated projections of the masked "
            "pair activations, one N x N matrix product per channel, a root-mean-square norm over "
            "the channels, an output projection and an output gate."
        ),
        reference=triangle_multiplication,
        shapes=_triangle_shapes,
        sizes={
            "v6e": {"N": 1536, "C": 128},
            # N enters cubed: a multiple of 1024 would take minutes in interpret mode.
            "tiles": {"N": 256, "C": 128},
            "varied": {"N": 96, "C": 96},
        },
        constants={"eps": 1e-6},
        generate=_generate_triangle,
        flops=lambda s: 12 * s["N"] ** 2 * s["C"] ** 2 + 2 * s["N"] ** 3 * s["C"],
        flops_useful=lambda s: 12 * s["N"] ** 2 * s["C"] ** 2 + 2 * s["N"] ** 3 * s["C"],
        tolerance=Tolerance(rel=4e-2),
    )
)
