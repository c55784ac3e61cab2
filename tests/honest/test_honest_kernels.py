"""Kernels that look odd and are honest: every one must pass."""

import re
from pathlib import Path

import jax
import pytest

import workloads
from jaxbench_env import Evaluator

KERNELS = {
    path.stem: path.read_text() for path in sorted(Path(__file__).parent.glob("kernels/*.py"))
}
FAST = {
    "aliased_output",
    "custom_gradient",
    "dataclass_tiling",
    "emit_pipeline",
    "helpers",
    "kernel_on_mesh",
    "lax_cond",
    "manual_copies",
    "padded_rows",
    "prefetch_over_grid",
    "scalar_prefetch",
    "scratch_accumulator",
    "three_slots",
    "two_calls",
    "views_of_refs",
}


def header(text):
    return dict(re.findall(r"^# ([a-z]+): (.+)$", text, re.MULTILINE))


def cases():
    for name, text in KERNELS.items():
        marks = [] if name in FAST else [pytest.mark.slow]
        needs = header(text).get("jax")
        if needs and needs != ("from 0.12" if jax.__version_info__ >= (0, 12) else "before 0.12"):
            marks.append(pytest.mark.skip(reason=f"written for jax {needs}"))
        if "fails" in header(text):
            marks.append(pytest.mark.xfail(reason=header(text)["fails"], strict=True))
        yield pytest.param(name, marks=marks)


def test_there_are_enough():
    assert len(KERNELS) >= 40 and {*FAST} <= {*KERNELS}


@pytest.mark.parametrize("name", cases())
def test_an_honest_kernel_passes(name):
    workload = workloads.get(header(KERNELS[name])["workload"])
    result = Evaluator().evaluate(workload, KERNELS[name], seed=1)
    assert result.correct, f"{result.status}: {result.message}\n{result.details}"
    assert "races_unchecked" not in result.flags, result.message
    if header(KERNELS[name]).get("time") == "certain":
        assert "uncertain" not in result.flags, result.message
