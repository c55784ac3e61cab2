"""Kernels that do less than the whole convolution, norm or reduction must fail."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import workloads
from jaxbench_env.evaluator.judge import numerics
from jaxbench_env.evaluator.judge.compare import compare

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

PRESET = "varied"
IMAGES = (
    "conv2d_relu_bias_add",
    "conv2d_instance_norm_divide",
    "conv2d_activation_batch_norm",
    "conv2d_gelu_global_avg_pool",
    "conv2d_group_norm_tanh_hard_swish_residual_add_log_sum_exp",
)
VOLUMES = (
    "conv3d_group_norm_mean",
    "conv_transpose3d_layer_norm_gelu_scaling",
    "conv3d_mish_tanh",
)
# A bias that is constant along the axes of the norm after it is taken away again.
WITHOUT_EFFECT = {
    "conv2d_instance_norm_divide": {"conv_bias"},
    "conv_transpose3d_layer_norm_gelu_scaling": {"conv_bias"},
}
# Its mean is all that a mean over the channels shows of a shift.
ONLY_THE_MEAN = {"conv3d_group_norm_mean": {"beta"}}


def cases(*ids, seeds=(0,)):
    """All draws of some workloads."""
    return [(name, draw, seed) for name in ids for draw in workloads.DRAWS for seed in seeds]


@functools.cache
def expected(case):
    """Inputs, the reference in float32 and XLA's own result, as the judge computes them."""
    workload_id, draw, seed = case
    return numerics.expected(workloads.get(workload_id), PRESET, draw, seed)


@functools.cache
def exact(case):
    """The inputs by name, floating ones as float32."""
    names = workloads.get(case[0]).presets[PRESET].args
    arrays = (a if a.dtype == np.int32 else a.astype(np.float32) for a in expected(case)[0])
    return dict(zip(names, arrays, strict=True))


def rerun(case, **changed):
    """The reference in float32 on the case's inputs, some of them replaced."""
    arrays = {**exact(case), **changed}
    return np.asarray(numerics.references(workloads.get(case[0]), PRESET)[0](*arrays.values()))


def excess(case, out):
    """By what factor the judge's rule is broken: at most one for a result that passes."""
    _, ref, xla = expected(case)
    out = np.asarray(out)
    assert out.shape == ref.shape
    tolerance = workloads.get(case[0]).tolerance
    check = compare(out, ref, xla, tolerance, preset=PRESET, draw=case[1])
    return max(check.max_ratio / check.limit, check.rms_error / check.rms_limit)


def xla_excess(case):
    """The same for XLA's own result: the worst of this case and three more seeds."""
    more = [(*case[:2], case[2] + i) for i in range(4)]
    return max(excess(each, expected(each)[2]) for each in more)


def accepted(case, outs):
    """Names of the results that pass."""
    return [name for name, out in outs.items() if excess(case, out) <= 1]


def constants(ref):
    """Results that hardly depend on the inputs."""
    outs = {
        "zeros": np.zeros_like(ref),
        "ones": np.ones_like(ref),
        "mean": np.full_like(ref, ref.mean()),
    }
    for axis in range(ref.ndim):
        if ref.shape[axis] > 1:
            mean = ref.mean(axis, keepdims=True)
            outs[f"mean of axis {axis}"] = np.broadcast_to(mean, ref.shape)
            outs[f"axis {axis} rotated"] = np.roll(ref, 1, axis)
            first = ref[(slice(None),) * axis + (slice(0, 1),)]
            outs[f"first entry of axis {axis}"] = np.broadcast_to(first, ref.shape)
    return outs


def blocks_left_out(ref):
    """Results of which the end of one axis is zero, or what the entries before it are.

    The end is the last entry, or the last two where an entry is one number: one may be near zero.
    """
    outs, n = {}, 1 + (ref.ndim == 1)
    for axis in range(ref.ndim):
        if ref.shape[axis] > 1:
            last = (slice(None),) * axis + (slice(-n, None),)
            before = (slice(None),) * axis + (slice(-2 * n, -n),)
            for what, fill in (("zero", 0), ("repeated", ref[before])):
                out = ref.copy()
                out[last] = fill
                outs[f"last of axis {axis} {what}"] = out
    return outs


def ignoring_inputs(case, without_effect=(), only_the_mean=()):
    """Results of a kernel to which one input looks like zeros, ones or its mean."""
    outs = {}
    for name, array in exact(case).items():
        if name in without_effect:
            continue
        for value in (0, 1) if name in only_the_mean else (0, 1, array.mean()):
            changed = np.full_like(array, value)
            if not np.array_equal(changed, array):
                outs[f"{name} replaced by {value:.3g}"] = rerun(case, **{name: changed})
    return outs


