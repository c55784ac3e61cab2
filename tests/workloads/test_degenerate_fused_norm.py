"""Linear layers with a normalisation: kernels that do less than all of it must fail."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from degenerate import (
    cases,
    constants,
    evaluate,
    ignoring,
    incomplete,
    margin,
    passes,
    passing,
    rearranged,
    rms,
    run,
    shortened,
)
from jax.nn import relu, sigmoid, silu, softmax

import workloads

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

gelu = functools.partial(jax.nn.gelu, approximate=True)


def _normalise(z, axis=-1, mean=None, variance=None):
    mean = z.mean(axis, keepdims=True) if mean is None else mean
    variance = z.var(axis, keepdims=True) if variance is None else variance
    return (z - mean) / np.sqrt(variance + 1e-5)


def _grouped(z, size, statistics=slice(None), **given):
    """The norm of groups of `size` features, with statistics of a part of each group's."""
    groups = z.reshape(len(z), -1, size)
    part = groups[..., statistics]
    given = {
        "mean": part.mean(-1, keepdims=True),
        "variance": part.var(-1, keepdims=True),
        **given,
    }
    return _normalise(groups, **given).reshape(z.shape)


def _norms(z, size):
    """The right norm of groups (first) and wrong ones."""
    groups = z.reshape(len(z), -1, size)
    before = {
        "mean": np.roll(groups.mean(-1, keepdims=True), 1, 1),
        "variance": np.roll(groups.var(-1, keepdims=True), 1, 1),
    }
    square = np.mean(groups * groups, -1, keepdims=True)
    # For larger groups the difference is within bfloat16's own error.
    sample = {"sample variance": _grouped(z, size, variance=groups.var(-1, keepdims=True, ddof=1))}
    return (sample if size <= 16 else {}) | {
        "right": _grouped(z, size),
        "no norm": z,
        "mean kept": _grouped(z, size, mean=0),
        "variance ignored": _grouped(z, size, variance=1),
        "mean square for the variance": _grouped(z, size, variance=square),
        "whole row": _normalise(z),
        "statistics of half a group": _grouped(z, size, slice(None, None, 2)),
        "statistics of the group before": _grouped(z, size, **before),
        "groups of half the size": _grouped(z, size // 2),
        "groups of twice the size": _grouped(z, 2 * size),
        "statistics of the row before": _grouped(
            z,
            size,
            mean=np.roll(groups.mean(-1, keepdims=True), 1, 0),
            variance=np.roll(groups.var(-1, keepdims=True), 1, 0),
        ),
    }


def _axis_norms(z, axis):
    """The right norm of an axis (first) and wrong ones."""
    mean, variance = z.mean(axis, keepdims=True), z.var(axis, keepdims=True)
    half = z[::2] if axis == 0 else z[:, ::2]
    return {
        "right": _normalise(z, axis),
        "no norm": z,
        "the other axis": _normalise(z, 1 - axis),
        "mean kept": _normalise(z, axis, mean=0),
        "variance ignored": _normalise(z, axis, variance=1),
        "mean square for the variance": _normalise(
            z, axis, mean, (z * z).mean(axis, keepdims=True)
        ),
        "statistics of the array": _normalise(z, axis, z.mean(), z.var()),
        "statistics of half": _normalise(
            z, axis, half.mean(axis, keepdims=True), half.var(axis, keepdims=True)
        ),
        "statistics of the neighbour": _normalise(
            z, axis, np.roll(mean, 1, 1 - axis), np.roll(variance, 1, 1 - axis)
        ),
    }


def _instance(x, y, w, b, iw, ib):
    z = x @ w.T + b
    outs = {name: (n * iw + ib + y) * y for name, n in _axis_norms(z, 1).items()}
    n = _normalise(z)
    return outs | {
        "published": (ib + y) * y,
        "no residual": (n * iw + ib) * y,
        "no factor": n * iw + ib + y,
    }


def _swish_group(x, w, b, gw, gb):
    z = x @ w
    outs = {name: n * gw + gb for name, n in _norms(silu(z) + b, 64).items()}
    return outs | {
        "no swish": _grouped(z + b, 64) * gw + gb,
        "bias before the swish": _grouped(silu(z + b), 64) * gw + gb,
        "relu": _grouped(relu(z) + b, 64) * gw + gb,
    }


def _batch(x, w, b, bw, bb):
    z = x @ w.T + b
    outs = {name: relu(gelu(n * bw + bb)) for name, n in _axis_norms(z, 0).items()}
    y = _normalise(z, 0) * bw + bb
    return outs | {"no relu": gelu(y), "no gelu": relu(y), "swish": relu(silu(y))}


def _group_min(x, w, lb, gw, gb, b):
    z = x @ w.T + lb

    def outer(y, least=np.min):
        return least(np.asarray(y), axis=1, keepdims=True) + b

    outs = {name: outer(n * gw + gb) for name, n in _norms(z, 16).items()}
    y = _grouped(z, 16) * gw + gb
    return outs | {
        "maximum": outer(y, np.max),
        "mean": outer(y, np.mean),
        "minimum of half": outer(y[:, ::2]),
        "minimum without the last 128": outer(y[:, :-128]),
        "minimum before the affine map": outer(_grouped(z, 16)),
    }


def _given(x, w, b, bs, bb, bm, bv, last):
    z = x @ w + b
    return z, {
        "right": bs * (z - bm) / np.sqrt(bv + 1e-5) + bb,
        "no norm": z,
        "no mean": bs * z / np.sqrt(bv) + bb,
        "variance for its root": bs * (z - bm) / bv + bb,
        "statistics of the batch": bs * _normalise(z, 0) + bb,
        "scale after its bias": (bs * (z - bm) / np.sqrt(bv)) + bb * bs,
    }


def _given_softmax(*arrays):
    scale = arrays[-1]
    z, ys = _given(*arrays)
    outs = {name: softmax(scale * y, axis=1) for name, y in ys.items()}
    return outs | {
        "over the rows": softmax(scale * ys["right"], axis=0),
        "uniform": np.full_like(z, 1 / z.shape[1]),
        "exponentials": np.exp(scale * ys["right"]),
    }


def _given_swish(*arrays):
    bias = arrays[-1]
    _, ys = _given(*arrays)
    outs = {name: silu(y + bias) for name, y in ys.items()}
    y = ys["right"] + bias
    return outs | {"no swish": y, "gelu": gelu(y), "sigmoid": sigmoid(y)}


def _group_swish(x, w, b, gw, gb, mw):
    z = x @ w.T + b
    outs = {name: silu(silu(n * gw + gb) * mw) for name, n in _norms(z, 32).items()}
    y = _grouped(z, 32) * gw + gb
    return outs | {
        "no last swish": silu(y) * mw,
        "no first swish": silu(y * mw),
        "multiplied after both": silu(silu(y)) * mw,
    }


# The right result ("right"), and others that change one step.
OUTPUTS = {
    "bmm_instance_norm_sum_residual_add_multiply": _instance,
    "matmul_swish_sum_group_norm": _swish_group,
    "gemm_batch_norm_gelu_relu": _batch,
    "gemm_group_norm_min_bias_add": _group_min,
    "gemm_batch_norm_scaling_softmax": _given_softmax,
    "gemm_group_norm_swish_multiply_swish": _group_swish,
    "matmul_batch_norm_bias_add_divide_swish": _given_swish,
}
IDS = tuple(OUTPUTS)

# A bias that is the same for all that a mean is taken of cancels.
CANCELS = {"gemm_batch_norm_gelu_relu": ("gemm_bias",)}


def _outputs(case):
    """Everything that must fail."""
    _, exact, ref, _ = evaluate(*case)
    outs = {name: np.asarray(out) for name, out in OUTPUTS[case[0]](*exact).items()}
    del outs["right"]
    outs |= constants(ref) | incomplete(ref) | shortened(case)
    outs |= ignoring(case, without_effect=CANCELS.get(case[0], ()))
    return outs | rearranged(case)


@pytest.mark.parametrize("case", cases(*IDS, draws=("shifted",), seeds=(0,)), ids=str)
def test_the_outputs_of_these_tests_are_thereferences(case):
    _, exact, ref, _ = evaluate(*case)
    assert rms(OUTPUTS[case[0]](*exact)["right"] - ref) < 1e-4 * rms(ref)


@pytest.mark.parametrize("case", cases(*IDS, seeds=(0,)), ids=str)
def test_kernels_that_do_less_fail(case):
    assert not passing(case, _outputs(case))


@pytest.mark.parametrize("case", cases(*IDS, seeds=range(4)), ids=str)
def test_what_xla_makes_of_the_reference_passes_with_a_margin(case):
    _, _, ref, xla = evaluate(*case)
    assert passes(case, jnp.asarray(ref, jnp.bfloat16))
    assert margin(case, xla) <= 0.7


@pytest.mark.parametrize("workload_id", CANCELS)
def test_a_bias_before_a_batch_norm_cancels(workload_id):
    case = (workload_id, "nominal", 0)
    _, exact, ref, _ = evaluate(*case)
    assert rms(run(workload_id, [*exact[:2], 0 * exact[2], *exact[3:]]) - ref) < 1e-5 * rms(ref)


def test_the_published_instance_norm_ignores_the_layer():
    case = ("bmm_instance_norm_sum_residual_add_multiply", "nominal", 0)
    workload = workloads.get(case[0], variant="published")
    x, y, *rest = evaluate(*case)[1]
    out = workload.reference(workload.presets["varied"].config, x, y, *rest)
    np.testing.assert_allclose(out, (rest[-1] + y) * y, rtol=1e-6)


def test_every_norm_of_the_module_is_here():
    from workloads import fused_norm

    names = {w.id for w in workloads.every() if w.reference.__module__ == fused_norm.__name__}
    assert names == set(IDS)
