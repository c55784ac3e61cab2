"""Linear layers followed by a reduction over each row: sum, maximum, log-sum-exp, softmax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from workloads import draws
from workloads.fused import HIDDEN, product_flops, sequence
from workloads.workload import Generate, Preset, Tolerance


def gemm_divide_sum_scaling(CONFIG, x, weight):
    """sum_n(x @ weight.T / divisor) * scaling, the summed axis kept."""
    z = jnp.matmul(x, weight.T, precision=lax.Precision.HIGHEST) / CONFIG["divisor"]
    return jnp.sum(z, axis=1, keepdims=True) * CONFIG["scaling"]


def matmul_sum_max_avg_pool_log_sum_exp_log_sum_exp(CONFIG, x, weight, bias):
    """sum_n(x @ weight.T + bias), the summed axis kept.

    Maximum, mean and both log-sum-exps that follow run over that axis, of length one by then, and
    change nothing.
    """
    del CONFIG
    z = jnp.sum(x @ weight.T + bias, axis=1, keepdims=True)
    z = jnp.max(z, axis=1, keepdims=True)
    z = jnp.mean(z, axis=1, keepdims=True)
    z = jax.nn.logsumexp(z, axis=1, keepdims=True)
    return jax.nn.logsumexp(z, axis=1, keepdims=True)


def matmul_scale_residual_add_clamp_log_sum_exp_mish(CONFIG, x, weight, bias):
    """Maps l = logsumexp_n(clip(z + z)), z = (x @ weight.T + bias) * scale, to l * mish(l).

    mish(l) = l * tanh(log(1 + exp(l))); the reduced axis is kept.
    """
    z = (x @ weight.T + bias) * CONFIG["scale"]
    z = jnp.clip(z + z, CONFIG["clamp_min"], CONFIG["clamp_max"])
    total = jax.nn.logsumexp(z, axis=1, keepdims=True)
    return total * (total * jnp.tanh(jax.nn.softplus(total)))


def gemm_sigmoid_log_sum_exp(CONFIG, x, w1, b1, w2, b2):
    """logsumexp_n(sigmoid(x @ w1.T + b1) @ w2.T + b2)."""
    del CONFIG
    hidden = jax.nn.sigmoid(x @ w1.T + b1)
    return jax.nn.logsumexp(hidden @ w2.T + b2, axis=1)


def matmul_sigmoid_sum(CONFIG, x, weight, bias):
    """sum_n(sigmoid(x @ weight + bias)), the summed axis kept."""
    del CONFIG
    return jnp.sum(jax.nn.sigmoid(x @ weight + bias), axis=1, keepdims=True)


def matmul_dropout_softmax(CONFIG, x, weight, bias):
    """softmax_n(x @ weight.T + bias). The dropout is not applied, as in inference."""
    del CONFIG
    return jax.nn.softmax(x @ weight.T + bias, axis=1)


def published_gemm_max_subtract_gelu(CONFIG, x, weight, bias):
    """gelu(m - mean(m)) with m = max_n(x @ weight + bias), the axis kept: zero for any input.

    The mean runs over an axis of length one, so it is m itself.
    """
    m = jnp.max(x @ weight + bias, axis=CONFIG["max_dim"], keepdims=True)
    return jax.nn.gelu(m - jnp.mean(m, axis=1, keepdims=True), approximate=True)


def gemm_max_subtract_gelu(CONFIG, x, weight, bias):
    """gelu(max_n(z) - mean_n(z)) with z = x @ weight + bias, gelu by tanh, the axis kept.

    The published form takes the mean of the maximum, over an axis of length one, and is zero for
    any input; here the mean is that of the linear layer's row.
    """
    z = x @ weight + bias
    m = jnp.max(z, axis=CONFIG["max_dim"], keepdims=True)
    return jax.nn.gelu(m - jnp.mean(z, axis=1, keepdims=True), approximate=True)


def matmul_avg_pool_gelu_scale_max(CONFIG, x, weight, bias):
    """Maximum over a row's pools of gelu(pooled) * scale, gelu by tanh.

    A pool is the mean of `pool` consecutive features of x @ weight + bias.
    """
    z = x @ weight + bias
    window = (1, CONFIG["pool"])
    total = lax.reduce_window(z, jnp.zeros((), z.dtype), lax.add, window, window, "VALID")
    pooled = total / CONFIG["pool"]
    return jnp.max(jax.nn.gelu(pooled, approximate=True) * CONFIG["scale"], axis=1)


def matmul_gelu_softmax(CONFIG, x, weight, bias):
    """softmax_n(gelu(x @ weight + bias)), gelu by tanh."""
    del CONFIG
    return jax.nn.softmax(jax.nn.gelu(x @ weight + bias, approximate=True), axis=1)


def _linear(
    own: float = 1.0,
    common: float = 1.0,
    bias: float = 0.5,
    offset: float = 0.0,
    shift: float = 0.5,
    layout: str = "KN",
) -> Generate:
    """Makes a generator for x, weight and bias.

    The published weights and biases are zeros, so that every output is one constant. And with
    weights that are merely random, a reduction over a row would average x away. Here all results
    of a row move together by `common`, besides the `own` part of each; the bias spreads by `bias`
    around `offset`, which `shifted` moves by `shift`. `structured` has blocks of rows and columns
    of different magnitude, and rows of a single feature.
    """

    def generate(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
        (rows, inner), weight = preset.args["x"].shape, preset.args["weight"].shape
        columns = weight[layout.index("N")]
        factor = 1.5 if draw == "shifted" else 1
        x = draws.features(rng, rows, inner, draw)
        w = draws.weights(rng, inner, columns, draw, own=own * factor, common=common)
        arrays = {"x": x, "weight": w if layout == "KN" else w.T}
        if "bias" in preset.args:
            mean = offset + (shift if draw == "shifted" else 0)
            arrays["bias"] = draws.normal(rng, columns, mean, bias)
        return arrays

    return generate


def _generate_clamped(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Rows that reach both clamps, and log-sum-exps of either sign.

    The published zeros give log(N) for any x. With `nominal` and `structured` inputs (see
    `_linear`) whole rows lie above the upper clamp. There mish is the identity, and below the lower
    clamp nothing counts beside the rest. `shifted` therefore lowers the bias until log-sum-exps
    are spread around zero, where most terms are at the lower clamp and mish bends most.
    """
    (rows, inner), columns = preset.args["x"].shape, preset.args["weight"].shape[0]
    own, common, bias, mean = (0.5, 0.8, 0.4, 0.0)
    if draw == "shifted":
        own, common, bias = 0.3, 0.5, 0.3
        mean = -(np.log(columns) + 3) / 4
    return {
        "x": draws.features(rng, rows, inner, draw),
        "weight": draws.weights(rng, inner, columns, draw, own=own, common=common).T,
        "bias": draws.normal(rng, columns, mean, bias),
    }


