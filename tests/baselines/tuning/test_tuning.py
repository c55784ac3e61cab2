import dataclasses
import json
import logging
import math
import sys

import pytest
from click.testing import CliRunner

import workloads
from baselines import kernels, records
from baselines.templates import TemplateError, TemplateSpace
from baselines.tuning import METHODS, Log, MissingPackage, best, shipped, tune
from jaxbench_env import EvalResult, Stage, Status, recorded
from jaxbench_env.canonical import canonical_hash
from jaxbench_env.cli import main
from jaxbench_env.evaluator.build import installed_versions
from jaxbench_env.evaluator.evaluator import PROTOCOL
from jaxbench_env.evaluator.result import Provenance, Times

WORKLOAD = workloads.get("rms_norm")
# A bowl with its bottom at (6, 2), which is 1 ms; half of the domain of SIDE fails.
TEXT = f"""
X = 1
Y = 7
SIDE = "left"
TUNABLES = {{"X": {tuple(range(8))}, "Y": {tuple(range(8))}, "SIDE": ("left", "right")}}


def constraints(X, Y, SIDE):
    return {{"not too much": X + Y <= 12}}
"""


class Bowl:
    """An evaluator that knows its verdicts beforehand, and counts the texts."""

    target = "v6e"

    def __init__(self, stop_after=None):
        self.seen, self.stop_after = [], stop_after

    def evaluate(self, workload, source, **_):
        if self.stop_after is not None and len(self.seen) >= self.stop_after:
            raise KeyboardInterrupt
        self.seen.append(source)
        scope = {}
        exec(source, scope)
        made = Provenance(
            protocol=PROTOCOL,
            workload=workload.id,
            workload_version=workload.version,
            target=self.target,
            versions=installed_versions().as_dict(),
        )
        if scope["SIDE"] == "right":
            return EvalResult(Status.TRACE_ERROR, message="right", provenance=made)
        ms = 1.0 + abs(scope["X"] - 6) + abs(scope["Y"] - 2)
        return EvalResult(
            Status.OK,
            Stage.CORRECT,
            speedup=5 / ms,
            times=Times(candidate_ms=ms, baseline_ms=5.0),
            provenance=made,
        )


def actions(points):
    return [point.action for point in points]


@pytest.fixture
def space():
    return TemplateSpace(TEXT)


@pytest.mark.parametrize("method", METHODS)
def test_a_search_starts_with_the_default_and_repeats_nothing(method, space):
    evaluator = Bowl()
    points = list(tune(WORKLOAD, space, evaluator, method=method, budget=60))
    assert len(points) == 60 == len({*evaluator.seen}) == len({*actions(points)})
    assert points[0].action == tuple(space.default.tolist())
    assert not any(space.violations(point.action) for point in points)
    assert best(points)[0].ms == min(point.ms for point in points)
    failed = [point for point in points if not point.result.correct]
    assert all(point.ms == math.inf for point in failed)
    if method != "grid":
        again = tune(WORKLOAD, space, Bowl(), method=method, budget=60)
        assert actions(again) == actions(points)
        other = tune(WORKLOAD, space, Bowl(), method=method, budget=60, seed=1)
        assert actions(other) != actions(points)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("violations", [False, True])
def test_a_budget_that_is_large_enough_looks_at_every_member(method, violations, space):
    points = list(
        tune(WORKLOAD, space, Bowl(), method=method, budget=10_000, violations=violations)
    )
    allowed = space.actions(valid=None if violations else True)
    assert sorted(actions(points)) == sorted(tuple(a.tolist()) for a in allowed)
    assert best(points)[0].ms == 1.0


