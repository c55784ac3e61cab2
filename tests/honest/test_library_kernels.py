"""Kernels with blocks for the published sizes, most of them those that jax ships, must pass."""

from pathlib import Path

import pytest

import workloads
from baselines import library_kernels
from jaxbench_env import Evaluator

HERE = Path(__file__).parent
LIBRARY = library_kernels.ids()
FAST = "sparse_attention"
# It is right; the TPU interpreter has no refs that are reshaped, as of jax 0.10.
NOT_SIMULATED = pytest.mark.xfail(reason="jax: its races cannot be looked for", strict=True)


def evaluate(workload, text):
    evaluator = Evaluator(allow_library_kernels=True)
    return evaluator.evaluate(workloads.get(workload), text, seed=1)


def marks(workload):
    slow = [] if workload == FAST else [pytest.mark.slow]
    return slow + ([NOT_SIMULATED] if workload == "ragged_paged_attention" else [])


def test_every_workload_with_an_expert_kernel_is_there():
    assert len(LIBRARY) == 8 and {*LIBRARY} <= {*workloads.ids()}


@pytest.mark.parametrize("workload", [pytest.param(w, marks=marks(w)) for w in LIBRARY])
def test_a_library_kernel_is_right(workload):
    result = evaluate(workload, library_kernels.source(workload))
    assert result.correct, f"{result.status}: {result.message}\n{result.details}"
    assert "shape_specialised" in result.flags
    assert "races_unchecked" not in result.flags, result.message


@pytest.mark.slow
def test_a_kernel_with_large_fixed_blocks_is_right():
    result = evaluate("gemm", (HERE / "gemm_512_1024_512.py").read_text())
    assert result.correct, result.message
    assert "shape_specialised" in result.flags and "races_unchecked" not in result.flags


def test_a_library_kernel_is_refused_elsewhere():
    text = library_kernels.source("gemm")
    result = Evaluator().evaluate(workloads.get("gemm"), text, seed=1)
    assert result.status == "rejected" and "finished kernels" in result.message
