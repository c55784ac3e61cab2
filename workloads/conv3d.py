"""Convolutions of volumes, each with the elementwise steps and norms that follow it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from workloads import draws
from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def conv3d_group_norm_mean(CONFIG, x, weight, conv_bias, gamma, beta):
    """Mean of the group norm of convolution + conv_bias over everything but the batch.

    Groups of consecutive channels; statistics over a group's channels and all positions, with the
    population variance; then gamma and beta per channel.
    """
    z = lax.conv_general_dilated(x, weight, (1, 1, 1), "VALID") + conv_bias[:, None, None, None]
    grouped = z.reshape(z.shape[0], CONFIG["num_groups"], -1, *z.shape[2:])
    mean = jnp.mean(grouped, axis=(2, 3, 4, 5), keepdims=True)
    var = jnp.var(grouped, axis=(2, 3, 4, 5), keepdims=True)
    y = ((grouped - mean) / jnp.sqrt(var + CONFIG["eps"])).reshape(z.shape)
    y = y * gamma[:, None, None, None] + beta[:, None, None, None]
    return jnp.mean(y, axis=(1, 2, 3, 4))


def conv_transpose3d_layer_norm_gelu_scaling(CONFIG, x, conv_weight, conv_bias, ln_weight, ln_bias):
    """gelu(layer norm over the width of the transposed convolution + conv_bias) * scaling.

    z[b,o,2d+i-1,2h+j-1,2w+l-1] += x[b,c,d,h,w] * conv_weight[c,o,i,j,l], positions outside
    dropped: a plain convolution, with flipped taps, of the input with zeros between its values,
    which are written out as in the published suite.
    """
    stride, edge = CONFIG["stride"], CONFIG["kernel"] - 1 - CONFIG["padding"]
    spread = [(size - 1) * stride + 1 for size in x.shape[2:]]
    apart = jnp.zeros((*x.shape[:2], *spread), x.dtype)
    apart = apart.at[:, :, ::stride, ::stride, ::stride].set(x)
    taps = jnp.flip(conv_weight, (2, 3, 4)).swapaxes(0, 1)
    z = lax.conv_general_dilated(apart, taps, (1, 1, 1), [(edge, edge)] * 3)
    z = z + conv_bias[:, None, None, None]
    mean = jnp.mean(z, axis=-1, keepdims=True)
    var = jnp.var(z, axis=-1, keepdims=True)
    y = (z - mean) / jnp.sqrt(var + CONFIG["eps"]) * ln_weight + ln_bias
    return jax.nn.gelu(y) * CONFIG["scaling_factor"]


def conv3d_mish_tanh(CONFIG, x, weight, bias):
    """tanh(mish(convolution + bias)) with mish(z) = z * tanh(log(1 + exp(z)))."""
    del CONFIG
    z = lax.conv_general_dilated(x, weight, (1, 1, 1), "VALID") + bias[:, None, None, None]
    return jnp.tanh(z * jnp.tanh(jnp.log(1 + jnp.exp(z))))


def _volumes(rng: np.random.Generator, shape: tuple[int, ...], draw: str) -> np.ndarray:
    """Volumes in which no sample, depth, row or column is like the others.

    `nominal` is normal, `shifted` is uniform around a positive level (the published volumes are
    uniform on [0, 1)), `structured` has blocks of 2 x 8 x 8 values with a level and a contrast
    each. In all of them contrast grows from sample to sample and towards the last depth, row and
    column, so that a last tile left out is missed.

    Levels are well below the contrast. After a norm, rounding counts by the ratio of the two.
    """
    batch, channels, depth, height, width = shape
    if draw == "shifted":
        x = np.float32(12**0.5) * (rng.random(shape, np.float32) - np.float32(0.4))
    else:
        x = draws.normal(rng, shape)
    if draw == "structured":
        blocks = (batch, channels, -(-depth // 2), -(-height // 8), -(-width // 8))
        contrast, level = draws.uniform(rng, 0.5, 1.25, blocks), draws.normal(rng, blocks, std=0.3)
        contrast, level = (
            a.repeat(2, 2).repeat(8, 3).repeat(8, 4)[:, :, :depth, :height, :width]
            for a in (contrast, level)
        )
        x = x * contrast + level
    x *= np.linspace(0.85, 1.15, depth, dtype=np.float32)[:, None, None]
    x *= np.linspace(0.85, 1.15, height, dtype=np.float32)[:, None]
    x *= np.linspace(0.85, 1.15, width, dtype=np.float32)
    return x * np.linspace(0.75, 1.25, batch, dtype=np.float32).reshape(-1, 1, 1, 1, 1)


def _filters(rng: np.random.Generator, shape: tuple[int, ...], scale=1.0) -> np.ndarray:
    """Filters whose output has about `scale` times the magnitude of the input."""
    return draws.normal(rng, shape, std=scale / np.sqrt(np.prod(shape[1:])))


def _generate_group_norm(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Levels of the samples' channels, and gammas that differ within a group.

    The published gammas are all one and the betas zero: the mean of a normalised tensor is then
    zero, whatever the input. With gammas that differ within a group the result depends on how the
    group's channels lie to each other, and the levels make that different for every sample. The
    filters are small in some groups, so that epsilon matters there. The last two depths and rows
    are brighter and the last two columns negative: without such a border the means of the channels
    cannot tell a filter from its mirror image.

    A group's gammas nearly sum to zero: a mean rounded to bfloat16 shifts all values of the group
    alike, and counts by that sum. Of beta only the mean matters, and of conv_bias only how it
    differs within a group.
    """
    shape, out = preset.args["x"].shape, preset.config["Cout"]
    groups = preset.config["num_groups"]
    x = _volumes(rng, shape, draw) + draws.normal(rng, (*shape[:2], 1, 1, 1))
    x[:, :, -2:] *= 2
    x[..., -2:, :] *= 3
    x[..., -2:] *= -3
    magnitude = np.float32(10) ** rng.permutation(np.linspace(-3.2, 0.3, groups))
    magnitude = magnitude.astype(np.float32).repeat(out // groups)
    gamma = (draws.uniform(rng, 1, 3, out) * (-1) ** np.arange(out)).reshape(groups, -1)
    gamma -= np.float32(0.7) * gamma.mean(1, keepdims=True)
    return {
        "x": x,
        "weight": _filters(rng, preset.args["weight"].shape) * magnitude[:, None, None, None, None],
        "conv_bias": draws.normal(rng, out, std=0.5) * magnitude,
        "gamma": gamma.reshape(-1),
        "beta": draws.normal(rng, out, mean=0.2, std=0.3),
    }


def _generate_transposed(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Channels of very different magnitude, so that statistics and epsilon matter.

    The published filters have unit variance, so that epsilon does nothing, and the norm's scale is
    one and its shift zero. conv_bias is constant along the normalised axis: it has no effect on
    the result, whatever its values. It is drawn in proportion to the magnitude of its channel,
    since a bias far above the channel's values would take all their bits in bfloat16, in the
    published operator too.
    """
    out, taps = preset.config["Cout"], preset.args["conv_weight"].shape
    width = preset.config["Wo"]
    magnitude = np.float32(10) ** rng.permutation(np.linspace(-3, 0.3, out))
    magnitude = magnitude.astype(np.float32)
    # An output touches 2 x 2 x 2 of the taps of every input channel.
    weight = draws.normal(rng, taps, std=(8 * taps[0]) ** -0.5) * magnitude[:, None, None, None]
    return {
        "x": _volumes(rng, preset.args["x"].shape, draw),
        "conv_weight": weight,
        "conv_bias": draws.uniform(rng, -0.5, 0.5, out) * magnitude,
        "ln_weight": draws.uniform(rng, 0.5, 1.5, width),
        "ln_bias": draws.uniform(rng, -0.8, 0.8, width),
    }


def _generate_mish(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
    """Filters and biases that are not all zero, as the published ones are.

    Values mostly between -3 and 3, where mish bends and tanh is not flat. Far below that the
    published log(1 + exp(z)) has no bits left in bfloat16.
    """
    out = preset.config["Cout"]
    return {
        "x": _volumes(rng, preset.args["x"].shape, draw),
        "weight": _filters(rng, preset.args["weight"].shape, 0.8),
        "bias": draws.uniform(rng, -0.25, 1.5, out),
    }


def _sizes(B: int, Cin: int, D: int, H: int, W: int, Cout: int) -> dict[str, int]:
    """Sizes of a valid convolution with filters of 3 x 3 x 3."""
    outputs = {"Do": D - 2, "Ho": H - 2, "Wo": W - 2}
    return {"B": B, "Cin": Cin, "D": D, "H": H, "W": W, "Cout": Cout, "k": 3, **outputs}


def _doubling_sizes(B: int, Cin: int, D: int, H: int, W: int, Cout: int) -> dict[str, int]:
    """Sizes of a transposed convolution that doubles every spatial axis."""
    outputs = {"Do": 2 * D, "Ho": 2 * H, "Wo": 2 * W}
    return {"B": B, "Cin": Cin, "D": D, "H": H, "W": W, "Cout": Cout, "k": 4, "s": 2, **outputs}


def _shapes(*per_channel: str):
    def shapes(s):
        return {
            "x": ArraySpec((s["B"], s["Cin"], s["D"], s["H"], s["W"]), "bfloat16"),
            "weight": ArraySpec((s["Cout"], s["Cin"], s["k"], s["k"], s["k"]), "bfloat16"),
            **{name: ArraySpec((s["Cout"],), "bfloat16") for name in per_channel},
        }

    return shapes


def _transposed_shapes(s):
    return {
        "x": ArraySpec((s["B"], s["Cin"], s["D"], s["H"], s["W"]), "bfloat16"),
        "conv_weight": ArraySpec((s["Cin"], s["Cout"], s["k"], s["k"], s["k"]), "bfloat16"),
        "conv_bias": ArraySpec((s["Cout"],), "bfloat16"),
        "ln_weight": ArraySpec((s["Wo"],), "bfloat16"),
        "ln_bias": ArraySpec((s["Wo"],), "bfloat16"),
    }


def _flops(s) -> int:
    return 2 * s["B"] * s["Cout"] * s["Do"] * s["Ho"] * s["Wo"] * s["Cin"] * s["k"] ** 3


_PUBLISHED_NAMES = {
    "batch_size": "B",
    "in_channels": "Cin",
    "out_channels": "Cout",
    "kernel_size": "k",
}

register(
    Workload(
        id="conv3d_group_norm_mean",
        number="25k",
        upstream_name="Conv3d_GroupNorm_Mean",
        family="conv",
        model="KernelBench level 2, problem 23",
        summary=(
            "A 3 x 3 x 3 convolution with bias, its group norm (8 groups of channels), and the "
            "mean of each sample: one number a sample."
        ),
        reference=conv3d_group_norm_mean,
        shapes=_shapes("conv_bias", "gamma", "beta"),
        sizes={
            "v6e": _sizes(128, 3, 24, 32, 32, 24),
            "tiles": _sizes(4, 3, 24, 32, 32, 24),
            "varied": _sizes(6, 3, 6, 12, 48, 24),
        },
        constants={"num_groups": 8, "eps": 1e-5},
        published_names={**_PUBLISHED_NAMES, "num_groups": "num_groups"},
        generate=_generate_group_norm,
        flops=_flops,
        flops_useful=_flops,
        # Of a handful of numbers XLA may get all right by luck; its usual error is 3e-3.
        tolerance=Tolerance(floor=6e-3),
    )
)

register(
    Workload(
        id="conv_transpose3d_layer_norm_gelu_scaling",
        number="28k",
        upstream_name="ConvTranspose3d_LayerNorm_GELU_Scaling",
        family="conv",
        model="KernelBench level 2, problem 34",
        summary=(
            "A transposed 4 x 4 x 4 convolution of stride 2 and padding 1 with bias, layer norm "
            "over the output's width (the last axis, not the channels), gelu (tanh form), and a "
            "constant factor."
        ),
        reference=conv_transpose3d_layer_norm_gelu_scaling,
        shapes=_transposed_shapes,
        sizes={
            "v6e": _doubling_sizes(32, 32, 16, 32, 32, 64),
            "tiles": _doubling_sizes(1, 32, 2, 32, 32, 64),
            "varied": _doubling_sizes(2, 6, 3, 6, 24, 12),
        },
        constants={"stride": 2, "padding": 1, "kernel": 4, "eps": 1e-5, "scaling_factor": 1.0},
        published_names={
            "batch_size": "B",
            "in_channels": "Cin",
            "out_channels": "Cout",
            "kernel_size": "k",
            "stride": "stride",
            "padding": "padding",
            "bias": 1,
            "eps": "eps",
            "scaling_factor": "scaling_factor",
        },
        generate=_generate_transposed,
        flops=_flops,
        # Without the zeros between the inputs: 2 x 2 x 2 of the taps for each output.
        flops_useful=lambda s: (
            2 * s["B"] * s["Cin"] * s["Cout"] * s["D"] * s["H"] * s["W"] * s["k"] ** 3
        ),
        # XLA's own eight roundings reach 2.4e-2 among millions of elements.
        tolerance=Tolerance(rel=3.6e-2),
    )
)

register(
    Workload(
        id="conv3d_mish_tanh",
        number="33k",
        upstream_name="Conv3d_Mish_Tanh",
        family="conv",
        model="KernelBench level 2, problem 47",
        summary="A 3 x 3 x 3 convolution with bias, mish, then tanh.",
        reference=conv3d_mish_tanh,
        shapes=_shapes("bias"),
        sizes={
            "v6e": _sizes(16, 32, 32, 64, 64, 64),
            "tiles": _sizes(1, 32, 8, 64, 64, 64),
            "varied": _sizes(2, 12, 6, 12, 48, 24),
        },
        published_names=_PUBLISHED_NAMES,
        generate=_generate_mish,
        flops=_flops,
        flops_useful=_flops,
        # The published softplus, log(1 + exp(z)), loses its small terms in bfloat16.
        tolerance=Tolerance(rel=5.4e-2),
    )
)
