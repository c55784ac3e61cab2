"""Linear layers with an elementwise epilogue: kernels that do less than all of it must fail."""

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
from jax.nn import relu, sigmoid, silu, softplus

import workloads

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

gelu = functools.partial(jax.nn.gelu, approximate=True)


def mish(z):
    return z * jnp.tanh(softplus(z))


# The right epilogue, and others that lack or change one step.
EPILOGUES = {
    "matmul_subtract_multiply_relu": {
        "right": lambda z: relu((z - 2) * 1.5),
        "no subtraction": lambda z: relu(z * 1.5),
        "no factor": lambda z: relu(z - 2),
        "no relu": lambda z: (z - 2) * 1.5,
        "factor before the subtraction": lambda z: relu(z * 1.5 - 2),
        "relu before the subtraction": lambda z: (relu(z) - 2) * 1.5,
    },
    "gemm_multiply_leaky_relu": {
        "right": lambda z: jnp.where(z >= 0, 2 * z, 0.2 * z),
        "no factor": lambda z: jnp.where(z >= 0, z, 0.1 * z),
        "relu": lambda z: relu(2 * z),
        "no activation": lambda z: 2 * z,
        "slope of 0.01": lambda z: jnp.where(z >= 0, 2 * z, 0.02 * z),
        "absolute value": lambda z: jnp.where(z >= 0, 2 * z, -0.2 * z),
    },
    "matmul_mish_mish": {
        "right": lambda z: mish(mish(z)),
        "mish once": mish,
        "no activation": lambda z: z,
        "mish three times": lambda z: mish(mish(mish(z))),
        "swish twice": lambda z: silu(silu(z)),
        "relu": relu,
    },
    "matmul_scaling_residual_add": {
        "right": lambda z: 0.5 * z + z,
        "no residual": lambda z: 0.5 * z,
        "no scaling": lambda z: z + z,
        "nothing after the layer": lambda z: z,
    },
    "gemm_scaling_hardtanh_gelu": {
        "right": lambda z: gelu(jnp.clip(0.5 * z, -2, 2)),
        "no clip": lambda z: gelu(0.5 * z),
        "no scaling": lambda z: gelu(jnp.clip(z, -2, 2)),
        "clip before the scaling": lambda z: gelu(0.5 * jnp.clip(z, -2, 2)),
        "no gelu": lambda z: jnp.clip(0.5 * z, -2, 2),
        "relu": lambda z: relu(jnp.clip(0.5 * z, -2, 2)),
        "swish": lambda z: silu(jnp.clip(0.5 * z, -2, 2)),
        "clip at one": lambda z: gelu(jnp.clip(0.5 * z, -1, 1)),
    },
    "matmul_swish_scaling": {
        "right": lambda z: 2 * silu(z),
        "no factor": silu,
        "sigmoid": lambda z: 2 * sigmoid(z),
        "no swish": lambda z: 2 * z,
        "gelu": lambda z: 2 * gelu(z),
        "factor before the swish": lambda z: silu(2 * z),
    },
    "gemm_add_relu": {
        "right": relu,
        "no relu": lambda z: z,
        "gelu": gelu,
        "absolute value": jnp.abs,
    },
    "matmul_divide_gelu": {
        "right": lambda z: gelu(z / 10),
        "no division": gelu,
        "no gelu": lambda z: z / 10,
        "relu": lambda z: relu(z / 10),
        "swish": lambda z: silu(z / 10),
        "division after the gelu": lambda z: gelu(z) / 10,
    },
    "matmul_add_swish_tanh_gelu_hardtanh": {
        "right": lambda z: gelu(jnp.tanh(silu(z))),
        "no swish": lambda z: gelu(jnp.tanh(z)),
        "no tanh": lambda z: jnp.clip(gelu(silu(z)), -1, 1),
        "no gelu": lambda z: jnp.tanh(silu(z)),
        "relu for gelu": lambda z: relu(jnp.tanh(silu(z))),
        "tanh before the swish": lambda z: gelu(silu(jnp.tanh(z))),
    },
}
IDS = tuple(EPILOGUES)


def _outputs(case):
    """Everything that must fail."""
    _, (x, weight, *vectors), ref, _ = evaluate(*case)
    epilogue = {**EPILOGUES[case[0]]}
    right = epilogue.pop("right")
    product = x @ weight
    bias = sum(vectors)
    outs = {name: function(product + bias) for name, function in epilogue.items()}
    outs["bias twice"] = right(product + 2 * bias)
    outs["bias after the rest"] = right(product) + bias
    outs["x itself"] = np.tile(x, (1, -(-ref.shape[1] // x.shape[1])))[:, : ref.shape[1]]
    outs["first half of K twice"] = right(
        2 * x[:, : x.shape[1] // 2] @ weight[: x.shape[1] // 2] + bias
    )
    outs["bias of the block before"] = right(product + np.roll(bias, 128))
    outs |= constants(ref) | incomplete(ref) | ignoring(case) | shortened(case) | rearranged(case)
    return outs


@pytest.mark.parametrize("case", cases(*IDS, draws=("shifted",), seeds=(0,)), ids=str)
def test_the_epilogues_of_these_tests_are_thereferences(case):
    _, (x, weight, *vectors), ref, _ = evaluate(*case)
    out = EPILOGUES[case[0]]["right"](x @ weight + sum(vectors))
    assert rms(out - ref) < 1e-4 * rms(ref)


@pytest.mark.parametrize("case", cases(*IDS, seeds=(0,)), ids=str)
def test_kernels_that_do_less_fail(case):
    assert not passing(case, _outputs(case))


@pytest.mark.parametrize("case", cases(*IDS, seeds=range(4)), ids=str)
def test_what_xla_makes_of_the_reference_passes_with_a_margin(case):
    _, _, ref, xla = evaluate(*case)
    assert passes(case, jnp.asarray(ref, jnp.bfloat16))
    assert margin(case, xla) <= 0.7


def test_every_epilogue_here_is_one_of_the_module():
    from workloads import fused_elementwise

    names = {
        w.id for w in workloads.every() if w.reference.__module__ == fused_elementwise.__name__
    }
    assert names == set(IDS)
