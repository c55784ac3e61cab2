"""Verdicts on disk."""

import dataclasses
import errno
import json
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import workloads
from jaxbench_env import EvalResult, Evaluator, KernelEnv, Status
from jaxbench_env.evaluator import cache, store
from jaxbench_env.evaluator import evaluator as evaluating
from jaxbench_env.evaluator.result import Provenance

OWN = Path(__file__).parents[1] / "fixtures" / "workloads" / "relu_matmul.py"
RMS_NORM = workloads.get("rms_norm")
SETTINGS = {"protocol": 1, "target": "v6e"}
VERSIONS = {"jax": "1", "jaxlib": "1", "libtpu": "1"}


@pytest.fixture(autouse=True)
def directory(monkeypatch, tmp_path):
    """A cache of the test's own, switched on."""
    monkeypatch.setenv("JAXBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAXBENCH_CACHE_BYTES")
    return tmp_path / "cache"


def result(source, *, seed=5, status=Status.INCORRECT, **fields):
    provenance = Provenance(
        workload="rms_norm", seed=seed, source_sha256=cache.source_hash(source), protocol=1
    )
    return EvalResult(status=status, provenance=provenance, **fields)


def name(source="text", *, workload=RMS_NORM, seed=None, versions=VERSIONS, settings=SETTINGS):
    return cache.key(workload, source, seed, versions, settings)


