"""What a doubt about XLA's own time costs whom."""

import dataclasses
import json

import pytest

import workloads
from jaxbench_env import Evaluator
from jaxbench_env.evaluator import baseline as baselines
from jaxbench_env.evaluator import verdict
from jaxbench_env.evaluator.baseline import Baseline
from jaxbench_env.evaluator.build import Built
from jaxbench_env.evaluator.evaluator import _Run

CERTAIN = Baseline(9.0, False, (), 0, 0.0)
BOUNDED = Baseline(9.0, True, ("a gather",), 0, 0.0, least_ms=8.0)
UNBOUNDED = Baseline(9.0, True, ("a gather",), 0, 0.0)


def judged(based, doubt=False):
    """The final fields and flags of a right candidate of 2 ms."""
    prediction = {
        "ms": 2.0,
        "cycles": 3.5e6,
        "uncertain": doubt,
        "reasons": [],
        "programs": [],
        "counters": {"hbm_bandwidth": 1e12},
        "loop": None,
    }
    built = Built(0, None, prediction, "", (), 0.0, 0.0, ())
    run = _Run(workloads.get("rms_norm"), "", 0, facts={"matmul_flops": 1, "outside_flops": 0})
    fields = Evaluator()._measured(run, built, based)
    return verdict.judge_time({**fields}, 0.1, ""), run.flags


def test_a_certain_baseline_pays_its_time():
    fields, flags = judged(CERTAIN)
    assert fields["speedup"] == 4.5 and not {"uncertain", "baseline_bound"} & flags


def test_an_uncertain_baseline_pays_its_bound_from_below():
    fields, flags = judged(BOUNDED)
    assert fields["speedup"] == 4 and fields["times"].baseline_ms == 8
    assert "baseline_bound" in flags and "uncertain" not in flags


@pytest.mark.parametrize("based", [CERTAIN, BOUNDED, UNBOUNDED])
def test_doubts_about_the_candidate_cap_it(based):
    fields, flags = judged(based, doubt=True)
    assert fields["speedup"] == 1 and "uncertain" in flags


def test_a_baseline_without_a_bound_pays_at_most_1():
    fields, flags = judged(UNBOUNDED)
    assert fields["speedup"] == 1 and "uncertain" in flags and "baseline_bound" not in flags


def test_records_with_and_without_a_bound_are_read():
    for one in (CERTAIN, BOUNDED):
        record = json.loads(json.dumps(dataclasses.asdict(one)))
        assert baselines._complete(record) and Baseline.from_dict(record) == one
    record.pop("least_ms")
    assert baselines._complete(record) and not Baseline.from_dict(record).bounded
    assert not baselines._complete({**record, "other": 1}) and not baselines._complete(None)
