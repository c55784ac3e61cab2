"""Convolutions of images, each with the elementwise steps and norms that follow it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def conv2d_relu_bias_add(CONFIG, x, weight, conv_bias, bias):
    """relu(convolution + conv_bias) + bias: valid, stride 1, channels first."""
    del CONFIG
    z = lax.conv_general_dilated(x, weight, (1, 1), "VALID") + conv_bias[:, None, None]
    return jax.nn.relu(z) + bias


def conv2d_instance_norm_divide(CONFIG, x, weight, conv_bias, in_weight, in_bias):
    """Convolution + conv_bias, normalised over every plane, scaled, shifted, then divided.

    y = (z - mean) / sqrt(var + eps) over height and width, with the population variance.
    """
    z = lax.conv_general_dilated(x, weight, (1, 1), "VALID") + conv_bias[:, None, None]
    mean = jnp.mean(z, axis=(2, 3), keepdims=True)
    var = jnp.var(z, axis=(2, 3), keepdims=True)
    y = (z - mean) / jnp.sqrt(var + CONFIG["eps"])
    return (y * in_weight[:, None, None] + in_bias[:, None, None]) / CONFIG["divide_by"]


def conv2d_activation_batch_norm(CONFIG, x, conv_weight, conv_bias, bn_weight, bn_bias):
    """Convolution + conv_bias, mish, then batch norm with the statistics of this batch.

    mish(z) = z * tanh(softplus(z)); statistics of every channel over batch, height and width.
    """
    z = lax.conv_general_dilated(x, conv_weight, (1, 1), "VALID") + conv_bias[:, None, None]
    a = z * jnp.tanh(jax.nn.softplus(z))
    mean = jnp.mean(a, axis=(0, 2, 3), keepdims=True)
    var = jnp.var(a, axis=(0, 2, 3), keepdims=True)
    y = (a - mean) / jnp.sqrt(var + CONFIG["eps"])
    return y * bn_weight[:, None, None] + bn_bias[:, None, None]


def conv2d_gelu_global_avg_pool(CONFIG, x, weight, bias):
    """Mean over height and width of gelu(convolution + bias), gelu in its tanh form."""
    del CONFIG
    z = lax.conv_general_dilated(x, weight, (1, 1), "VALID") + bias[:, None, None]
    return jnp.mean(jax.nn.gelu(z), axis=(2, 3))


def conv2d_group_norm_tanh_hard_swish_residual_add_log_sum_exp(
    CONFIG, x, conv_weight, conv_bias, gn_weight, gn_bias
):
    """log-sum-exp over channels of z + h, where z is the convolution with its bias.

    h = t * clip(t + 3, 0, 6) / 6 with t = tanh(group norm of z), groups of consecutive channels.
    """
    z = lax.conv_general_dilated(x, conv_weight, (1, 1), "VALID") + conv_bias[:, None, None]
    grouped = z.reshape(z.shape[0], CONFIG["groups"], -1, *z.shape[2:])
    mean = jnp.mean(grouped, axis=(2, 3, 4), keepdims=True)
    var = jnp.var(grouped, axis=(2, 3, 4), keepdims=True)
    y = ((grouped - mean) / jnp.sqrt(var + CONFIG["eps"])).reshape(z.shape)
    t = jnp.tanh(y * gn_weight[:, None, None] + gn_bias[:, None, None])
    h = t * jnp.clip(t + 3, 0, 6) / 6
    return jax.nn.logsumexp(z + h, axis=1, keepdims=True)


def _normal(rng: np.random.Generator, shape, scale=1.0, mean=0.0) -> np.ndarray:
    return np.float32(mean) + np.float32(scale) * rng.standard_normal(shape, np.float32)


def _uniform(rng: np.random.Generator, low, high, shape) -> np.ndarray:
    return rng.uniform(low, high, shape).astype(np.float32)


def _images(rng: np.random.Generator, shape: tuple[int, ...], draw: str) -> np.ndarray:
    """Images in which no sample, channel, row or column is like the others.

    `nominal` is normal, `shifted` is uniform around a positive level (the published images are
    uniform on [0, 1)), `structured` consists of patches of 16 x 16 pixels that have a level and a
    contrast each. In all of them contrast grows from sample to sample and towards the last row and
    column, so that statistics of some samples or of a part of the plane are not those of the whole,
    and a last tile left out is missed.

    Levels are well below the contrast. After a norm, rounding counts by the ratio of the two.
    """
    batch, channels, height, width = shape
    if draw == "shifted":
        x = np.float32(12**0.5) * (rng.random(shape, np.float32) - np.float32(0.4))
    else:
        x = _normal(rng, shape)
    if draw == "structured":
        patches = (batch, channels, -(-height // 16), -(-width // 16))
        contrast, level = _uniform(rng, 0.5, 1.25, patches), _normal(rng, patches, 0.3)
        contrast, level = (
            a.repeat(16, 2).repeat(16, 3)[:, :, :height, :width] for a in (contrast, level)
        )
        x = x * contrast + level
    x *= np.linspace(0.7, 1.3, height, dtype=np.float32)[:, None]
    x *= np.linspace(0.9, 1.1, width, dtype=np.float32)
    return x * np.linspace(0.75, 1.25, batch, dtype=np.float32)[:, None, None, None]


def _filters(rng: np.random.Generator, shape: tuple[int, ...], scale=1.0) -> np.ndarray:
    """Filters whose output has about `scale` times the magnitude of the input."""
    return _normal(rng, shape, scale / np.sqrt(np.prod(shape[1:])))


def _generate_relu(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Filters and biases that are not all zero, as the published ones are.

    The output channels differ in magnitude, and both biases are large enough to matter: the first
    moves the point where the relu cuts, the second is added after it.
    """
    out = preset.config["Cout"]
    magnitude = _uniform(rng, 0.5, 1.5, (out, 1, 1, 1))
    return {
        "x": _images(rng, preset.args["x"].shape, draw),
        "weight": _filters(rng, preset.args["weight"].shape) * magnitude,
        "conv_bias": _normal(rng, out, 0.5, -0.5 if draw == "shifted" else 0),
        "bias": _normal(rng, (out, 1, 1), 0.5),
    }