def _generate_gemm_sigmoid_log_sum_exp(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Both layers with a part that all results of a row have in common.

    All weights and biases are published as zeros: log(N) for any x. Here both layers depend on
    their inputs, and the second bias is lowered by half of log(N), so that differences between
    rows are not small beside the result.
    """
    (rows, inner), (hidden, _) = preset.args["x"].shape, preset.args["w1"].shape
    columns = preset.args["b2"].shape[0]
    shifted = draw == "shifted"
    return {
        "x": draws.features(rng, rows, inner, draw),
        "w1": draws.weights(rng, inner, hidden, draw, own=1.5 if shifted else 1, common=1.0).T,
        "b1": draws.normal(rng, hidden, 0.5 if shifted else 0, 1.0),
        "w2": draws.weights(rng, hidden, columns, draw, own=1.0, common=2.0).T,
        "b2": draws.normal(rng, columns, -0.5 * np.log(columns) + (0.5 if shifted else 0), 1.0),
    }


sequence(
    gemm_divide_sum_scaling,
    number="21k",
    upstream_name="Gemm_Divide_Sum_Scaling",
    problem=14,
    summary="A matrix product divided by a constant, summed over each row, times a constant.",
    generate=_linear(layout="NK"),
    arguments=("x", "weight:NK"),
    published_sizes=HIDDEN,
    constants={"divisor": 2.0, "scaling": 1.5},
    published_names={"scaling_factor": "scaling"},
    # The sum commutes with the product: x @ (sum of the rows of the weight).
    flops_useful=lambda s: 2 * s["M"] * s["K"] + s["K"] * s["N"],
)
sequence(
    matmul_sum_max_avg_pool_log_sum_exp_log_sum_exp,
    number="23k",
    upstream_name="Matmul_Sum_Max_AvgPool_LogSumExp_LogSumExp",
    problem=18,
    summary="A linear layer summed over each row; the reductions that follow change nothing.",
    # Only the bias's sum matters: it must not be near zero, nor its mean near one.
    generate=_linear(offset=0.5, shift=-1.0, layout="NK"),
    arguments=("x", "weight:NK", "bias"),
    # The sum commutes with the product: x @ (sum of the rows of the weight).
    flops_useful=lambda s: 2 * s["M"] * s["K"] + s["K"] * s["N"],
)
sequence(
    matmul_scale_residual_add_clamp_log_sum_exp_mish,
    number="24k",
    upstream_name="Matmul_Scale_ResidualAdd_Clamp_LogSumExp_Mish",
    problem=22,
    summary=(
        "A linear layer scaled, added to itself and clipped, its log-sum-exp l over each row, "
        "then l * mish(l)."
    ),
    generate=_generate_clamped,
    arguments=("x", "weight:NK", "bias"),
    published_sizes=HIDDEN,
    constants={"scale": 2.0, "clamp_min": -10.0, "clamp_max": 10.0},
    published_names={"scale_factor": "scale"},
)
sequence(
    gemm_sigmoid_log_sum_exp,
    number="32k",
    upstream_name="Gemm_Sigmoid_LogSumExp",
    problem=45,
    summary="A linear layer, sigmoid, a second linear layer, then log-sum-exp over each row.",
    generate=_generate_gemm_sigmoid_log_sum_exp,
    arguments=("x", "w1:HK", "b1:H", "w2:NH", "b2"),
    sizes={
        "v6e": {"M": 16384, "K": 2048, "Hd": 4096, "N": 1024},
        "tiles": {"M": 1024, "K": 1024, "Hd": 2048, "N": 1024},
        "varied": {"M": 384, "K": 384, "Hd": 1536, "N": 768},
    },
    published_sizes={"batch_size": "M", "input_size": "K", "hidden_size": "Hd", "output_size": "N"},
    flops=lambda s: 2 * s["M"] * s["Hd"] * (s["K"] + s["N"]),
)
sequence(
    matmul_sigmoid_sum,
    number="36k",
    upstream_name="Matmul_Sigmoid_Sum",
    problem=56,
    summary="A linear layer, sigmoid, then the sum of each row.",
    generate=_linear(own=0.7, common=1.5, bias=1.2),
    published_sizes=HIDDEN,
)
sequence(
    matmul_dropout_softmax,
    number="38k",
    upstream_name="Matmul_Dropout_Softmax",
    problem=66,
    summary="A linear layer, then softmax over each row. The dropout is not applied.",
    generate=_linear(own=0.4, common=0.3, bias=0.3, shift=0.2, layout="NK"),
    arguments=("x", "weight:NK", "bias"),
    published_names={"dropout_p": 0.2},
    tolerance=Tolerance(rel=3.5e-2),
)
sequence(
    gemm_max_subtract_gelu,
    number="42k",
    upstream_name="Gemm_Max_Subtract_GELU",
    problem=80,
    summary=(
        "A linear layer, each row's maximum minus its mean, then gelu (the form by tanh). The "
        "published form subtracts the mean of the maximum, which is zero for any input."
    ),
    generate=_linear(own=0.25, common=0.5, bias=0.15),
    published_names={"max_dim": 1},
    flops_useful=product_flops,  # none in the published form, which is zero
    published_reference=published_gemm_max_subtract_gelu,
)
sequence(
    matmul_avg_pool_gelu_scale_max,
    number="49k",
    upstream_name="Matmul_AvgPool_GELU_Scale_Max",
    problem=98,
    summary=(
        "A linear layer, means of 16 consecutive features, gelu (the form by tanh) times a "
        "constant, then the maximum of each row."
    ),
    generate=_linear(own=2, common=1.2, bias=1, offset=-0.5),
    constants={"pool": 16, "scale": 2.0},
    published_names={"pool_kernel_size": "pool", "scale_factor": "scale"},
    # Pooling commutes with the product: pool the weight's columns first, 16 times less work.
    flops_useful=lambda s: product_flops(s) // 16 + s["K"] * s["N"],
)
sequence(
    matmul_gelu_softmax,
    number="50k",
    upstream_name="Matmul_GELU_Softmax",
    problem=99,
    summary="A linear layer, gelu (the form by tanh), then softmax over each row.",
    generate=_linear(own=0.7, common=0.3, shift=0.2),
    tolerance=Tolerance(rel=4.6e-2),
)
