"""Linear layers reduced over each row: kernels that do less than all of it must fail."""

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
    shortened,
)
from jax.nn import logsumexp, relu, sigmoid, silu, softmax, softplus

import workloads

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

gelu = functools.partial(jax.nn.gelu, approximate=True)
row_sum = functools.partial(jnp.sum, axis=1, keepdims=True)
row_mean = functools.partial(jnp.mean, axis=1, keepdims=True)
row_max = functools.partial(jnp.max, axis=1, keepdims=True)
row_lse = functools.partial(logsumexp, axis=1, keepdims=True)


def _pool(z, size=16):
    return z.reshape(len(z), -1, size).mean(-1)


def _lse_mish(z, low=-10.0, high=10.0, mish=lambda v: v * jnp.tanh(softplus(v))):
    total = row_lse(jnp.clip(z, low, high))
    return total * mish(total)


# From the result z of the linear layer on: the right way, and others that change one step.
EPILOGUES = {
    "gemm_divide_sum_scaling": {
        "right": lambda z: row_sum(z / 2) * 1.5,
        "no division": lambda z: row_sum(z) * 1.5,
        "no factor": lambda z: row_sum(z / 2),
        "mean": lambda z: row_mean(z / 2) * 1.5,
        "sum without the last 2 %": lambda z: row_sum(z[:, :-32] / 2) * 1.5,
    },
    "matmul_sum_max_avg_pool_log_sum_exp_log_sum_exp": {
        "right": row_sum,
        "maximum": row_max,
        "mean": row_mean,
        "log-sum-exp": row_lse,
        "sum without the last 2 %": lambda z: row_sum(z[:, :-32]),
    },
    "matmul_scale_residual_add_clamp_log_sum_exp_mish": {
        "right": lambda z: _lse_mish(4 * z),
        "no residual": lambda z: _lse_mish(2 * z),
        "no upper clamp": lambda z: _lse_mish(4 * z, high=np.inf),
        "log-sum-exp alone": lambda z: row_lse(jnp.clip(4 * z, -10, 10)),
        "no mish": lambda z: row_lse(jnp.clip(4 * z, -10, 10)) ** 2,
        "clamp before the residual": lambda z: _lse_mish(2 * jnp.clip(2 * z, -10, 10), -20, 20),
        "maximum for log-sum-exp": lambda z: row_max(jnp.clip(4 * z, -10, 10)) ** 2,
        "mean for log-sum-exp": lambda z: row_mean(jnp.clip(4 * z, -10, 10)) ** 2,
        "swish for mish": lambda z: _lse_mish(4 * z, mish=silu),
        "no lower clamp": lambda z: _lse_mish(4 * z, low=-np.inf),
        "log-sum-exp without the last 128": lambda z: _lse_mish(4 * z[:, :-128]),
    },
    "matmul_sigmoid_sum": {
        "right": lambda z: row_sum(sigmoid(z)),
        "mean": lambda z: row_mean(sigmoid(z)),
        "sigmoid of the mean": lambda z: z.shape[1] * sigmoid(row_mean(z)),
        "no sigmoid": row_sum,
        "hard sigmoid": lambda z: row_sum(jnp.clip(z / 6 + 0.5, 0, 1)),
        "sum without the last 2 %": lambda z: row_sum(sigmoid(z[:, :-32])),
    },
    "matmul_dropout_softmax": {
        "right": lambda z: softmax(z, axis=1),
        "over the rows": lambda z: softmax(z, axis=0),
        "uniform": lambda z: jnp.full_like(z, 1 / z.shape[1]),
        "exponentials": jnp.exp,
        "sum of half a row": lambda z: jnp.exp(z - logsumexp(z[:, ::2], axis=1, keepdims=True)),
        "sums of blocks": lambda z: softmax(z.reshape(len(z), -1, 128)).reshape(z.shape),
        "mean of the sums": lambda z: jnp.exp(z) / jnp.exp(z).sum(1).mean(),
    },
    "gemm_max_subtract_gelu": {
        "right": lambda z: gelu(row_max(z) - row_mean(z)),
        "published": lambda z: 0 * row_max(z),
        "no mean": lambda z: gelu(row_max(z)),
        "no maximum": lambda z: gelu(row_mean(z)),
        "no gelu": lambda z: row_max(z) - row_mean(z),
        "swish for gelu": lambda z: silu(row_max(z) - row_mean(z)),
        "mean of all": lambda z: gelu(row_max(z) - z.mean()),
        "maximum of half a row": lambda z: gelu(row_max(z[:, ::2]) - row_mean(z)),
    },
    "matmul_avg_pool_gelu_scale_max": {
        "right": lambda z: jnp.max(gelu(_pool(z)) * 2, axis=1),
        "no pooling": lambda z: jnp.max(gelu(z) * 2, axis=1),
        "pools of 8": lambda z: jnp.max(gelu(_pool(z, 8)) * 2, axis=1),
        "gelu before the pooling": lambda z: jnp.max(_pool(gelu(z)) * 2, axis=1),
        "maximum before the gelu": lambda z: gelu(jnp.max(_pool(z), axis=1)) * 2,
        "no factor": lambda z: jnp.max(gelu(_pool(z)), axis=1),
        "no gelu": lambda z: jnp.max(_pool(z) * 2, axis=1),
        "relu": lambda z: jnp.max(relu(_pool(z)) * 2, axis=1),
        "mean for maximum": lambda z: jnp.mean(gelu(_pool(z)) * 2, axis=1),
        "mean of the row": lambda z: gelu(z.mean(1)) * 2,
        "first of each pool": lambda z: jnp.max(gelu(z[:, ::16]) * 2, axis=1),
        "first half of the pools": lambda z: jnp.max(gelu(_pool(z[:, :768])) * 2, axis=1),
    },
    "matmul_gelu_softmax": {
        "right": lambda z: softmax(gelu(z), axis=1),
        "no gelu": lambda z: softmax(z, axis=1),
        "relu": lambda z: softmax(relu(z), axis=1),
        "swish": lambda z: softmax(silu(z), axis=1),
        "over the rows": lambda z: softmax(gelu(z), axis=0),
        "uniform": lambda z: jnp.full_like(z, 1 / z.shape[1]),
        "gelu of the softmax": lambda z: gelu(softmax(z, axis=1)),
        "sums of blocks": lambda z: softmax(gelu(z).reshape(len(z), -1, 128)).reshape(z.shape),
        "mean of the sums": lambda z: jnp.exp(gelu(z)) / jnp.exp(gelu(z)).sum(1).mean(),
    },
}
TWO_LAYERS = "gemm_sigmoid_log_sum_exp"
IDS = (*EPILOGUES, TWO_LAYERS)


