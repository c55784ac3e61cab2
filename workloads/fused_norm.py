"""Linear layers followed by a group, batch or instance normalisation (KernelBench)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from workloads import draws
from workloads.fused import grouped, product_flops, sequence, sizes_with
from workloads.workload import Generate, Preset, Tolerance


def published_bmm_instance_norm_sum_residual_add_multiply(
    CONFIG, x, y, bmm_weight, bmm_bias, in_weight, in_bias
):
    """(instance_norm(x @ bmm_weight.T + bmm_bias) + y) * y, each feature a plane of one pixel.

    The mean over one pixel is the pixel itself, so that the norm is in_bias for any input.
    """
    z = (x @ bmm_weight.T + bmm_bias)[:, :, None, None]
    mean = jnp.mean(z, axis=(2, 3), keepdims=True)
    variance = jnp.var(z, axis=(2, 3), keepdims=True)
    z = ((z - mean) / jnp.sqrt(variance + CONFIG["eps"]))[:, :, 0, 0]
    return (z * in_weight + in_bias + y) * y


def bmm_instance_norm_sum_residual_add_multiply(
    CONFIG, x, y, bmm_weight, bmm_bias, in_weight, in_bias
):
    """(norm(x @ bmm_weight.T + bmm_bias) * in_weight + in_bias + y) * y, norm over each row.

    The published form normalises every feature by itself, over a plane of one pixel, and does
    not depend on x; here mean and variance are those of a row's features.
    """
    z = x @ bmm_weight.T + bmm_bias
    mean = jnp.mean(z, axis=1, keepdims=True)
    variance = jnp.var(z, axis=1, keepdims=True)
    z = (z - mean) / jnp.sqrt(variance + CONFIG["eps"])
    return (z * in_weight + in_bias + y) * y


def matmul_swish_sum_group_norm(CONFIG, x, weight, bias, gn_weight, gn_bias):
    """group_norm(silu(x @ weight) + bias) * gn_weight + gn_bias, groups of consecutive features."""
    z = x @ weight
    z = z * jax.nn.sigmoid(z) + bias
    groups = z.reshape(z.shape[0], -1, CONFIG["group_size"])
    mean = jnp.mean(groups, axis=2, keepdims=True)
    variance = jnp.var(groups, axis=2, keepdims=True)
    groups = (groups - mean) / jnp.sqrt(variance + CONFIG["eps"])
    return groups.reshape(z.shape) * gn_weight + gn_bias


def gemm_batch_norm_gelu_relu(CONFIG, x, gemm_weight, gemm_bias, bn_weight, bn_bias):
    """relu(gelu(batch_norm(x @ gemm_weight.T + gemm_bias))), gelu by tanh.

    The norm takes each feature's mean and variance over the rows of this batch.
    """
    z = x @ gemm_weight.T + gemm_bias
    mean = jnp.mean(z, axis=0, keepdims=True)
    variance = jnp.var(z, axis=0, keepdims=True)
    z = (z - mean) / jnp.sqrt(variance + CONFIG["eps"]) * bn_weight + bn_bias
    return jax.nn.relu(jax.nn.gelu(z, approximate=True))


def gemm_group_norm_min_bias_add(CONFIG, x, weight, linear_bias, gn_weight, gn_bias, bias):
    """min_n(group_norm(x @ weight.T + linear_bias) * gn_weight + gn_bias) + bias.

    Groups of consecutive features; the result is the outer sum (1, N, M, 1) of bias and minima.
    """
    z = x @ weight.T + linear_bias
    groups = z.reshape(z.shape[0], -1, CONFIG["group_size"])
    mean = jnp.mean(groups, axis=2, keepdims=True)
    variance = jnp.var(groups, axis=2, keepdims=True)
    groups = (groups - mean) / jnp.sqrt(variance + CONFIG["eps"])
    z = groups.reshape(z.shape) * gn_weight + gn_bias
    return jnp.min(z, axis=1, keepdims=True) + bias


def gemm_batch_norm_scaling_softmax(
    CONFIG, x, weight, bias, bn_scale, bn_bias, bn_mean, bn_var, scale
):
    """softmax_n(scale * batch_norm(x @ weight + bias)), the norm by given mean and variance."""
    z = x @ weight + bias
    z = bn_scale * (z - bn_mean) / jnp.sqrt(bn_var + CONFIG["bn_eps"]) + bn_bias
    return jax.nn.softmax(scale * z, axis=1)


def gemm_group_norm_swish_multiply_swish(
    CONFIG, x, gemm_weight, gemm_bias, gn_weight, gn_bias, multiply_weight
):
    """silu(silu(y) * multiply_weight), y = group_norm(x @ gemm_weight.T + gemm_bias).

    Groups of consecutive features, then times gn_weight plus gn_bias.
    """
    z = x @ gemm_weight.T + gemm_bias
    groups = z.reshape(z.shape[0], -1, CONFIG["group_size"])
    mean = jnp.mean(groups, axis=2, keepdims=True)
    variance = jnp.var(groups, axis=2, keepdims=True)
    groups = (groups - mean) / jnp.sqrt(variance + CONFIG["eps"])
    y = groups.reshape(z.shape) * gn_weight + gn_bias
    y = y * jax.nn.sigmoid(y) * multiply_weight
    return y * jax.nn.sigmoid(y)


def matmul_batch_norm_bias_add_divide_swish(
    CONFIG, x, weight, linear_bias, bn_scale, bn_bias, bn_mean, bn_var, bias
):
    """silu((batch_norm(x @ weight + linear_bias) + bias) / divide_value).

    The norm uses the given mean and variance.
    """
    z = x @ weight + linear_bias
    z = bn_scale * (z - bn_mean) / jnp.sqrt(bn_var + CONFIG["bn_eps"]) + bn_bias
    z = (z + bias) / CONFIG["divide_value"]
    return z * jax.nn.sigmoid(z)


_SCALES = {"gn_weight", "bn_weight", "in_weight", "bn_scale", "multiply_weight"}


def _normalised(
    own: float = 1.0, common: float = 0.7, layout: str = "NK", **spreads: float
) -> Generate:
    """Makes a generator for x, the weight and vectors named as in the reference.

    The published weights and biases are zeros and the scales ones, so that the norms divide zero
    by the square root of epsilon (31k: weights and biases of size one). Here results have an RMS of
    `own` besides what all results of a row have in common, `common`, so that their mean is not
    zero. Scales spread around one by 0.3, variances lie between a half and two, and every other
    vector spreads around zero by 0.5, or as `spreads` says.

    `shifted` has results half again as large, vectors half a spread higher and smaller scales;
    `structured` has blocks of rows and columns of different magnitude and rows of a single
    feature, so that the statistics of a neighbour, or of a whole row or batch, are wrong.
    """

    def vector(rng: np.random.Generator, name: str, size: int, draw: str) -> np.ndarray:
        shifted = draw == "shifted"
        if name == "bn_var":
            return rng.uniform(0.5, 2, size).astype(np.float32) * np.float32(2 if shifted else 1)
        if name in _SCALES:
            return draws.normal(rng, size, 0.7 if shifted else 1, spreads.get(name, 0.3))
        spread = spreads.get(name, 0.5)
        return draws.normal(rng, size, 0.5 * spread if shifted else 0, spread)

    def generate(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
        rows, inner = preset.args["x"].shape
        arrays = {"x": draws.features(rng, rows, inner, draw)}
        for name, spec in preset.args.items():
            if name == "y":
                arrays[name] = rng.random(spec.shape, np.float32) + np.float32(draw == "shifted")
            elif name in ("weight", "gemm_weight", "bmm_weight"):
                columns = spec.shape[layout.index("N")]
                factor = 1.5 if draw == "shifted" else 1
                w = draws.weights(rng, inner, columns, draw, own=own * factor, common=common)
                arrays[name] = w if layout == "KN" else w.T
            elif name == "scale":  # one number for the whole array
                arrays[name] = rng.uniform(*((1.9, 2.3) if draw == "shifted" else (1.3, 1.6)), 1)
            elif name == "bias" and spec.shape == (1,):
                arrays[name] = rng.uniform(*((0.9, 1.2) if draw == "shifted" else (0.4, 0.7)), 1)
            elif name != "x":
                size = max(spec.shape)
                arrays[name] = vector(rng, name, size, draw).reshape(spec.shape)
        return arrays

    return generate


sequence(
    bmm_instance_norm_sum_residual_add_multiply,
    number="26k",
    upstream_name="BMM_InstanceNorm_Sum_ResidualAdd_Multiply",
    problem=28,
    summary=(
        "A linear layer, normalisation of each row, plus y, times y. The published form "
        "normalises every feature by itself and does not depend on x."
    ),
    generate=_normalised(),
    arguments=("x", "y:MN", "bmm_weight:NK", "bmm_bias", "in_weight", "in_bias"),
    constants={"eps": 1e-5},
    flops_useful=product_flops,  # in the published form the product drops out
    # Where the norm and y cancel, their roundings remain, times y.
    tolerance=Tolerance(rel=5e-2),
    published_reference=published_bmm_instance_norm_sum_residual_add_multiply,
)
sequence(
    matmul_swish_sum_group_norm,
    number="29k",
    upstream_name="Matmul_Swish_Sum_GroupNorm",
    problem=37,
    summary="A matrix product, swish, plus a bias, then group normalisation of each row.",
    generate=_normalised(layout="KN"),
    arguments=("x", "weight:KN", "bias", "gn_weight", "gn_bias"),
    sizes=grouped(64, M=8192, K=4096, N=4096),
    constants={"group_size": 64, "eps": 1e-5},
    # Five roundings: the worst of a million of XLA's own elements is off by 3.3e-2.
    tolerance=Tolerance(rel=5e-2),
)
sequence(
    gemm_batch_norm_gelu_relu,
    number="31k",
    upstream_name="Gemm_BatchNorm_GELU_ReLU",
    problem=41,
    summary=(
        "A linear layer, normalisation of each feature over the rows of the batch, gelu (the form "
        "by tanh), then relu."
    ),
    generate=_normalised(common=0),
    arguments=("x", "gemm_weight:NK", "gemm_bias", "bn_weight", "bn_bias"),
    sizes=sizes_with(M=16384),
    constants={"eps": 1e-5},
    # The rounding of a result with a large mean: XLA's own worst element is off by 2.5e-2.
    tolerance=Tolerance(rel=4e-2),
)
sequence(
    gemm_group_norm_min_bias_add,
    number="40k",
    upstream_name="Gemm_GroupNorm_Min_BiasAdd",
    problem=75,
    summary=(
        "A linear layer, group normalisation and minimum of each row; the result is the outer "
        "sum of a bias and these minima."
    ),
    # Small spreads, so that the minimum may be at any feature and not only at a few.
    generate=_normalised(bias=1.0, gn_weight=0.1, gn_bias=0.2),
    arguments=("x", "weight:NK", "linear_bias", "gn_weight", "gn_bias", "bias:1N11"),
    sizes=grouped(16),
    constants={"group_size": 16, "eps": 1e-5},
    # Where bias and minimum cancel, the minimum's rounding remains.
    tolerance=Tolerance(rel=3e-2),
)
sequence(
    gemm_batch_norm_scaling_softmax,
    number="43k",
    upstream_name="Gemm_BatchNorm_Scaling_Softmax",
    problem=84,
    summary=(
        "A linear layer, batch normalisation by given statistics, times a scale, then softmax "
        "over each row."
    ),
    generate=_normalised(0.3, 0, layout="KN", bias=0.2, bn_bias=0.3, bn_mean=0.2),
    arguments=("x", "weight:KN", "bias", "bn_scale", "bn_bias", "bn_mean", "bn_var", "scale:1"),
    constants={"bn_eps": 1e-5},
    published_names={"bn_momentum": 0.1},
    tolerance=Tolerance(rel=9.6e-2),
)
sequence(
    gemm_group_norm_swish_multiply_swish,
    number="45k",
    upstream_name="Gemm_GroupNorm_Swish_Multiply_Swish",
    problem=88,
    summary="A linear layer, group normalisation of each row, swish, times a vector, swish.",
    generate=_normalised(),
    arguments=("x", "gemm_weight:NK", "gemm_bias", "gn_weight", "gn_bias", "multiply_weight"),
    sizes=grouped(32),
    constants={"group_size": 32, "eps": 1e-5},
    # Eight roundings: the worst of a million of XLA's own elements is off by 3.5e-2.
    tolerance=Tolerance(rel=5e-2),
)
sequence(
    matmul_batch_norm_bias_add_divide_swish,
    number="48k",
    upstream_name="Matmul_BatchNorm_BiasAdd_Divide_Swish",
    problem=97,
    summary=(
        "A linear layer, batch normalisation by given statistics, plus one number, divided by a "
        "constant, then swish."
    ),
    generate=_normalised(common=0, layout="KN"),
    arguments=(
        *("x", "weight:KN", "linear_bias", "bn_scale", "bn_bias", "bn_mean", "bn_var"),
        "bias:1",
    ),
    constants={"bn_eps": 1e-5, "divide_value": 1.0},
    published_names={"bn_momentum": 0.1},
    tolerance=Tolerance(rel=2.8e-2),
)