def files(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("attempt", ["ok", "wrong_signature"])
def test_the_second_verdict_is_the_first_without_the_work(attempt, attempts, monkeypatch):
    evaluator = Evaluator()
    first = evaluator.evaluate(RMS_NORM, attempts[attempt], seed=1)
    assert first.status == attempt, first.message
    monkeypatch.setattr(evaluating.tracing, "start", None)  # a second evaluation would raise
    again = evaluator.evaluate(RMS_NORM, attempts[attempt], seed=1)
    assert again.durations.keys() == {"cache", "total"} and again.durations["total"] < 1
    assert again == dataclasses.replace(first, durations=again.durations)
    assert again.to_dict(durations=False) == first.to_dict(durations=False)


def test_a_verdict_can_be_forced(attempts):
    for evaluator in (Evaluator(cache=False), Evaluator(), Evaluator(cache=False)):
        last = evaluator.evaluate(RMS_NORM, attempts["wrong_signature"], seed=1)
    assert "trace" in last.durations
    kept = Evaluator().evaluate(RMS_NORM, attempts["wrong_signature"], seed=1)
    assert "cache" in kept.durations  # forced ones are kept nevertheless


def test_everything_that_decides_a_verdict_is_in_its_name(tmp_path, monkeypatch):
    own = tmp_path / "own.py"
    own.write_text(OWN.read_text())
    mine = workloads.load(own)
    own.write_text(own.read_text() + "\n# edited\n")
    edited = workloads.load(own)
    bumped = dataclasses.replace(RMS_NORM, version=99)
    resized = dataclasses.replace(RMS_NORM, sizes={**RMS_NORM.sizes, "tiles": {"b": 1}})
    names = [
        name(),
        name("text "),
        name(seed=0),
        name(seed=1),
        name(versions={**VERSIONS, "libtpu": "2"}),
        name(settings={**SETTINGS, "protocol": 2}),
        name(settings={**SETTINGS, "target": "v5e"}),
        name(settings={**SETTINGS, "allow_library_kernels": True}),
        name(settings={**SETTINGS, "verify": "full"}),
        *(name(workload=w) for w in (bumped, resized, mine, edited, workloads.get("gemm"))),
        name(workload=workloads.get("26k")),
        name(workload=workloads.get("26k", "published")),
    ]
    with monkeypatch.context() as other:
        other.setattr(cache.sys, "version_info", (3, 99))
        names.append(name())
    monkeypatch.setattr(store, "code_version", lambda: "another")
    names.append(name())
    assert len({*names}) == len(names)


def test_seeds_of_the_system_and_of_the_caller_are_kept_apart():
    text = "text"
    cache.save(name(text), result(text, seed=12345))
    assert cache.load(name(text), RMS_NORM, text, None).provenance.seed == 12345
    assert cache.load(name(text, seed=12345), RMS_NORM, text, 12345) is None
    cache.save(name(text, seed=7), result(text, seed=7))
    assert cache.load(name(text, seed=7), RMS_NORM, text, 7).provenance.seed == 7
    assert cache.load(name(text, seed=8), RMS_NORM, text, 8) is None


def test_an_environment_without_a_seed_evaluates_a_text_once(attempts):
    def step(env, text):
        env.step(text)
        return env.last_result.durations

    for seed, cached in ((None, True), (3, False)):
        env = KernelEnv("rms_norm")
        env.reset(seed=seed)
        step(env, attempts["wrong_signature"])
        env.reset()
        assert ("cache" in step(env, attempts["wrong_signature"])) is cached


@pytest.mark.parametrize("status", sorted(cache.UNSETTLED))
def test_what_a_busy_machine_may_have_caused_is_not_kept(status, directory):
    cache.save(name(), result("text", status=status))
    assert not files(directory)


def test_verdicts_of_the_audit_and_of_less_than_all_fences_are_not_kept(attempts, directory):
    assert Evaluator().evaluate(RMS_NORM, attempts["rejected"]).status == "rejected"
    loose = Evaluator(without={"audit"})
    assert loose.evaluate(RMS_NORM, attempts["wrong_signature"]).status == "wrong_signature"
    assert not [path for path in files(directory) if "verdicts" in path.parts]


def test_a_simulated_run_that_was_cut_short_is_not_kept(attempts, directory, monkeypatch):
    short = {"outcome": "failed", "reason": "the simulated run ended early", "cut_short": True}
    monkeypatch.setattr(evaluating.tracing.Trace, "race", lambda self: dict(short))
    verdict = Evaluator().evaluate(RMS_NORM, attempts["ok"], seed=1)
    assert verdict.correct and verdict.shown["memory"] == short["reason"]
    assert not files(directory)


@pytest.mark.parametrize("status", ["timeout", "out_of_memory", "crashed"])
def test_a_check_at_full_size_that_was_cut_short_is_not_kept(status, monkeypatch):
    def refuse(*_):
        raise evaluating.Refused(Status(status), "took too long")

    fields = {"message": "", "times": None, "memory": None, "counters": {}, "numerics": ()}
    monkeypatch.setattr(evaluating, "pool", lambda: SimpleNamespace(ask=refuse))
    run = evaluating._Run(RMS_NORM, "text", 1, artefacts={"v6e": b""})
    assert "Not checked" in evaluating._verify_full(run, fields, None)["message"]
    assert not run.repeatable


def test_presets_and_full_size_have_verdicts_of_their_own():
    keys = {Evaluator(verify=v)._key(RMS_NORM, "text", 1) for v in evaluating.VERIFY}
    assert len(keys) == 2


GARBAGE = {
    "empty": b"",
    "cut short": json.dumps(result("text").to_dict()).encode()[:-40],
    "a list": b"[]",
    "null": b"null",
    "bytes": bytes(range(256)),
    "nested": b"[" * 100_000,
    "half a record": b'{"status": "ok"}',
    "no such status": b'{"status": "perfect"}',
    "of another text": json.dumps(result("another").to_dict()).encode(),
    "of another workload": json.dumps(result("text").to_dict()).replace("rms_norm", "x").encode(),
    "of our fault": json.dumps(result("text", status=Status.EVALUATOR_ERROR).to_dict()).encode(),
    "from the future": json.dumps({**result("text").to_dict(), "new_field": 1}).encode(),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_file_that_is_no_such_record_is_not_believed(what, directory):
    path = directory / "verdicts" / name()[:2] / f"{name()}.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(GARBAGE[what])
    assert cache.load(name(), RMS_NORM, "text", None) is None
    cache.save(name(), result("text"))
    assert cache.load(name(), RMS_NORM, "text", None).status == "incorrect"


def test_a_folder_in_the_place_of_a_record_does_no_harm(directory):
    path = directory / "verdicts" / name()[:2] / f"{name()}.json"
    path.mkdir(parents=True)
    cache.save(name(), result("text"))
    assert cache.load(name(), RMS_NORM, "text", None) is None
    assert not list(path.parent.glob("*.tmp"))


def test_any_text_and_any_number_survives(directory):
    text = "\ud800\0é"
    strange = result(text, message="\ud800\u2028", counters={"inf": float("inf"), "x": 0.1 + 0.2})
    cache.save(name(text), strange)
    found = cache.load(name(text), RMS_NORM, text, None)
    assert dataclasses.replace(found, durations={}) == strange


def test_the_cache_is_bounded_and_keeps_what_was_used_last(directory, monkeypatch):
    folder = "ab"
    monkeypatch.setenv("JAXBENCH_CACHE_BYTES", str(256 * 5 * 4096))
    names = [f"{folder}{i:030x}" for i in range(12)]
    for number, each in enumerate(names):
        cache.save(each, result("text"))
        os.utime(directory / "verdicts" / folder / f"{each}.json", (number, number))
    left = sorted(path.stem for path in files(directory))
    assert left == names[-5:]
    assert cache.load(names[7], RMS_NORM, "text", None) is not None  # now it is the newest
    cache.save(f"{folder}{'f' * 30}", result("text"))
    left = sorted(path.stem for path in files(directory))
    assert names[7] in left and names[8] not in left and len(left) == 5
    assert cache.info().bytes <= cache.info().limit_bytes


def test_what_a_killed_writer_left_goes_in_the_end(directory):
    folder = directory / "verdicts" / name()[:2]
    folder.mkdir(parents=True)
    for age, left in ((10, "young.tmp"), (7200, "old.tmp")):
        (folder / left).write_text("half")
        os.utime(folder / left, (time.time() - age,) * 2)
    cache.save(name(), result("text"))
    assert sorted(p.name for p in folder.iterdir()) == sorted([f"{name()}.json", "young.tmp"])


def test_many_writers_and_readers_see_whole_records_only():
    texts = [f"{i}" * 50_000 for i in range(4)]
    verdicts = [result(t, message=t) for t in texts]
    names = [f"ab{i:030x}" for i in range(4)]
    missing, over = [], threading.Event()

    def read():
        while not over.is_set():
            for each, text in zip(names, texts, strict=True):
                found = cache.load(each, RMS_NORM, text, None)
                if found is None or found.message != text:
                    missing.append(each)

    def write():
        for _ in range(25):
            for each, verdict in zip(names, verdicts, strict=True):
                cache.save(each, verdict)

    for each, verdict in zip(names, verdicts, strict=True):
        cache.save(each, verdict)
    with ThreadPoolExecutor(5) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        for writer in [threads.submit(write) for _ in range(3)]:
            writer.result()
        over.set()
        for reader in readers:
            reader.result()
    assert not missing


def test_a_full_disk_leaves_nothing_behind(directory, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.save(name(), result("text"))
    store.save("baselines", "x", {})
    assert cache.load(name(), RMS_NORM, "text", None) is None
    assert not files(directory)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full(small_disk, monkeypatch):
    monkeypatch.setenv("JAXBENCH_CACHE", str(small_disk / "cache"))
    for i in range(100):
        cache.save(f"{i:02d}{'0' * 30}", result("text", message="x" * 3000))
    assert 0 < cache.info().verdicts < 20
    assert not list(small_disk.rglob("*.tmp"))


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/cache"])
def test_where_nothing_can_be_written_verdicts_are_made(place, monkeypatch, attempts):
    monkeypatch.setenv("JAXBENCH_CACHE", place)
    for _ in range(2):
        verdict = Evaluator().evaluate(RMS_NORM, attempts["wrong_signature"])
        assert verdict.status == "wrong_signature" and "trace" in verdict.durations
    assert cache.info().verdicts == 0 and cache.clear().verdicts == 0


def test_it_can_be_switched_off_and_bad_limits_are_explained(monkeypatch, directory):
    monkeypatch.setenv("JAXBENCH_CACHE_BYTES", "0")
    cache.save(name(), result("text"))
    assert not files(directory)
    monkeypatch.setenv("JAXBENCH_CACHE_BYTES", "1 GiB")
    with pytest.raises(ValueError, match="JAXBENCH_CACHE_BYTES is a number of bytes"):
        cache.limit_bytes()


def test_clearing_removes_verdicts_and_leaves_baselines(directory):
    cache.save(name(), result("text"))
    store.save("baselines", "x", {"ms": 1})
    assert cache.info().verdicts == 1 and cache.info().bytes > 0
    assert cache.clear().verdicts == 1
    assert cache.info().verdicts == 0 and store.load("baselines", "x") == {"ms": 1}
