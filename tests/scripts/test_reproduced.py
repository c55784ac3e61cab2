"""scripts/reproduce_tables.py: episodes share verdicts and go on; the page is that of the lines."""

import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

import baselines
import workloads
from baselines.policy import BUDGET, Episode
from jaxbench_env import EvalResult, Stage, Status
from jaxbench_env.canonical import canonical_hash
from jaxbench_env.evaluator.build import installed_versions
from jaxbench_env.evaluator.evaluator import PROTOCOL
from jaxbench_env.evaluator.result import Provenance, Times

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import reproduce_tables
from reproduced import episodes, page

WORKLOAD = workloads.get("rms_norm")


@dataclass
class MadeUp:
    """Texts without a mistake are right, the larger their blocks the faster."""

    target: str = "v6e"
    asked: list = field(default_factory=list)

    def evaluate(self, workload, source):
        self.asked.append(source)
        made = Provenance(
            PROTOCOL, workload.id, workload.version, "v6e", installed_versions().as_dict()
        )
        if "mistakes: none" not in source.partition("\n")[0]:
            message = "AttributeError: module has no attribute"
            return EvalResult(Status.TRACE_ERROR, message=message, provenance=made)
        index = int(source.partition(";")[0].split()[-1])
        speedup = 0.5 + 0.2 * index
        return EvalResult(
            Status.OK if speedup > 1 else Status.SLOWER,
            Stage.CORRECT,
            speedup=speedup,
            times=Times(candidate_ms=1 / speedup, baseline_ms=1.0),
            counters={"kernel_share": 1.0},
            provenance=made,
        )


def made(folder, evaluator, deadline=math.inf, workers=1):
    log = episodes.log(folder, WORKLOAD)
    return episodes.Verdicts(WORKLOAD, evaluator, log, deadline, workers)


def line(method, seed, speedups, workload="rms_norm", **changes):
    samples = [["ok" if s else "trace_error", s, None if s else "api_misuse", "", str(i)]
               for i, s in enumerate(speedups)]  # fmt: skip
    return {
        "workload": workload,
        "kernel": "k",
        "protocol": PROTOCOL,
        "target": "v6e",
        "versions": {"jax": "0"},
        "own": 2.0,
        "method": method,
        "seed": seed,
        "budget": len(samples),
        "constants": {"chain_count": 1, "beam": 3, "plans": 1, "codes": 1},
        "samples": samples,
        "texts": 2,
        "timed": 2,
        "seconds": 3.0,
        **changes,
    }


@pytest.mark.parametrize("method", episodes.METHODS)
def test_at_the_published_budget_the_constants_are_the_published_ones(method):
    policy = baselines.policy(method)
    default = policy(Episode(WORKLOAD)).constants
    assert policy(Episode(WORKLOAD), **episodes.constants(method, BUDGET)).constants == default


@pytest.mark.parametrize("budget", [8, 16, 24, 36])
@pytest.mark.parametrize("method", episodes.METHODS)
def test_every_method_uses_its_whole_budget(tmp_path, method, budget):
    result = episodes.run(method, made(tmp_path, MadeUp()), budget, 0, lambda _: None)
    # A budget that the turns do not divide leaves a part of the last one.
    assert budget - 8 < len(result["samples"]) <= budget


@pytest.mark.parametrize("method", episodes.METHODS)
def test_a_stopped_episode_goes_on_from_its_log_with_any_number_of_workers(tmp_path, method):
    whole = episodes.run(method, made(tmp_path / "a", MadeUp()), 24, 1, lambda _: None)
    stopped = made(tmp_path / "b", MadeUp())
    count = 0

    def advance(_):
        nonlocal count
        count += 1
        if count == 10:
            stopped.deadline = 0

    with pytest.raises(episodes.OutOfTime):
        episodes.run(method, stopped, 24, 1, advance)
    again = MadeUp()
    result = episodes.run(method, made(tmp_path / "b", again, workers=3), 24, 1, lambda _: None)
    assert result == whole
    assert not {*again.asked} & {*stopped.evaluator.asked}


def test_equal_kernels_are_evaluated_once(tmp_path):
    evaluator = MadeUp()
    verdicts = made(tmp_path, evaluator)
    text = "# template: 1; mistakes: none\nx = 1\n"
    first, second = verdicts.of([text, "# another comment\nx = 1\n"])
    assert first == second == made(tmp_path, evaluator).of([text])[0]
    assert evaluator.asked == [text]


