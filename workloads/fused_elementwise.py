"""Linear layers followed by elementwise operations (KernelBench)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from workloads import draws
from workloads.fused import sequence
from workloads.workload import Generate, Preset, Tolerance


def matmul_subtract_multiply_relu(CONFIG, x, weight, bias):
    """relu((x @ weight + bias - subtract) * multiply)."""
    z = x @ weight + bias
    return jax.nn.relu((z - CONFIG["subtract"]) * CONFIG["multiply"])


def gemm_multiply_leaky_relu(CONFIG, x, weight, bias):
    """Leaky relu of (x @ weight + bias) * multiplier: z where z >= 0, else negative_slope * z."""
    z = (x @ weight + bias) * CONFIG["multiplier"]
    return jnp.where(z >= 0, z, CONFIG["negative_slope"] * z)


def matmul_mish_mish(CONFIG, x, weight, bias):
    """mish(mish(x @ weight + bias)) with mish(z) = z * tanh(log(1 + exp(z)))."""
    del CONFIG
    z = x @ weight + bias
    z = z * jnp.tanh(jax.nn.softplus(z))
    return z * jnp.tanh(jax.nn.softplus(z))


def matmul_scaling_residual_add(CONFIG, x, weight, bias):
    """(x @ weight + bias) * scaling, plus x @ weight + bias itself."""
    z = x @ weight + bias
    return z * CONFIG["scaling"] + z


def gemm_scaling_hardtanh_gelu(CONFIG, x, weight, bias):
    """gelu(clip((x @ weight + bias) * scaling, hardtanh_min, hardtanh_max)), gelu by tanh."""
    z = (x @ weight + bias) * CONFIG["scaling"]
    z = jnp.clip(z, CONFIG["hardtanh_min"], CONFIG["hardtanh_max"])
    return jax.nn.gelu(z, approximate=True)


def matmul_swish_scaling(CONFIG, x, weight, bias):
    """swish(x @ weight + bias) * scaling with swish(z) = z * sigmoid(z)."""
    z = x @ weight + bias
    return z * jax.nn.sigmoid(z) * CONFIG["scaling"]


def gemm_add_relu(CONFIG, x, weight, bias):
    """relu(x @ weight + bias)."""
    del CONFIG
    return jax.nn.relu(x @ weight + bias)


def matmul_divide_gelu(CONFIG, x, weight, bias):
    """gelu((x @ weight + bias) / divisor), gelu by tanh."""
    return jax.nn.gelu((x @ weight + bias) / CONFIG["divisor"], approximate=True)


def matmul_add_swish_tanh_gelu_hardtanh(CONFIG, x, weight, bias, add_value):
    """clip(gelu(tanh(silu(x @ weight + bias + add_value))), hardtanh_min, hardtanh_max).

    The gelu is the one by tanh. Its argument lies between -0.28 and 1, so the clip never acts.
    """
    z = x @ weight + bias + add_value
    z = jnp.tanh(z * jax.nn.sigmoid(z))
    z = jax.nn.gelu(z, approximate=True)
    return jnp.clip(z, CONFIG["hardtanh_min"], CONFIG["hardtanh_max"])


def _linear(own: float = 1.0, bias: float = 0.5, offset: float = 0.0, **vectors: float) -> Generate:
    """Makes a generator for x, weight, bias, with further vectors of the given spread.

    The published weights and biases are zeros, so that every output is one constant. Here the
    weights are scaled such that results have an RMS of `own` before the bias, which spreads by
    `bias` around `offset`, as each of `vectors` does around zero: large enough for each to be
    missed, and to reach both sides of every kink. `shifted` has results half again as large and
    biases half a spread higher; `structured` has blocks of rows and columns of different
    magnitude, and rows of a single feature.
    """

    def generate(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
        (rows, inner), columns = preset.args["x"].shape, preset.args["weight"].shape[1]
        shifted = draw == "shifted"
        arrays = {
            "x": draws.features(rng, rows, inner, draw),
            "weight": draws.weights(rng, inner, columns, draw, own=own * (1.5 if shifted else 1)),
            "bias": draws.normal(rng, columns, offset + (0.5 * bias if shifted else 0), bias),
        }
        for name, spread in vectors.items():
            arrays[name] = draws.normal(rng, columns, 0.5 * spread if shifted else 0, spread)
        return arrays

    return generate


sequence(
    matmul_subtract_multiply_relu,
    number="19k",
    upstream_name="Matmul_Subtract_Multiply_ReLU",
    problem=9,
    summary="A linear layer, minus a constant, times a constant, then relu.",
    generate=_linear(own=2, bias=1, offset=2.5),
    constants={"subtract": 2.0, "multiply": 1.5},
    published_names={"subtract_value": "subtract", "multiply_value": "multiply"},
)
sequence(
    gemm_multiply_leaky_relu,
    number="20k",
    upstream_name="Gemm_Multiply_LeakyReLU",
    problem=12,
    summary="A linear layer times a constant, then leaky relu.",
    generate=_linear(),
    constants={"multiplier": 2.0, "negative_slope": 0.1},
)
sequence(
    matmul_mish_mish,
    number="27k",
    upstream_name="Matmul_Mish_Mish",
    problem=29,
    summary="A linear layer, then mish twice.",
    generate=_linear(),
)
sequence(
    matmul_scaling_residual_add,
    number="30k",
    upstream_name="Matmul_Scaling_ResidualAdd",
    problem=40,
    summary="A linear layer, scaled, plus itself unscaled.",
    generate=_linear(),
    sizes={
        "v6e": {"M": 16384, "K": 4096, "N": 4096},
        "tiles": {"M": 1024, "K": 2048, "N": 1024},
        "varied": {"M": 384, "K": 768, "N": 1536},
    },
    constants={"scaling": 0.5},
    published_names={"scaling_factor": "scaling"},
)
sequence(
    gemm_scaling_hardtanh_gelu,
    number="35k",
    upstream_name="Gemm_Scaling_Hardtanh_GELU",
    problem=53,
    summary="A scaled linear layer, clipped to an interval, then gelu (the form by tanh).",
    generate=_linear(own=3, bias=1.5),
    constants={"scaling": 0.5, "hardtanh_min": -2, "hardtanh_max": 2},
    published_names={"scaling_factor": "scaling"},
)
sequence(
    matmul_swish_scaling,
    number="37k",
    upstream_name="Matmul_Swish_Scaling",
    problem=59,
    summary="A linear layer, swish, times a constant.",
    generate=_linear(),
    constants={"scaling": 2.0},
    published_names={"scaling_factor": "scaling"},
)
sequence(
    gemm_add_relu,
    number="41k",
    upstream_name="Gemm_Add_ReLU",
    problem=76,
    summary="A linear layer, then relu.",
    generate=_linear(),
)
sequence(
    matmul_divide_gelu,
    number="44k",
    upstream_name="Matmul_Divide_GELU",
    problem=86,
    summary="A linear layer divided by a constant, then gelu (the form by tanh).",
    generate=_linear(own=12, bias=6),
    published_sizes={"batch_size": "M", "input_size": "K", "output_size": "N"},
    constants={"divisor": 10.0},
)
sequence(
    matmul_add_swish_tanh_gelu_hardtanh,
    number="47k",
    upstream_name="Matmul_Add_Swish_Tanh_GELU_Hardtanh",
    problem=95,
    summary=(
        "A linear layer plus a vector, then swish, tanh, gelu (the form by tanh) and a clip "
        "that never acts."
    ),
    generate=_linear(add_value=0.7),
    arguments=("x", "weight:KN", "bias", "add_value"),
    constants={"hardtanh_min": -1.0, "hardtanh_max": 1.0},
    # Six roundings, and no result above one: XLA's own worst element is off by 1.6e-2.
    tolerance=Tolerance(rel=2.5e-2),
)
