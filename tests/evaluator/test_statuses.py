"""One kernel text for every status that a text can earn, through the real compiler."""

import dataclasses
import functools
from pathlib import Path

import pytest

import workloads
from jaxbench_env import Evaluator, Stage, Status, evaluate
from jaxbench_env.evaluator.judge import worker

ATTEMPTS = Path(__file__).parents[1] / "fixtures" / "attempts"
# A text cannot earn these two with the audit on: see test_hostile.py for the first.
NOT_BY_TEXT = {Status.CRASHED, Status.EVALUATOR_ERROR}

# What a message must say, so that its reader knows what to change.
SAYS = {
    "syntax_error": "expected ':'",
    "rejected": "`os` may not be imported",
    "trace_error": "use pltpu.CompilerParams",
    "timeout": "must only define functions",
    "out_of_memory": "50.0 GiB",
    "wrong_signature": "it must return bfloat16[8,4096,8192]",
    "no_kernel": "pl.pallas_call",
    "hack_suspected": "4,194,304 bytes of constants",
    "unsupported": "sort",
    "compile_error": "divisible by 8 and 128",
    "vmem_oom": "MiB too much",
    "hbm_oom": "exceeds available HBM",
    "interpreter_error": "prng_seed",
    "incorrect": "elements differ",
    "slower": "Correct.",
    "ok": "Correct.",
}


def test_every_status_has_an_attempt(attempts):
    assert {*map(Status, attempts)} == {*Status} - NOT_BY_TEXT


@functools.cache
def verdict(status):
    """The verdict on an attempt, made once for all tests."""
    # Compilers take their time, endless loops need not: only the one that hangs is cut short.
    evaluator = Evaluator(trace_seconds=3 if status == "timeout" else 60)
    text = (ATTEMPTS / f"{status}.py").read_text()
    return evaluator.evaluate(workloads.get("rms_norm"), text, seed=1)


@pytest.mark.parametrize("status", sorted(path.stem for path in ATTEMPTS.glob("*.py")))
def test_an_attempt_gets_its_status(status):
    result = verdict(status)
    assert result.status == status, result.message
    assert SAYS[status] in result.message
    assert result.correct == (status in ("ok", "slower"))
    assert (result.speedup is not None) == result.correct
    if result.correct:
        assert result.stage is Stage.CORRECT
        assert result.times.candidate_ms > 0 and result.times.baseline_ms > 0
        assert "uncalibrated" not in result.flags and "races_unchecked" not in result.flags


def test_a_verdict_with_a_seed_is_reproducible(attempts):
    first, again, other = (evaluate("rms_norm", attempts["incorrect"], seed=s) for s in (1, 1, 2))
    assert first.to_dict(durations=False) == again.to_dict(durations=False)
    assert first.numerics[0].max_ratio != other.numerics[0].max_ratio


def test_a_failing_line_is_named(attempts):
    result = verdict("trace_error")
    assert "TPUCompilerParams" in attempts["trace_error"].splitlines()[result.line - 1]


def test_the_compilers_text_is_kept_whole():
    result = verdict("vmem_oom")
    assert "Largest program allocations in vmem" in result.details
    assert result.memory.vmem_used > result.memory.vmem_limit


def test_a_kernel_for_one_size_counts_and_is_flagged(attempts):
    text = attempts["ok"].replace("    rows = batch", "    assert seq != 192\n    rows = batch")
    result = evaluate("rms_norm", text, seed=1)
    assert result.status == "ok"
    assert "shape_specialised" in result.flags
    assert "preset varied" in result.message


def test_a_kernel_that_is_wrong_only_at_odd_sizes_is_incorrect(attempts):
    text = attempts["ok"].replace(
        "return out.res", "out *= 1 if seq != 192 else 2\n    return out.res"
    )
    result = evaluate("rms_norm", text, seed=1)
    assert result.status == "incorrect"
    assert "preset varied" in result.message and "scaled by 2" in result.message


def test_an_empty_grid_is_a_kernel_for_other_sizes(attempts):
    blocks = "    block = max(size for size in (ROWS, 64, 8) if rows % size == 0)"
    assert blocks in attempts["ok"]
    text = attempts["ok"].replace(blocks, "    block = 1024")
    result = evaluate("rms_norm", text, seed=1)
    assert "shape_specialised" in result.flags
    assert "empty grid at preset varied" in result.message


def test_dataclasses_under_postponed_annotations_are_fine(attempts):
    head = (
        "from __future__ import annotations\nimport dataclasses\n"
        "@dataclasses.dataclass(frozen=True)\nclass Plan:\n    rows: int = 256\n"
    )
    text = head + attempts["no_kernel"]
    assert evaluate("rms_norm", text).status == "no_kernel"


def test_a_judge_gets_the_variant_that_was_asked_for():
    published = workloads.get("42k", variant="published")
    assert worker.workload_of(worker.named(published)) is published
    assert worker.workload_of(worker.named(workloads.get("42k"))) is workloads.get("42k")
    assert published.reference is not workloads.get("42k").reference


def test_a_workload_that_the_judge_cannot_have_is_refused():
    changed = dataclasses.replace(workloads.get("rms_norm"), version=2)
    with pytest.raises(ValueError, match="not the registered workload"):
        evaluate(changed, "")
    with pytest.raises(ValueError, match="at least 0"):
        evaluate("rms_norm", "", seed=-1)
    with pytest.raises(ValueError, match="unknown target"):
        evaluate("rms_norm", "", target="v9")


def test_a_program_that_depends_on_the_platform_is_suspected(attempts):
    body = "jax.lax.platform_dependent(out, tpu=lambda o: o, default=lambda o: o + 0)"
    text = attempts["ok"].replace("return out.res", f"out = {body}\n    return out.res")
    result = Evaluator(without={"audit"}).evaluate(workloads.get("rms_norm"), text)
    assert result.status == "hack_suspected"