def _layer(workload_id, x, weight, *bias):
    preset = workloads.get(workload_id).presets["varied"]
    transposed = preset.args["weight"].shape[0] != preset.args["x"].shape[1]
    return x @ (weight.T if transposed else weight) + (bias[0] if bias else 0)


def _two_layers(x, w1, b1, w2, b2, *, act=sigmoid, reduce=lambda z: logsumexp(z, axis=1)):
    return reduce(act(x @ w1.T + b1) @ w2.T + b2)


def _epilogues(case):
    _, exact, _, _ = evaluate(*case)
    if case[0] != TWO_LAYERS:
        z = _layer(case[0], *exact)
        return {name: function(z) for name, function in EPILOGUES[case[0]].items()}
    x, w1, b1, w2, b2 = exact
    middle = w1.shape[0] // 2
    return {
        "right": _two_layers(*exact),
        "no sigmoid": _two_layers(*exact, act=lambda z: z),
        "tanh": _two_layers(*exact, act=jnp.tanh),
        "hard sigmoid": _two_layers(*exact, act=lambda z: jnp.clip(z / 6 + 0.5, 0, 1)),
        "linear sigmoid": _two_layers(*exact, act=lambda z: z / 4 + 0.5),
        "maximum": _two_layers(*exact, reduce=lambda z: z.max(1)),
        "logarithm of the mean": _two_layers(*exact) - np.log(len(b2)),
        "first half of the hidden features": _two_layers(
            x, w1[:middle], b1[:middle], w2[:, :middle], b2
        ),
        "all but 1 % of the hidden features": _two_layers(x, w1[:-16], b1[:-16], w2[:, :-16], b2),
        "first half of the outputs": _two_layers(x, w1, b1, w2[: len(b2) // 2], b2[: len(b2) // 2]),
    }


# What cannot make a difference by the operator's algebra.
ONLY_THROUGH_ITS_SUM = {
    # The bias is summed with the row: its mean says all of it.
    "matmul_sum_max_avg_pool_log_sum_exp_log_sum_exp": ("bias",),
}

# Only `shifted` has results of log-sum-exp near zero, where the lower clamp and mish count, and
# only the other draws reach the upper clamp.
WITHOUT_EFFECT = {
    ("matmul_scale_residual_add_clamp_log_sum_exp_mish", draw): names
    for draw, names in (
        ("nominal", ("no lower clamp", "no mish", "swish for mish")),
        ("shifted", ("no upper clamp",)),
        ("structured", ("no lower clamp", "no mish", "swish for mish")),
    )
}


def _outputs(case):
    """Everything that must fail."""
    _, _, ref, _ = evaluate(*case)
    outs = _epilogues(case)
    for name in ("right", *WITHOUT_EFFECT.get(case[:2], ())):
        del outs[name]
    outs |= constants(ref) | incomplete(ref) | shortened(case) | rearranged(case)
    outs |= ignoring(case, only_through_its_sum=ONLY_THROUGH_ITS_SUM.get(case[0], ()))
    return outs


@pytest.mark.parametrize("case", cases(*IDS, draws=("shifted",), seeds=(0,)), ids=str)
def test_the_epilogues_of_these_tests_are_thereferences(case):
    ref = evaluate(*case)[2]
    assert rms(_epilogues(case)["right"] - ref) < 1e-4 * rms(ref)


@pytest.mark.parametrize("case", cases(*IDS, seeds=(0,)), ids=str)
def test_kernels_that_do_less_fail(case):
    assert not passing(case, _outputs(case))


@pytest.mark.parametrize("case", cases(*IDS, seeds=range(4)), ids=str)
def test_what_xla_makes_of_the_reference_passes_with_a_margin(case):
    _, _, ref, xla = evaluate(*case)
    assert passes(case, jnp.asarray(ref, jnp.bfloat16))
    assert margin(case, xla) <= 0.7


def test_the_published_maximum_minus_its_mean_is_zero_for_any_input():
    case = ("gemm_max_subtract_gelu", "nominal", 0)
    workload = workloads.get(case[0], variant="published")
    out = workload.reference(workload.presets["varied"].config, *evaluate(*case)[1])
    assert out.shape == evaluate(*case)[2].shape and not out.any()


def test_every_reduction_of_the_module_is_here():
    from workloads import fused_reduction

    names = {w.id for w in workloads.every() if w.reference.__module__ == fused_reduction.__name__}
    assert names == set(IDS)
