"""The gated feed-forward block: kernels that do less than all of it must fail."""

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
    rms,
    shortened,
)
from jax.nn import relu, sigmoid, silu

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

IDS = ("swiglu_mlp",)


def _block(x, gate, up, down, act=silu):
    return (act(x @ gate) * (x @ up)) @ down


def _outputs(case):
    """Everything that must fail."""
    _, (x, gate, up, down), ref, _ = evaluate(*case)
    hidden, whole = gate.shape[1], (x, gate, up, down)
    outs = {
        "x itself": x,
        "no gate": (x @ up) @ down,
        "no activation": _block(*whole, act=lambda z: z),
        "sigmoid": _block(*whole, act=sigmoid),
        "relu": _block(*whole, act=relu),
        "gelu": _block(*whole, act=jax.nn.gelu),
        "gate only": silu(x @ gate) @ down,
        "gate and up exchanged": _block(x, up, gate, down),
        "sum for product": (silu(x @ gate) + x @ up) @ down,
        "activation of the product": silu((x @ gate) * (x @ up)) @ down,
    }
    for name, part in (
        ("all but the last 1 %", slice(hidden - hidden // 96)),
        ("all but one block", np.r_[:256, 384:hidden]),
        ("half", slice(hidden // 2)),
    ):
        outs[f"{name} of the hidden features"] = _block(x, gate[:, part], up[:, part], down[part])
    # A block of gates that belongs to other features.
    outs["swapped blocks of the gate"] = _block(
        x, np.concatenate([gate[:, 128:256], gate[:, :128], gate[:, 256:]], 1), up, down
    )
    outs |= constants(ref) | incomplete(ref) | ignoring(case) | shortened(case, axis=2)
    return outs


@pytest.mark.parametrize("case", cases(*IDS, draws=("shifted",), seeds=(0,)), ids=str)
def test_the_block_of_these_tests_is_the_reference(case):
    _, exact, ref, _ = evaluate(*case)
    assert rms(_block(*exact) - ref) < 1e-4 * rms(ref)


@pytest.mark.parametrize("case", cases(*IDS), ids=str)
def test_kernels_that_do_less_fail(case):
    assert not passing(case, _outputs(case))


@pytest.mark.parametrize("case", cases(*IDS, seeds=range(4)), ids=str)
def test_what_xla_makes_of_the_reference_passes_with_a_margin(case):
    _, _, ref, xla = evaluate(*case)
    assert passes(case, jnp.asarray(ref, jnp.bfloat16))
    assert margin(case, xla) <= 0.7