@pytest.mark.parametrize("method", ["hill", "optuna"])
def test_methods_that_learn_find_the_bottom(method, space):
    points = list(tune(WORKLOAD, space, Bowl(), method=method, budget=50))
    assert best(points)[0].ms <= 2.0


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_search_goes_on(method, space, tmp_path):
    log = Log(tmp_path / "deep" / "log.jsonl")
    whole = actions(tune(WORKLOAD, space, Bowl(), method=method, budget=40))
    with pytest.raises(KeyboardInterrupt):
        list(tune(WORKLOAD, space, Bowl(stop_after=17), method=method, budget=40, log=log))
    assert len(log.rows()) == 17
    evaluator = Bowl()
    points = list(tune(WORKLOAD, space, evaluator, method=method, budget=40, log=log))
    assert actions(points) == whole and len(evaluator.seen) == 23
    assert [point.known for point in points] == [True] * 17 + [False] * 23
    assert points[0].ms == pytest.approx(best([points[0]])[0].ms)


def test_a_line_that_was_cut_is_left_out_with_a_note(space, tmp_path, caplog):
    log = Log(tmp_path / "log.jsonl")
    list(tune(WORKLOAD, space, Bowl(), budget=3, log=log))
    log.path.write_bytes(log.path.read_bytes()[:-30])
    with caplog.at_level(logging.WARNING, "jaxbench_env"):
        evaluator = Bowl()
        points = list(tune(WORKLOAD, space, evaluator, budget=4, log=log))
    assert "line 3 is no JSON" in caplog.text
    assert len(evaluator.seen) == 2 and len(points) == 4
    caplog.clear()
    assert len(log.rows()) == 4


@pytest.mark.parametrize("line", [b"5", b"[1]", b"\xff\xfe", b"\0\0"])
def test_a_line_of_something_else_is_left_out_with_a_note(space, tmp_path, caplog, line):
    log = Log(tmp_path / "log.jsonl")
    log.path.write_bytes(line + b"\n")
    with caplog.at_level(logging.WARNING, "jaxbench_env"):
        assert len(list(tune(WORKLOAD, space, Bowl(), budget=1, log=log))) == 1
    assert "line 1 is no JSON object" in caplog.text and len(log.rows()) == 1


def test_a_time_that_is_doubtful_is_not_the_best(space):
    class Doubtful(Bowl):
        """The fastest kernels have a time that is a bound."""

        def evaluate(self, workload, source, **_):
            result = super().evaluate(workload, source)
            if result.correct and result.times.candidate_ms < 3.0:
                return dataclasses.replace(
                    result, status=Status.SLOWER, speedup=1.0, flags=("uncertain",)
                )
            return result

    found = best(tune(WORKLOAD, space, Doubtful(), method="grid", budget=200))
    assert found[0].ms == 3.0 and found[-1].result.flags and found[-1].ms == 2.0


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": PROTOCOL - 1},
        {"target": "v5e"},
        {"workload": "gemm"},
        {"workload_version": 0},
        {"versions": {"jax": "0"}},
    ],
)
def test_verdicts_of_other_evaluators_are_not_used(changes, space, tmp_path):
    log = Log(tmp_path / "log.jsonl")
    list(tune(WORKLOAD, space, Bowl(), budget=1, log=log))
    assert len(log.results(WORKLOAD, "v6e")) == 1
    row = log.rows()[0]
    log.path.write_text(json.dumps({**row, **changes}) + "\n")
    assert log.results(WORKLOAD, "v6e") == {}


def test_verdicts_that_a_busy_machine_may_have_caused_are_made_again(space, tmp_path):
    log = Log(tmp_path / "log.jsonl")
    late = dataclasses.replace(Bowl().evaluate(WORKLOAD, TEXT), status=Status.TIMEOUT)
    log.append(canonical_hash(TEXT), {}, late)
    points = list(tune(WORKLOAD, space, Bowl(), budget=1, log=log))
    assert points[0].result.correct and not points[0].known