def _weight_name(case):
    return "conv_weight" if "conv_weight" in exact(case) else "weight"


every = pytest.mark.parametrize("case", cases(*IMAGES, *VOLUMES), ids=str)


def _of(*ids):
    return pytest.mark.parametrize("case", cases(*ids), ids=str)


@every
def test_honest_results_pass(case):
    ref = expected(case)[1]
    assert xla_excess(case) <= 0.7
    assert excess(case, jnp.asarray(ref, jnp.bfloat16)) <= 1


@every
def test_constant_results_fail(case):
    assert not accepted(case, constants(expected(case)[1]))


@every
def test_a_block_left_out_fails(case):
    assert not accepted(case, blocks_left_out(expected(case)[1]))


@every
def test_ignoring_an_input_fails(case):
    exempt = (kind.get(case[0], ()) for kind in (WITHOUT_EFFECT, ONLY_THE_MEAN))
    assert not accepted(case, ignoring_inputs(case, *exempt))


@every
def test_fewer_or_other_taps_fail(case):
    name = _weight_name(case)
    weight = exact(case)[name]
    spatial = tuple(range(2, weight.ndim))
    centre, last = np.zeros_like(weight), weight.copy()
    middle = np.s_[..., *[1] * len(spatial)]
    centre[middle] = weight[middle]
    last[..., -1] = 0
    channels = np.moveaxis(weight.copy(), int("transpose" not in case[0]), 0)
    channels[-1] = 0
    taps = {
        "centre tap": centre,
        "last column of taps left out": last,
        "last input channel left out": np.moveaxis(channels, 0, int("transpose" not in case[0])),
        "flipped taps": np.flip(weight, spatial),
        "transposed taps": np.swapaxes(weight, -1, -2),
        "mean tap": np.broadcast_to(weight.mean(spatial, keepdims=True), weight.shape),
    }
    outs = {what: rerun(case, **{name: taps[what].copy()}) for what in taps}
    assert not accepted(case, outs)


@every
def test_a_part_of_the_input_fails(case):
    """Samples mistaken for each other, and inputs whose last row, column or channel is missing."""
    x = exact(case)["x"]
    outs = {"other sample": rerun(case, x=np.roll(x, 1, 0))}
    for axis in range(1, x.ndim):
        part = x.copy()
        part[(slice(None),) * axis + (-1,)] = 0
        outs[f"last of axis {axis}"] = rerun(case, x=part)
    assert not accepted(case, outs)


def _channels(array, ndim=2):
    return array.reshape(-1, *(1,) * ndim)


def _convolution(case):
    """The convolution with its bias, in float32."""
    values = exact(case)
    ndim = values["x"].ndim - 2
    z = np.asarray(_convolve(values["x"], values[_weight_name(case)]))
    return z + _channels(values.get("conv_bias", values.get("bias")), ndim)


@jax.jit
def _convolve(x, weight):
    return lax.conv_general_dilated(
        x, weight, (1,) * (x.ndim - 2), "VALID", precision=lax.Precision.HIGHEST
    )


def _normalised(z, axes, eps=1e-5, of=None):
    """Norm with the statistics of the same array, or of another one in its place."""
    of = z if of is None else of
    return (z - of.mean(axes, keepdims=True)) / np.sqrt(of.var(axes, keepdims=True) + eps)


def _relu(z):
    return np.maximum(z, 0)


def _gelu(z):
    return 0.5 * z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))


def _swish(z):
    return z / (1 + np.exp(-z))


def _log_sum_exp(z):
    peak = z.max(1, keepdims=True)
    return peak + np.log(np.exp(z - peak).sum(1, keepdims=True))


def _mish(z):
    return z * np.tanh(np.logaddexp(z, 0))


@_of("conv2d_relu_bias_add")
def test_relu_and_bias_in_another_form_fail(case):
    values, z = exact(case), _convolution(case)
    bias, conv_bias = values["bias"], _channels(values["conv_bias"])
    outs = {
        "no relu": z + bias,
        "bias before relu": _relu(z + bias),
        "no first bias": _relu(z - conv_bias) + bias,
        "biases swapped": _relu(z - conv_bias + bias) + conv_bias,
        "leaky relu": np.maximum(z, 0.01 * z) + bias,
        "gelu": _gelu(z) + bias,
    }
    assert not accepted(case, outs)


