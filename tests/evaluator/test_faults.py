"""Full disks, dead processes, files of others: nothing is left behind and nobody is blamed."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

import workloads
from jaxbench_env import Evaluator
from jaxbench_env.evaluator import build as building
from jaxbench_env.evaluator import sandbox
from jaxbench_env.evaluator.judge.pool import pool
from jaxbench_env.evaluator.judge.worker import named

RMS_NORM = workloads.get("rms_norm")
ENDLESS = "while True: pass\n\ndef workload(x, scale):\n    return x\n"


def marked(mark):
    """Living processes that have the mark in their environment or their arguments."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/environ").read_bytes()
            text += Path(f"/proc/{pid}/cmdline").read_bytes()
            if mark.encode() in text and int(pid) != os.getpid():
                found.append(int(pid))
    return found


def until(true, seconds=90):
    """Waits until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


def program(code, folder, **variables):
    """A program whose temporary files, cache and sockets are in a folder."""
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "XDG_RUNTIME_DIR": str(folder),
        "JAXBENCH_CACHE": str(folder / "cache"),
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-c", f"import jaxbench_env\n{code}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def work_directories(folder):
    """Directories of zygotes."""
    return list(folder.glob("jaxbench-????????"))


def test_a_killed_program_leaves_nothing_behind(tmp_path):
    """Killed in the middle of `evaluate_many`, without a service."""
    jobs = f"[('rms_norm', {ENDLESS!r})] * 3"
    killed = program(f"jaxbench_env.evaluate_many({jobs}, workers=2)", tmp_path)
    # A trace child is at work as soon as it has a directory to write to.
    until(lambda: [d for d in work_directories(tmp_path) if list(d.glob("*/out"))])
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    until(lambda: not marked(str(tmp_path)) and not work_directories(tmp_path))
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert not left - {"0", "1"}  # compile slots, and nobody holds them:
    for slot in tmp_path.glob("jaxbench-slots-*/*"):
        with open(slot) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
def test_a_killed_service_leaves_nothing_behind(tmp_path):
    code = (
        "import os, signal\n"
        "from jaxbench_env.evaluator.service import address, client\n"
        "text = 'def workload(x, scale):\\n    return x'\n"
        "print(jaxbench_env.evaluate('rms_norm', text).status)\n"
        "os.kill(client.answers(address.own(), 'status')['pid'], signal.SIGKILL)"
    )
    output, _ = program(code, tmp_path, JAXBENCH_SERVICE="on").communicate(timeout=300)
    assert "no_kernel" in output
    until(lambda: not marked(str(tmp_path)) and not work_directories(tmp_path))


@pytest.mark.slow
def test_two_programs_with_one_cache_agree(tmp_path, attempts):
    code = (
        f"print(jaxbench_env.evaluate('rms_norm', {attempts['wrong_signature']!r}, seed=1)"
        ".to_dict(durations=False))"
    )
    pair = [program(code, tmp_path, JAXBENCH_CACHE_BYTES="") for _ in range(2)]
    first, second = (each.communicate(timeout=300)[0] for each in pair)
    assert first == second and "wrong_signature" in first
    assert len(list((tmp_path / "cache" / "verdicts").rglob("*.json"))) == 1


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A file system of 1 MiB for all temporary files."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    own = sandbox.Sandbox()
    monkeypatch.setattr(sandbox, "_sandboxes", {os.getpid(): own})
    yield disk
    own.close()
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_the_evaluators_failure(small_disk, attempts):
    verdict = Evaluator().evaluate(RMS_NORM, attempts["ok"])
    assert verdict.status == "evaluator_error"
    assert "not the kernel" in verdict.message and "No space left" in verdict.message


def test_a_program_that_writes_without_end_is_stopped():
    text = (
        "for i in range(10**9):\n    open(f'{i % 64}', 'ab').write(b'x' * (1 << 22))\n"
        "def workload(x, scale):\n    return x\n"
    )
    verdict = Evaluator(without={"audit"}).evaluate(RMS_NORM, text)
    assert verdict.status == "crashed" and "wrote more than 128 MiB" in verdict.message


@pytest.fixture(scope="module")
def reference():
    return pool().ask("numerics", {"do": "reference", **named(RMS_NORM)})[1][0]


def test_a_dump_that_grows_without_end_is_stopped(reference):
    limits = replace(building.COMPILE_LIMITS, disk_bytes=10_000)
    with pytest.raises(building.BuildError, match="too large to be analysed") as caught:
        building.build(reference, limits=limits)
    assert caught.value.status == "out_of_memory"


def test_a_lock_file_of_another_compiler_stops_nothing(reference):
    path = Path("/tmp/libtpu_lockfile")
    ours = not path.exists()
    with open(path, "a") as file:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            assert building.build(reference).prediction["ms"] > 0
        finally:
            if ours:
                path.unlink()