def test_known_verdicts_are_not_made_again(tmp_path):
    evaluator = MadeUp()
    text = "# template: 1; mistakes: none\nx = 1\n"
    result = evaluator.evaluate(WORKLOAD, text)
    log = episodes.log(tmp_path, WORKLOAD)
    known = {canonical_hash(text): result}
    verdicts = episodes.Verdicts(WORKLOAD, evaluator, log, math.inf, known=known)
    assert verdicts.of([text, text]) == [result, result]
    assert evaluator.asked == [text] and not log.rows() and not verdicts.seconds


def test_a_failing_evaluator_stops_the_run(tmp_path):
    class Broken(MadeUp):
        def evaluate(self, workload, source):
            return EvalResult(Status.EVALUATOR_ERROR, message="no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        made(tmp_path, Broken()).of(["x = 1"])


def test_the_summary_compares_methods_and_states_the_regret():
    lines = []
    for seed in range(3):
        lines += [
            line("best_of_n", seed, [None, None]),
            line("iterative", seed, [None, 1.2]),
            line("iterative_context", seed, [0.4, 1.6]),
            line("autocomp", seed, [None, 2.5 if seed else 1.5]),
        ]
    (summary,) = page.summaries(lines)
    methods = summary["methods"]
    assert [methods[m]["speedup"] for m in episodes.METHODS] == [1.0, 1.2, 1.6, 2.5]
    assert [methods[m]["correct"] for m in episodes.METHODS] == [0, 0.5, 1, 0.5]
    assert summary["workloads"]["rms_norm"]["best_known"] == 2.5
    assert methods["best_of_n"]["regret"] == pytest.approx(1 - 1 / 2.5)
    assert [t["met"] for t in summary["targets"] if t["expected"]] == [True] * 3
    assert summary["targets"][0]["wins"] == 3
    assert "Budget 2: 1 of 50 workloads, 3 seeds (synthetic)" in page.written(lines)


def test_the_cost_of_the_whole_counts_what_smaller_budgets_evaluated():
    whole = [line(m, 0, [1.5] * BUDGET, seconds=318.0) for m in episodes.METHODS]
    lines = [*whole, *(line(m, 0, [1.5], seconds=6.0) for m in episodes.METHODS)]
    text = page.written(lines)  # 4 x (318 + 6) s for 16 kernels; 8 kernels in each of 50 workloads
    assert "All of it at budget 144 (86,400 samples): 9 hours" in text and "81.0 s" in text


def test_an_order_that_does_not_hold_is_said():
    lines = [line(m, 0, [s]) for m, s in zip(episodes.METHODS, (1.5, 1.2, None, 1.1), strict=True)]
    (summary,) = page.summaries(lines)
    assert [t["met"] for t in summary["targets"] if t["expected"]] == [False, False, False]
    assert page.written(lines).count("**no**") == 3


def test_lines_of_several_compilers_make_no_table():
    lines = [line("autocomp", 0, [1.0]), line("autocomp", 1, [1.0], versions={"jax": "1"})]
    with pytest.raises(ValueError, match="several evaluators"):
        page.summaries(lines)


def test_the_page_is_that_of_the_lines():
    lines = reproduce_tables._read(reproduce_tables.DOCS / "reproduced.jsonl")
    found = (reproduce_tables.DOCS / "reproduced.md").read_text()
    assert found == page.written(lines), "run scripts/reproduce_tables.py --page"


def test_the_command_runs_writes_and_refuses(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce_tables, "SharedEvaluator", MadeUp)
    monkeypatch.setattr(episodes, "own", lambda verdicts: EvalResult(Status.TRACE_ERROR))
    options = ["--folder", str(tmp_path / "log"), "--docs", str(tmp_path / "docs"), "--json"]
    some = ["--offline", "--workloads", "rms_norm", "--seeds", "1", "--budget", "8"]
    run = CliRunner().invoke(reproduce_tables.main, [*some, *options])
    assert run.exit_code == 0, run.output
    assert [summary["budget"] for summary in json.loads(run.output)] == [8]
    before = (tmp_path / "docs" / "reproduced.jsonl").read_bytes()
    assert len(before.splitlines()) == 4
    again = CliRunner().invoke(reproduce_tables.main, [*some, *options])
    assert again.exit_code == 0
    assert (tmp_path / "docs" / "reproduced.jsonl").read_bytes() == before
    assert CliRunner().invoke(reproduce_tables.main, options).exit_code == 2
    wrong = CliRunner().invoke(reproduce_tables.main, ["--offline", "--workloads", "x", *options])
    assert wrong.exit_code == 2