@_of("conv2d_instance_norm_divide")
def test_instance_norm_that_does_less_fails(case):
    z, values = _convolution(case), exact(case)
    scale, shift = _channels(values["in_weight"]), _channels(values["in_bias"])
    plane, rows = (2, 3), z.shape[2]
    normalised = {
        "no statistics": z,
        "no mean": z / np.sqrt(z.var(plane, keepdims=True) + 1e-5),
        "mean only": z - z.mean(plane, keepdims=True),
        "no epsilon": _normalised(z, plane, 0),
        "a larger epsilon": _normalised(z, plane, 1e-3),
        "raw second moment": (z - z.mean(plane, keepdims=True))
        / np.sqrt((z * z).mean(plane, keepdims=True) + 1e-5),
        "statistics of half a plane": _normalised(z, plane, of=z[:, :, : rows // 2]),
        "statistics of all but the last rows": _normalised(z, plane, of=z[:, :, :-3]),
        "statistics of the batch": _normalised(z, (0, 2, 3)),
        "statistics of the channels": _normalised(z, (1,)),
        "statistics of another sample": _normalised(z, plane, of=np.roll(z, 1, 0)),
    }
    outs = {name: (y * scale + shift) / 2 for name, y in normalised.items()}
    outs["no division"] = 2 * expected(case)[1]
    assert not accepted(case, outs)


@_of("conv2d_activation_batch_norm")
def test_batch_norm_that_does_less_fails(case):
    z, values = _convolution(case), exact(case)
    scale, shift = _channels(values["bn_weight"]), _channels(values["bn_bias"])
    a, batch = _mish(z), (0, 2, 3)
    normalised = {
        "no statistics": a,
        "mean only": a - a.mean(batch, keepdims=True),
        "no activation": _normalised(z, batch),
        "relu": _normalised(_relu(z), batch),
        "swish": _normalised(_swish(z), batch),
        "norm before activation": _mish(_normalised(z, batch)),
        "no epsilon": _normalised(a, batch, 0),
        "a larger epsilon": _normalised(a, batch, 1e-3),
        "statistics of each sample": _normalised(a, (2, 3)),
        "statistics of the first sample": _normalised(a, batch, of=a[:1]),
        "statistics of all but the last sample": _normalised(a, batch, of=a[:-1]),
        "statistics of all but the last rows": _normalised(a, batch, of=a[:, :, :-3]),
        "statistics of the channel before": _normalised(a, batch, of=np.roll(a, 1, 1)),
    }
    assert not accepted(case, {name: y * scale + shift for name, y in normalised.items()})


@_of("conv2d_gelu_global_avg_pool")
def test_pooling_that_does_less_fails(case):
    z = _convolution(case)
    a, count = _gelu(z), z.shape[2] * z.shape[3]
    outs = {
        "gelu of the mean": _gelu(z.mean((2, 3))),
        "no activation": z.mean((2, 3)),
        "relu": _relu(z).mean((2, 3)),
        "sum": a.sum((2, 3)),
        "padded count": a.sum((2, 3)) / (24 * 48),
        "last row left out": a[:, :, :-1].sum((2, 3)) / count,
        "last columns left out": a[..., :-1].sum((2, 3)) / count,
        "half the plane": a[:, :, : z.shape[2] // 2].mean((2, 3)),
        "maximum": a.max((2, 3)),
    }
    assert not accepted(case, outs)


@_of("conv2d_group_norm_tanh_hard_swish_residual_add_log_sum_exp")
def test_log_sum_exp_of_less_fails(case):
    z, values = _convolution(case), exact(case)
    scale, shift = _channels(values["gn_weight"]), _channels(values["gn_bias"])

    def norm(groups, of=None, eps=1e-5):
        split = z.reshape(z.shape[0], groups, -1, *z.shape[2:])
        of = split if of is None else of(split)
        return _normalised(split, (2, 3, 4), eps, of).reshape(z.shape)

    def swish(t):
        return t * (t + 3) / 6

    def h(y):
        return swish(np.tanh(y * scale + shift))

    y = norm(16)
    t = np.tanh(y * scale + shift)
    added = {
        "no residual norm": np.zeros_like(z),
        "no hard swish": t,
        "no tanh": swish(np.clip(y * scale + shift, -3, 3)),
        "no scale": swish(np.tanh(y + shift)),
        "no statistics": h(z),
        "one group": h(norm(1)),
        "every channel a group": h(norm(48)),
        "8 groups": h(norm(8)),
        "statistics of half a plane": h(norm(16, lambda a: a[:, :, :, :11])),
        "statistics of another group": h(norm(16, lambda a: np.roll(a, 1, 1))),
    }
    reduce = _log_sum_exp
    outs = {name: reduce(z + part) for name, part in added.items()}
    whole = z + swish(t)
    outs["residual without bias"] = reduce(whole - _channels(values["conv_bias"]))
    outs["only the normalised part"] = reduce(swish(t))
    outs["maximum"] = whole.max(1, keepdims=True)
    outs["sum of exponentials"] = np.exp(whole).sum(1, keepdims=True)
    outs["last channel left out"] = reduce(whole[:, :-1])
    outs["mean of exponentials"] = reduce(whole) - np.log(48)
    assert not accepted(case, outs)


@_of("conv3d_group_norm_mean")
def test_group_norm_mean_that_does_less_fails(case):
    z, values = _convolution(case), exact(case)
    scale, shift = _channels(values["gamma"], 3), _channels(values["beta"], 3)

    def norm(groups, of=None, eps=1e-5):
        split = z.reshape(z.shape[0], groups, -1, *z.shape[2:])
        of = split if of is None else of(split)
        return _normalised(split, (2, 3, 4, 5), eps, of).reshape(z.shape)

    y, rest = norm(8), (1, 2, 3, 4)
    count = z[0].size
    everything = y * scale + shift
    normalised = {
        "no statistics": z,
        "one group": norm(1),
        "4 groups": norm(4),
        "every channel a group": norm(24),
        "no epsilon": norm(8, eps=0),
        "a larger epsilon": norm(8, eps=1e-3),
        "statistics of half the depth": norm(8, lambda a: a[:, :, :, :2]),
        "statistics of another sample": norm(8, lambda a: np.roll(a, 1, 0)),
    }
    outs = {name: (y * scale + shift).mean(rest) for name, y in normalised.items()}
    outs |= {
        "mean of beta": np.full(z.shape[0], values["beta"].mean()),
        "last depth left out": everything[:, :, :-1].sum(rest) / count,
        "last rows left out": everything[:, :, :, :-2].sum(rest) / count,
        "last channel left out": everything[:, :-1].sum(rest) / count,
        "sum": everything.sum(rest),
    }
    assert not accepted(case, outs)


def _transposed(x, weight):
    """The transposed convolution as a sum over its taps, without zeros between the inputs."""
    b, _, *extent = x.shape
    k = weight.shape[-1]
    out = np.zeros((b, weight.shape[1], *(2 * n + 2 for n in extent)), np.float32)
    for i, j, m in np.ndindex(k, k, k):
        place = tuple(slice(t, t + 2 * n, 2) for t, n in zip((i, j, m), extent, strict=True))
        out[(slice(None), slice(None), *place)] += np.einsum(
            "bcdhw,co->bodhw", x, weight[:, :, i, j, m], optimize=True
        )
    return out[:, :, 1:-1, 1:-1, 1:-1]


@_of("conv_transpose3d_layer_norm_gelu_scaling")
def test_layer_norm_of_a_transposed_convolution_that_does_less_fails(case):
    values = exact(case)
    z = _transposed(values["x"], values["conv_weight"])
    scale, shift = values["ln_weight"], values["ln_bias"]
    y = _normalised(z, (-1,))
    assert excess(case, _gelu(y * scale + shift)) <= 0.2
    doubled = z[..., ::2, ::2, ::2].repeat(2, 2).repeat(2, 3).repeat(2, 4)
    normalised = {
        "no statistics": z,
        "no mean": z / np.sqrt(z.var(-1, keepdims=True) + 1e-5),
        "no epsilon": _normalised(z, (-1,), 0),
        "a larger epsilon": _normalised(z, (-1,), 1e-3),
        "norm over the channels": _normalised(z, (1,)),
        "norm over the plane": _normalised(z, (-1, -2)),
        "statistics of half the width": _normalised(z, (-1,), of=z[..., :24]),
        "statistics of even columns": _normalised(z, (-1,), of=z[..., ::2]),
        "even positions twice": _normalised(doubled, (-1,)),
    }
    outs = {name: _gelu(a * scale + shift) for name, a in normalised.items()}
    outs |= {
        "no gelu": y * scale + shift,
        "relu": _relu(y * scale + shift),
        "swish": _swish(y * scale + shift),
    }
    assert not accepted(case, outs)


@_of("conv3d_mish_tanh")
def test_another_activation_fails(case):
    z = _convolution(case)
    outs = {
        "identity": z,
        "no tanh": _mish(z),
        "tanh alone": np.tanh(z),
        "tanh of relu": np.tanh(_relu(z)),
        "tanh of swish": np.tanh(_swish(z)),
        "tanh of gelu": np.tanh(_gelu(z)),
        "mish of tanh": _mish(np.tanh(z)),
        "no bias": np.tanh(_mish(z - _channels(exact(case)["bias"], 3))),
    }
    assert not accepted(case, outs)
