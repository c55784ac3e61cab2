"""Numbers at the published size: a kernel that is right at smaller sizes must be right there."""

from pathlib import Path

import pytest

import workloads
from jaxbench_env import Evaluator, evaluate
from jaxbench_env.evaluator import estimate

FILES = Path(__file__).parents[1] / "fixtures" / "workloads"
KERNEL = (FILES / "relu_matmul_kernel.py").read_text()
# Right at both check presets, whose M is below 512; the last rows of the published size are not.
LAZY = KERNEL.replace(
    "    out_ref[...] = jnp.maximum",
    "    product = jnp.where((pl.program_id(0) + 1) * out_ref.shape[0] < 512, product, 0)\n"
    "    out_ref[...] = jnp.maximum",
)


def test_a_kernel_is_compared_at_the_published_size():
    seen = []
    workload = workloads.get(FILES / "relu_matmul.py")
    result = Evaluator(verify="full").evaluate(
        workload, KERNEL, seed=1, watch=lambda *progress: seen.append(progress)
    )
    assert result.correct, result.message
    assert [c.preset for c in result.numerics][-1] == "v6e"
    assert result.shown["numerics"] == "all of the output"
    assert "Checked at the published size: all of the output." in result.message
    assert seen[0][0] == "drawing inputs" and all(done < total for _, done, total in seen)


def test_less_work_at_the_published_size_is_incorrect():
    path = FILES / "relu_matmul.py"
    assert evaluate(path, LAZY, seed=1).correct
    result = evaluate(path, LAZY, seed=1, verify="full", progress=False)
    assert result.status == "incorrect", result.message
    assert "right at the check presets and wrong at the published size" in result.message
    assert "only the last 128 rows (axis 0, size 512)" in result.message
    assert result.speedup is None and result.compiled and not result.numerics[-1].passed


def test_an_unknown_verify_is_refused():
    with pytest.raises(ValueError, match="presets or full"):
        Evaluator(verify="everything")


@pytest.mark.parametrize("workload", list(workloads.every()), ids=lambda w: w.id)
def test_every_workload_has_an_estimate(workload):
    assert 0 < estimate.full_share(workload) <= 1
    reference = 2 * workload.flops(workload.sizes["v6e"]) / estimate.REFERENCE_FLOPS_PER_SECOND
    assert reference * estimate.full_share(workload) <= estimate.FULL_REFERENCE_SECONDS * 1.001
    assert estimate.full_seconds(workload) < estimate.full_limit(workload)