def _channel_magnitudes(rng: np.random.Generator, count: int) -> np.ndarray:
    """Magnitudes from 10^-3 to 2, evenly spread on a log scale, in random order."""
    exponents = rng.permutation(np.linspace(-3, np.log10(2), count))
    return (np.float32(10) ** exponents).astype(np.float32)


def _generate_instance_norm(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Planes of very different magnitude, so that statistics and epsilon matter.

    All published filters and biases are zero. conv_bias only moves the mean that the norm takes
    away again: it has no effect on the result, whatever its values. It is drawn in proportion to
    the magnitude of its channel, since a bias far above the channel's values would take all their
    bits in bfloat16, in the published operator too.
    """
    out = preset.config["Cout"]
    magnitude = _channel_magnitudes(rng, out)
    return {
        "x": _images(rng, preset.args["x"].shape, draw),
        "weight": _filters(rng, preset.args["weight"].shape) * magnitude[:, None, None, None],
        "conv_bias": _uniform(rng, -0.5, 0.5, out) * magnitude,
        "in_weight": _uniform(rng, 0.5, 1.5, out),
        "in_bias": _uniform(rng, -0.8, 0.8, out),
    }


def _generate_batch_norm(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Channels of very different magnitude, and samples that differ from each other.

    The published filters have unit variance, so that the convolution's values are in the tens and
    mish is a relu; the published scale is one and the shift zero. Here mish works where it bends,
    and some channels are so small that epsilon matters.
    """
    out = preset.config["Cout"]
    magnitude = _channel_magnitudes(rng, out)
    return {
        "x": _images(rng, preset.args["x"].shape, draw),
        "conv_weight": _filters(rng, preset.args["conv_weight"].shape)
        * magnitude[:, None, None, None],
        "conv_bias": _uniform(rng, -0.8, 0.8, out) * magnitude,
        "bn_weight": _uniform(rng, 0.5, 1.5, out),
        "bn_bias": _uniform(rng, -0.8, 0.8, out),
    }


def _generate_gelu_pool(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Samples and channels with their own level, so that the means over the planes differ.

    All published filters are zero; with any others, means over planes of one distribution are
    the same for all samples. The levels make up for that. The last two rows are three times as
    bright as the others and the last two columns are negatives: without such a border a mean over
    the plane cannot tell a filter from its mirror image, and hardly misses a row.
    """
    shape, out = preset.args["x"].shape, preset.config["Cout"]
    x = _images(rng, shape, draw) + _normal(rng, (*shape[:2], 1, 1))
    x[..., -2:, :] *= 3
    x[..., -2:] *= -2
    return {
        "x": x,
        "weight": _filters(rng, preset.args["weight"].shape),
        "bias": _normal(rng, out),
    }


def _generate_log_sum_exp(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Results around zero that vary over the plane, so that the normalised part is seen in them.

    The published filters and biases are zero, the result log(64) everywhere. With independent
    filters the sum over the channels still hardly varies over the plane, hence the filter that all
    channels share. Neighbouring groups differ in bias and magnitude and the images grow brighter
    downwards, so that statistics of other groups, or of a part of the plane, are wrong. Biases of
    about -log(channels) move the results to zero: a tolerance relative to the result would hide
    the bounded term h beneath log(64).
    """
    out, shape = preset.config["Cout"], preset.args["conv_weight"].shape
    groups = preset.config["groups"]
    magnitude = _uniform(rng, 0.3, 1, groups)
    bias = _uniform(rng, -1.2, -0.6, groups) * (-1) ** np.arange(groups)
    magnitude, bias = (a.repeat(out // groups) for a in (magnitude, bias))
    shared = _filters(rng, (1, *shape[1:]))
    level = 0.8 + np.log(out)
    x = _images(rng, preset.args["x"].shape, draw)
    x += np.linspace(-1, 1, x.shape[2], dtype=np.float32)[:, None]
    return {
        "x": x,
        "conv_weight": shared + magnitude[:, None, None, None] * _filters(rng, shape),
        "conv_bias": bias + _normal(rng, out, 0.4, -level),
        "gn_weight": _normal(rng, out, 0.5, 1),
        "gn_bias": _normal(rng, out, 0.5, 0.5),
    }


def _sizes(B: int, Cin: int, H: int, W: int, Cout: int) -> dict[str, int]:
    """Sizes of a valid convolution with filters of 3 x 3."""
    return {"B": B, "Cin": Cin, "H": H, "W": W, "Cout": Cout, "k": 3, "Ho": H - 2, "Wo": W - 2}


def _shapes(weight: str, **per_channel: int):
    """Images, filters, and arrays of one number a channel with some axes of one after it."""

    def shapes(s):
        return {
            "x": ArraySpec((s["B"], s["Cin"], s["H"], s["W"]), "bfloat16"),
            weight: ArraySpec((s["Cout"], s["Cin"], s["k"], s["k"]), "bfloat16"),
            **{
                name: ArraySpec((s["Cout"],) + (1,) * ones, "bfloat16")
                for name, ones in per_channel.items()
            },
        }

    return shapes


def _flops(s) -> int:
    return 2 * s["B"] * s["Cout"] * s["Ho"] * s["Wo"] * s["Cin"] * s["k"] ** 2


_PUBLISHED_NAMES = {
    "batch_size": "B",
    "in_channels": "Cin",
    "out_channels": "Cout",
    "kernel_size": "k",
}

register(
    Workload(
        id="conv2d_relu_bias_add",
        number="18k",
        upstream_name="Conv2D_ReLU_BiasAdd",
        family="conv",
        model="KernelBench level 2, problem 1",
        summary="A 3 x 3 convolution with bias, a relu, and a second bias after it.",
        reference=conv2d_relu_bias_add,
        shapes=_shapes("weight", conv_bias=0, bias=2),
        sizes={
            "v6e": _sizes(128, 64, 128, 128, 128),
            "tiles": _sizes(2, 64, 128, 128, 128),
            "varied": _sizes(3, 24, 24, 48, 48),
        },
        published_names=_PUBLISHED_NAMES,
        generate=_generate_relu,
        flops=_flops,
        flops_useful=_flops,
    )
)

register(
    Workload(
        id="conv2d_instance_norm_divide",
        number="22k",
        upstream_name="Conv2d_InstanceNorm_Divide",
        family="conv",
        model="KernelBench level 2, problem 17",
        summary=(
            "A 3 x 3 convolution with bias, normalised over each plane of each sample, scaled and "
            "shifted per channel, and divided by a constant."
        ),
        reference=conv2d_instance_norm_divide,
        shapes=_shapes("weight", conv_bias=0, in_weight=0, in_bias=0),
        sizes={
            "v6e": _sizes(128, 64, 128, 128, 128),
            "tiles": _sizes(1, 64, 128, 128, 128),
            "varied": _sizes(3, 24, 24, 48, 48),
        },
        constants={"eps": 1e-5, "divide_by": 2.0},
        published_names=_PUBLISHED_NAMES,
        generate=_generate_instance_norm,
        flops=_flops,
        flops_useful=_flops,
        # XLA's own five roundings reach 1.7e-2 among millions of elements.
        tolerance=Tolerance(rel=2.8e-2),
    )
)

register(
    Workload(
        id="conv2d_activation_batch_norm",
        number="34k",
        upstream_name="Conv2d_Activation_BatchNorm",
        family="conv",
        model="KernelBench level 2, problem 52",
        summary=(
            "A 3 x 3 convolution with bias, mish, then batch norm in training mode: statistics of "
            "every channel over batch, height and width."
        ),
        reference=conv2d_activation_batch_norm,
        shapes=_shapes("conv_weight", conv_bias=0, bn_weight=0, bn_bias=0),
        sizes={
            "v6e": _sizes(64, 64, 128, 128, 128),
            "tiles": _sizes(2, 64, 128, 128, 128),
            "varied": _sizes(3, 24, 24, 48, 48),
        },
        constants={"eps": 1e-5},
        published_names=_PUBLISHED_NAMES,
        generate=_generate_batch_norm,
        flops=_flops,
        flops_useful=_flops,
        # XLA's own eight roundings reach 2.4e-2 among millions of elements.
        tolerance=Tolerance(rel=4e-2),
    )
)

register(
    Workload(
        id="conv2d_gelu_global_avg_pool",
        number="39k",
        upstream_name="Conv2d_GELU_GlobalAvgPool",
        family="conv",
        model="KernelBench level 2, problem 67",
        summary="A 3 x 3 convolution with bias, gelu (tanh form), and the mean over each plane.",
        reference=conv2d_gelu_global_avg_pool,
        shapes=_shapes("weight", bias=0),
        sizes={
            "v6e": _sizes(128, 8, 256, 256, 64),
            "tiles": _sizes(2, 8, 256, 256, 64),
            "varied": _sizes(3, 6, 24, 48, 48),
        },
        published_names=_PUBLISHED_NAMES,
        generate=_generate_gelu_pool,
        flops=_flops,
        flops_useful=_flops,
    )
)

register(
    Workload(
        id="conv2d_group_norm_tanh_hard_swish_residual_add_log_sum_exp",
        number="46k",
        upstream_name="Conv2d_GroupNorm_Tanh_HardSwish_ResidualAdd_LogSumExp",
        family="conv",
        model="KernelBench level 2, problem 92",
        summary=(
            "A 3 x 3 convolution with bias; to it is added the hard swish of the tanh of its group "
            "norm (16 groups of channels); the result is the log-sum-exp over the channels."
        ),
        reference=conv2d_group_norm_tanh_hard_swish_residual_add_log_sum_exp,
        shapes=_shapes("conv_weight", conv_bias=0, gn_weight=0, gn_bias=0),
        sizes={
            "v6e": _sizes(128, 8, 128, 128, 64),
            "tiles": _sizes(2, 8, 128, 128, 64),
            "varied": _sizes(3, 6, 24, 48, 48),
        },
        constants={"groups": 16, "eps": 1e-5},
        published_names={**_PUBLISHED_NAMES, "groups": "groups"},
        generate=_generate_log_sum_exp,
        flops=_flops,
        flops_useful=_flops,
        # The biases of about -4 cost bits of z: XLA's own result is off by up to 1.6e-2.
        tolerance=Tolerance(rel=2.5e-2),
    )
)
