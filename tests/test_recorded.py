import dataclasses
import gzip
import json

import gymnasium as gym
import pytest

import workloads
from jaxbench_env import KernelEnv, RecordedEvaluator, Status, feedback, recorded
from jaxbench_env.canonical import canonical_hash
from jaxbench_env.evaluator.evaluator import PROTOCOL, Evaluator

WORKLOAD = workloads.get("rms_norm")


@pytest.fixture(scope="module")
def verdicts(attempts):
    evaluator = Evaluator()
    return {
        attempts[name]: evaluator.evaluate(WORKLOAD, attempts[name], seed=1)
        for name in ("ok", "incorrect", "compile_error")
    }


@pytest.fixture(scope="module")
def folder(verdicts, tmp_path_factory):
    return write(tmp_path_factory.mktemp("records"), verdicts)


def write(folder, verdicts, **changes):
    made = next(iter(verdicts.values())).provenance
    head = {**recorded.header(WORKLOAD, Evaluator().baseline(WORKLOAD), made), **changes}
    rows = [
        {"kernel": canonical_hash(text), "values": {}, "result": recorded.shrink(result)}
        for text, result in verdicts.items()
    ]
    recorded.write(folder / "rms_norm.jsonl.gz", head, rows)
    return folder


def test_a_recorded_verdict_is_the_verdict(folder, verdicts):
    evaluator = RecordedEvaluator(folder)
    for text, result in verdicts.items():
        found = evaluator.evaluate(WORKLOAD, text)
        assert found.status is result.status and found.stage is result.stage
        assert found.speedup == (result.speedup and pytest.approx(result.speedup, rel=1e-5))
        assert found.counters == pytest.approx(result.counters, rel=1e-5)
        assert found.provenance == result.provenance
        assert feedback(found, text) == feedback(result, text)


def test_a_recorded_episode_is_the_episode(folder, attempts):
    rewards = []
    for evaluator in (None, RecordedEvaluator(folder)):
        env = gym.make("JAXBench/rms_norm", evaluator=evaluator)
        observation, _ = env.reset()
        assert observation["times"][1] > 0
        observation, reward, *_, info = env.step(attempts["ok"])
        assert observation in env.observation_space
        assert info["best"]["source"] == attempts["ok"]
        rewards.append(reward)
    assert rewards[0] == pytest.approx(rewards[1], rel=1e-5)


def test_comments_do_not_matter_and_anything_else_is_missing(folder, attempts):
    evaluator = RecordedEvaluator(folder)
    text = "# a comment\n" + attempts["ok"]
    found = evaluator.evaluate(WORKLOAD, text)
    assert found.status is Status.OK and evaluator.knows(WORKLOAD, text)
    other = attempts["ok"] + "\nx = 1\n"
    assert not evaluator.knows(WORKLOAD, other)
    with pytest.raises(recorded.MissingRecord, match="none of the 3 verdicts.*jaxbench tune"):
        evaluator.evaluate(WORKLOAD, other)


def test_a_workload_without_a_table_is_an_error(folder):
    with pytest.raises(recorded.RecordError, match="has some of rms_norm"):
        RecordedEvaluator(folder).baseline(workloads.get("gemm"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"protocol": PROTOCOL - 1}, "protocol"),
        ({"target": "v5e"}, "target"),
        ({"workload": "gemm"}, "workload"),
        ({"workload_version": 0}, "workload_version"),
        ({"format": 0}, "format"),
    ],
)
def test_stale_tables_are_refused(tmp_path, verdicts, changes, says):
    write(tmp_path, verdicts, **changes)
    with pytest.raises(recorded.StaleRecords, match=says):
        RecordedEvaluator(tmp_path).evaluate(WORKLOAD, "")


@pytest.mark.parametrize("data", [b"", b"text", gzip.compress(b"{}"), gzip.compress(b"[1]\n[2]")])
def test_what_is_no_table_is_said_to_be_none(tmp_path, data):
    (tmp_path / "rms_norm.jsonl.gz").write_bytes(data)
    with pytest.raises(recorded.RecordError):
        RecordedEvaluator(tmp_path).baseline(WORKLOAD)


def test_long_texts_are_cut_and_nothing_empty_is_kept(verdicts):
    result = next(iter(verdicts.values()))
    long = dataclasses.replace(result, details="first" + "x" * 100_000 + "last")
    record = json.dumps(recorded.shrink(long))
    assert len(record) < len(json.dumps(recorded.shrink(result))) + recorded.MAX_TEXT + 100
    assert "first" in record and "last" in record and "null" not in record


def test_an_evaluator_is_given_alone(folder):
    with pytest.raises(ValueError, match="an evaluator is given"):
        KernelEnv("rms_norm", evaluator=RecordedEvaluator(folder), verify="full")
    env = KernelEnv("rms_norm", evaluator=RecordedEvaluator(folder, target="v5e"))
    assert env.target == "v5e"
    with pytest.raises(recorded.StaleRecords):
        env.reset()