def test_bad_use_is_explained(space, monkeypatch):
    with pytest.raises(ValueError, match="no method 'luck'"):
        next(tune(WORKLOAD, space, Bowl(), method="luck"))
    with pytest.raises(ValueError, match="at least 1"):
        next(tune(WORKLOAD, space, Bowl(), budget=0))
    large = "A = 0\nB = 0\nTUNABLES = {'A': %r, 'B': %r}" % ((tuple(range(200)),) * 2)  # noqa: UP031
    with pytest.raises(TemplateError, match="40,000 members"):
        next(tune(WORKLOAD, TemplateSpace(large), Bowl()))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingPackage, match="jaxbench-env.tune."):
        next(tune(WORKLOAD, space, Bowl(), method="optuna"))


@pytest.fixture
def bowl(monkeypatch):
    """The command, with an evaluator that takes no time."""
    from jaxbench_env.evaluator.service import client

    evaluator = Bowl()
    monkeypatch.setattr(client, "SharedEvaluator", lambda **_: evaluator)
    return evaluator


def run(*arguments):
    return CliRunner().invoke(main, ["tune", "rms_norm", *map(str, arguments)])


def test_the_command_shows_and_writes_the_best(bowl, tmp_path):
    file, out = tmp_path / "kernel.py", tmp_path / "out.jsonl"
    file.write_text(TEXT)
    arguments = ("--file", file, "--out", out, "--method", "grid", "--budget", 200)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "Looked at 122 of 128 points, evaluated 122" in result.output
    assert "take 1,000.0% longer" in result.output or "take 1000.0% longer" in result.output
    assert file.read_text() == TEXT
    report = json.loads(run(*arguments, "--write", "--json").output)
    assert report["evaluated"] == 0 and report["points"][0]["values"]["X"] == 6
    assert not report["default_is_best"] and report["written"] == str(file)
    assert TemplateSpace(file.read_text()).template.defaults == {"X": 6, "Y": 2, "SIDE": "left"}
    assert "own values are the best" in run(*arguments, "--write").output


def test_a_file_of_another_encoding_is_named(bowl, tmp_path):
    file = tmp_path / "kernel.py"
    file.write_bytes(b"X = '\xff'")
    result = run("--file", file)
    assert result.exit_code == 2 and "kernel.py is not UTF-8" in result.output.replace("\n", "")


def test_an_interrupt_shows_what_was_found(bowl, tmp_path):
    file, out = tmp_path / "kernel.py", tmp_path / "out.jsonl"
    file.write_text(TEXT)
    bowl.stop_after = 5
    result = run("--file", file, "--out", out, "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["looked_at"] == 5 and len(Log(out).rows()) == 5


def test_the_command_explains_wrong_use(bowl, tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("x = 1")
    for arguments, says in (
        (["--write"], "--write needs --file"),
        (["--file", file], "has no tunables"),
        (["--method", "luck"], "'random', 'hill', 'optuna', 'grid'"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and says in result.output
    file.write_text(TEXT.replace('SIDE = "left"', 'SIDE = "right"'))
    result = run("--file", file, "--budget", 1)
    assert result.exit_code == 1 and "No kernel is right" in result.output


def test_shipped_verdicts_are_known(bowl, monkeypatch, tmp_path):
    monkeypatch.setattr(records, "path", lambda name: tmp_path / f"{name}.jsonl.gz")
    assert shipped(WORKLOAD, "v6e") == {}
    text = kernels.source("rms_norm")
    result = Bowl().evaluate(WORKLOAD, TEXT)
    head = {**recorded.header(WORKLOAD, _baseline(), result.provenance)}
    rows = [{"kernel": canonical_hash(text), "values": {}, "result": recorded.shrink(result)}]
    recorded.write(tmp_path / "rms_norm.jsonl.gz", head, rows)
    report = json.loads(run("--budget", 1, "--json").output)
    assert report["evaluated"] == 0 and report["points"][0]["ms"] == 11.0
    recorded.write(tmp_path / "rms_norm.jsonl.gz", {**head, "protocol": 0}, rows)
    assert shipped(WORKLOAD, "v6e") == {}


def _baseline():
    from jaxbench_env.evaluator.baseline import Baseline

    return Baseline(5.0, False, (), 0, 0.0)
