"""Rollouts: what they evaluate, when they end, and that none of it is lost."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_up import MadeUp, rollout

from baselines.iterative import Iterative
from baselines.proposers import NotApplicable, ProposerError
from baselines.rollout.progress import Bars, Progress
from baselines.rollout.records import RecordsError, Run
from baselines.testing import Writer
from jaxbench_env import EvalResult, Status


def samples(folder):
    """(workload, sample) -> hash of every recorded verdict."""
    return {
        (line["workload"], line["sample"]): line["source_sha256"]
        for line in Run(Path(folder)).lines("candidates")
    }


def test_everything_is_recorded(tmp_path):
    evaluator = MadeUp()
    (outcome,) = rollout(tmp_path, evaluator).run()
    run = Run(tmp_path)
    lines = list(run.lines("candidates"))
    assert [*sorted(line["sample"] for line in lines)] == list(range(24))
    assert outcome.done and outcome.evaluations == 24
    calls = {call["label"]: call for call in run.lines("calls")}
    for line in lines:
        result = EvalResult.from_dict(line["result"])
        assert run.source(line["source_sha256"]).startswith("def workload")
        call = calls[line["calls"][-1]]
        assert call["prompt_sha256"] == line["prompt_sha256"]
        assert run.text(call["answer_sha256"]).startswith("```python")
        assert "messages" in json.loads(run.text(call["prompt_sha256"]))
        assert result.provenance.source_sha256 == line["source_sha256"]
        assert line["parent"] is None or line["place"]["turn"] > 0
    assert outcome.correct == sum(line["result"]["correct"] for line in lines)
    best = max(line["result"]["speedup"] or 0 for line in lines)
    assert outcome.best.result.speedup == best


def test_a_finished_run_does_nothing_again(tmp_path):
    first = rollout(tmp_path, MadeUp())
    (before,) = first.run()
    first.records.close()
    evaluator, writer = MadeUp(), Writer()
    (after,) = rollout(tmp_path, evaluator, proposer=writer).run()
    assert evaluator.asked == [] and writer.requests == []
    assert after.to_dict() == before.to_dict()


@pytest.mark.parametrize("limit", [5, 13])
def test_a_limit_of_evaluations_is_exact_and_resumed(tmp_path, limit):
    short = rollout(tmp_path / "a", MadeUp(), limits={"evaluations": limit}, verify_best=False)
    (outcome,) = short.run()
    assert short.ended == "max-evaluations" and not outcome.done
    assert outcome.evaluations == len(samples(tmp_path / "a")) == limit
    short.records.close()
    again = rollout(tmp_path / "a", MadeUp(), verify_best=False)
    again.run()
    rollout(tmp_path / "b", MadeUp(), verify_best=False).run()
    assert samples(tmp_path / "a") == samples(tmp_path / "b")


def test_a_limit_of_time_ends_it(tmp_path):
    short = rollout(tmp_path, MadeUp(0.2), limits={"seconds": 0.5}, workers=1)
    started = time.monotonic()
    (outcome,) = short.run()
    assert short.ended == "max-seconds" and outcome.verified is None
    assert 1 <= outcome.evaluations < 24 and time.monotonic() - started < 5


def test_a_limit_of_time_holds_for_the_check_at_the_published_size(tmp_path):
    first = rollout(tmp_path, MadeUp(), verify_best=False)
    first.run()
    first.records.close()
    evaluator = MadeUp()
    late = rollout(tmp_path, evaluator, limits={"seconds": 1e-9})
    (outcome,) = late.run()
    assert late.ended == "max-seconds" and evaluator.asked == [] and outcome.verified is None


class Dear(Writer):
    """Answers that cost 1 each."""

    def answer(self, request):
        from dataclasses import replace

        return replace(super().answer(request), cost=1.0)


def test_a_limit_of_cost_counts_all_sessions(tmp_path):
    for limit in (6, 9):
        short = rollout(tmp_path, MadeUp(), proposer=Dear(), limits={"cost": limit})
        short.run()
        assert short.ended == "max-cost" and short.records.cost == limit
        short.records.close()
    assert len(list(Run(tmp_path).lines("calls"))) == 9


def test_a_proposer_that_fails_ends_it_and_loses_nothing(tmp_path):
    failing = rollout(tmp_path, MadeUp(), proposer=Writer(fails={"chain 2, turn 3"}))
    (outcome,) = failing.run()
    assert failing.ended == "the proposer failed" and isinstance(failing.error, ProposerError)
    assert outcome.evaluations == len(samples(tmp_path)) >= 8
    failing.records.close()
    again = rollout(tmp_path, MadeUp())
    again.run()
    assert again.ended == "done" and len(samples(tmp_path)) == 24


def test_a_fault_of_a_policy_is_reported(tmp_path):
    broken = rollout(tmp_path, MadeUp())
    broken.policy = lambda episode: 1 / 0
    broken.run()
    assert broken.ended == "ZeroDivisionError on rms_norm" and broken.error is not None


def test_a_failure_of_the_evaluator_gets_a_second_chance(tmp_path):
    evaluator = MadeUp(statuses=(Status.EVALUATOR_ERROR,))
    rollout(tmp_path, evaluator, budget=4, verify_best=False).run()
    statuses = {line["result"]["status"] for line in Run(tmp_path).lines("candidates")}
    assert "evaluator_error" not in statuses and len(evaluator.asked) == 8


def test_the_best_is_checked_at_the_published_size(tmp_path):
    evaluator = MadeUp()
    (outcome,) = rollout(tmp_path, evaluator).run()
    (final,) = Run(tmp_path).lines("finals")
    assert final["source_sha256"] == outcome.best.candidate.hash and final["verify"] == "full"
    assert [source for _, source, verify in evaluator.asked if verify == "full"] == [
        outcome.best.candidate.source
    ]


def test_where_the_best_fails_there_the_next_is_checked(tmp_path):
    plain = rollout(tmp_path / "a", MadeUp(), verify_best=False)
    (before,) = plain.run()
    wrong = before.best.candidate.source

    def full(source):
        return Status.INCORRECT if source == wrong else None

    (outcome,) = rollout(tmp_path / "b", MadeUp(full=full)).run()
    finals = list(Run(tmp_path / "b").lines("finals"))
    assert [final["result"]["status"] for final in finals][0] == "incorrect" and len(finals) == 2
    assert outcome.best.candidate.source != wrong and outcome.verified.correct


def test_workloads_run_side_by_side(tmp_path):
    names = ("rms_norm", "gemm", "mamba2_scan")
    outcomes = rollout(tmp_path, MadeUp(0.05), names=names, workers=2, verify_best=False).run()
    assert [outcome.workload for outcome in outcomes] == list(names)
    first = [line["workload"] for line in Run(tmp_path).lines("candidates")][:12]
    assert len(set(first)) >= 2


def test_workloads_may_be_added_and_nothing_else_changed(tmp_path):
    first = rollout(tmp_path, MadeUp())
    first.run()
    with pytest.raises(RecordsError, match="in use"):
        rollout(tmp_path, MadeUp())
    first.records.close()
    with pytest.raises(RecordsError, match="another run: budget is 30 and was 24"):
        rollout(tmp_path, MadeUp(), budget=30)
    more = rollout(tmp_path, MadeUp(), names=("gemm",))
    more.run()
    assert Run(tmp_path).settings["workloads"] == ["rms_norm", "gemm"]
    assert len(samples(tmp_path)) == 48


def test_another_prompt_or_text_is_noticed(tmp_path):
    first = rollout(tmp_path, MadeUp(), verify_best=False)
    first.run()
    first.records.close()
    calls = (tmp_path / "calls.jsonl").read_text()
    digest = next(iter(Run(tmp_path).lines("calls")))["prompt_sha256"]
    (tmp_path / "calls.jsonl").write_text(calls.replace(digest, "0" * 64))
    changed = rollout(tmp_path, MadeUp())
    changed.run()
    assert "is not the recorded one" in str(changed.error)
    changed.records.close()


def test_a_torn_last_line_is_dropped_with_a_note(tmp_path):
    first = rollout(tmp_path, MadeUp())
    first.run()
    first.records.close()
    plain = samples(tmp_path)
    path = tmp_path / "candidates.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert len(samples(tmp_path)) == 23  # a reader passes over it
    again = rollout(tmp_path, MadeUp())
    assert again.records.notes == ["candidates.jsonl: dropped an unfinished last line"]
    again.run()
    assert samples(tmp_path) == plain


@pytest.mark.parametrize("damage", ["{broken\n", "5\n", "\0\0\n"])
def test_a_damaged_line_names_its_place(tmp_path, damage):
    first = rollout(tmp_path, MadeUp())
    first.run()
    first.records.close()
    path = tmp_path / "candidates.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], damage, *lines[2:]]))
    with pytest.raises(RecordsError, match=r"candidates.jsonl, line 3 is damaged") as _kept:
        rollout(tmp_path, MadeUp())
    path.write_text("".join(lines))
    rollout(tmp_path, MadeUp())  # the failure does not hold the directory


def test_damaged_settings_are_said(tmp_path):
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(RecordsError, match=r"run.json is damaged: it is no JSON object"):
        rollout(tmp_path, MadeUp())


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RecordsError, match="thesis.tex and no run.json"):
        rollout(tmp_path, MadeUp())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_progress_hears_of_every_verdict(tmp_path):
    heard = []

    class Heard(Progress):
        def start(self, workload, total):
            heard.append(("start", total))

        def step(self, workload, best):
            heard.append("step")

        def finish(self, workload):
            heard.append("finish")

    rollout(tmp_path, MadeUp(), progress=Heard()).run()
    assert heard == [("start", 24), *["step"] * 24, "finish"]


def test_bars_say_what_was_found(tmp_path, capsys):
    rollout(tmp_path, MadeUp(), progress=Bars(1, 24)).run()
    shown = capsys.readouterr()
    assert re.search(r"rms_norm: best \d\.\d\dx.*, 24 evaluations", shown.err) and not shown.out


def _start(folder, seconds):
    script = Path(__file__).with_name("made_up.py")
    return subprocess.Popen(
        [sys.executable, str(script), str(folder), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _wait_for(folder, count):
    """Waits until a run has that many verdicts."""
    until = time.monotonic() + 30
    while time.monotonic() < until and len(samples(folder)) < count:
        time.sleep(0.02)


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_is_not(tmp_path):
    rng, evaluated = random.Random(0), 0
    for _ in range(3):
        process = _start(tmp_path / "a", 0.1)
        _wait_for(tmp_path / "a", evaluated + 1)
        time.sleep(rng.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        evaluated = len(samples(tmp_path / "a"))
    assert evaluated < 48
    for name in "ab":
        options = {"names": ("rms_norm", "gemm"), "verify_best": False}
        rollout(tmp_path / name, MadeUp(), **options).run()
    assert samples(tmp_path / "a") == samples(tmp_path / "b")
    assert len(list(Run(tmp_path / "a").lines("candidates"))) == 48


def test_an_interrupt_ends_it_cleanly(tmp_path):
    process = _start(tmp_path, 0.2)
    _wait_for(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and out == "interrupted\n" and "Traceback" not in err, err
    assert time.monotonic() - started < 5
    done = len(samples(tmp_path))
    assert 1 <= done < 48
    rollout(tmp_path, MadeUp(), names=("rms_norm", "gemm")).run()
    assert len(samples(tmp_path)) == 48


def test_a_policy_with_nothing_to_propose_is_passed_over(tmp_path):
    class Picky(Iterative):
        def chains(self):
            if self.episode.workload.id == "gemm":
                raise NotApplicable("no kernel for gemm")
            return super().chains()

    run = rollout(tmp_path, MadeUp(), names=("gemm", "rms_norm"), verify_best=False)
    run.policy = Picky
    first, second = run.run()
    assert run.ended == "done" and first.note == "no kernel for gemm" and first.evaluations == 0
    assert second.evaluations == 24


def test_a_limit_that_was_reached_before_hides_nothing(tmp_path):
    names = ("rms_norm", "gemm")
    first = rollout(tmp_path, MadeUp(), names=names, verify_best=False)
    before = [outcome.to_dict() for outcome in first.run()]
    first.records.close()
    lines = (tmp_path / "candidates.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "candidates.jsonl").write_text("".join(lines[:-1]))
    again = rollout(tmp_path, MadeUp(), names=names, limits={"evaluations": 47})
    after = again.run()
    assert again.ended == "max-evaluations" and sum(o.evaluations for o in after) == 47
    for old, new in zip(before, after, strict=True):
        if new.done:
            assert new.best.candidate.hash == old["best_sha256"] and new.verified is not None


def test_where_all_finalists_fail_there_is_no_speedup(tmp_path):
    evaluator = MadeUp(full=lambda source: Status.INCORRECT)
    (outcome,) = rollout(tmp_path, evaluator).run()
    assert outcome.speedup is None and outcome.to_dict()["verified"] == "incorrect"
    assert len(list(Run(tmp_path).lines("finals"))) == 3


def test_what_a_busy_machine_may_have_caused_is_checked_again(tmp_path):
    first = rollout(tmp_path, MadeUp(full=lambda source: Status.TIMEOUT))
    (outcome,) = first.run()
    first.records.close()
    assert outcome.speedup is None and list(Run(tmp_path).lines("finals")) == []
    (outcome,) = rollout(tmp_path, MadeUp()).run()
    assert outcome.speedup is not None
