"""The evaluation service: one for all, and what happens when someone dies."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import gymnasium as gym
import pytest
from click.testing import CliRunner

import workloads
from jaxbench_env import Evaluator, evaluate, evaluate_many
from jaxbench_env.cli import main
from jaxbench_env.evaluator import baseline as baselines
from jaxbench_env.evaluator import sandbox
from jaxbench_env.evaluator.judge import pool
from jaxbench_env.evaluator.judge.worker import receive
from jaxbench_env.evaluator.service import address, client, server
from jaxbench_env.evaluator.service.client import SharedEvaluator
from jaxbench_env.evaluator.service.turns import Turns
from jaxbench_env.evaluator.stop import Stop

FIXTURES = Path(__file__).parents[1] / "fixtures"
RMS_NORM = workloads.get("rms_norm")
ENDLESS = "while True: pass\n\ndef workload(x, scale):\n    return x\n"
QUICK = "def workload(x, scale):\n    return x\n"  # runs in the sandbox, and is no kernel


def status():
    """What the test's own service says of itself; of none that it does nothing."""
    return client.answers(address.own(), "status") or {"pid": 0, "running": 0, "waiting": 0}


def until(true, seconds=60):
    """Waits until something is true."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
    return found


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def marked(mark):
    """Processes that have the mark in their environment or their arguments."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/environ").read_bytes()
            text += Path(f"/proc/{pid}/cmdline").read_bytes()
            if mark.encode() in text and alive(pid):
                found.append(int(pid))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A machine of the tests' own: cache, temporary files and sockets are in this folder."""
    return tmp_path_factory.mktemp("machine")


@pytest.fixture(scope="module", autouse=True)
def machine(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXBENCH_SERVICE", "on")
        patch.setenv("JAXBENCH_CACHE", str(folder / "cache"))
        patch.setenv("JAXBENCH_SERVICE_WORKERS", "2")
        patch.setenv("JAXBENCH_SERVICE_IDLE_SECONDS", "120")
        yield
        client.answers(address.own(), "stop")
        until(lambda: not [pid for pid in marked(str(folder)) if pid != os.getpid()])


def run(code, folder, **kwargs):
    """Starts a program that uses the service."""
    head = "import workloads, jaxbench_env\n"
    return subprocess.Popen([sys.executable, "-c", head + code], text=True, **kwargs)


def test_a_verdict_is_the_same_wherever_it_is_made(attempts):
    for name in ("no_kernel", "trace_error", "rejected", "syntax_error"):
        here = Evaluator().evaluate(RMS_NORM, attempts[name], seed=1)
        there = evaluate("rms_norm", attempts[name], seed=1)
        assert there.to_dict(durations=False) == here.to_dict(durations=False)
        assert there.durations["total"] > 0
    assert status()["served"] >= 4


@pytest.mark.slow
def test_clients_have_no_processes_of_their_own(monkeypatch, attempts):
    monkeypatch.setattr(sandbox, "_sandboxes", {})
    monkeypatch.setattr(pool, "_pools", {})
    assert evaluate("rms_norm", attempts["no_kernel"]).status == "no_kernel"
    own = FIXTURES / "workloads"
    text = (own / "relu_matmul_kernel.py").read_text()
    assert evaluate(own / "relu_matmul.py", text, seed=1).correct
    assert SharedEvaluator().baseline(workloads.get(own / "relu_matmul.py")).ms > 0
    assert not sandbox._sandboxes and not pool._pools


def test_any_text_can_be_sent():
    for text in ("", "\0", "\ud800", "x" * 2_000_000, "é" * 1000):
        assert evaluate("rms_norm", text).status in ("syntax_error", "rejected", "wrong_signature")


def test_a_workload_that_only_this_process_has_is_explained():
    import dataclasses

    with pytest.raises(ValueError, match="not the registered workload"):
        SharedEvaluator().evaluate(dataclasses.replace(RMS_NORM, version=2), "")


def test_many_clients_share_one_service(folder):
    pid = status()["pid"]
    texts = [QUICK] * 4
    code = f"print([r.status for r in jaxbench_env.evaluate_many([('rms_norm', {QUICK!r})] * 3)])"
    programs = [run(code, folder, stdout=subprocess.PIPE) for _ in range(2)]
    assert [r.status for r in evaluate_many([("rms_norm", t) for t in texts])] == ["no_kernel"] * 4
    assert all(p.communicate(timeout=120)[0].count("no_kernel") == 3 for p in programs)
    assert status()["pid"] == pid and len(address.every()) >= 1


def test_two_who_start_it_make_one():
    client.answers(address.own(), "stop")
    with ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda _: evaluate("rms_norm", QUICK), range(4)))
    assert [v.status for v in verdicts] == ["no_kernel"] * 4
    assert status()["served"] == 4
    services = [pid for pid in marked(str(address.own().lock)) if pid != os.getpid()]
    assert services == [status()["pid"]]


def test_a_killed_service_is_replaced_and_the_verdict_made_again(attempts):
    evaluate("rms_norm", QUICK)
    first = status()["pid"]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(evaluate, "rms_norm", attempts["ok"], seed=1)
        until(lambda: status()["running"] == 1)
        os.kill(first, signal.SIGKILL)
        assert waiting.result().status == "ok"
    assert status()["pid"] != first


def test_killed_judges_and_zygotes_are_replaced(attempts):
    evaluate("rms_norm", QUICK)
    service = status()["pid"]
    tasks = [task / "children" for task in Path(f"/proc/{service}/task").iterdir()]
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    assert len(children) >= 2
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    assert evaluate("rms_norm", attempts["no_kernel"]).status == "no_kernel"
    assert status()["pid"] == service


@pytest.mark.slow
def test_a_service_that_hangs_is_replaced(monkeypatch):
    evaluate("rms_norm", QUICK)
    hung = status()["pid"]
    monkeypatch.setattr(client, "SILENT_SECONDS", 8)
    os.kill(hung, signal.SIGSTOP)
    assert evaluate("rms_norm", QUICK).status == "no_kernel"
    assert status()["pid"] != hung and not alive(hung)


def test_a_service_that_cannot_start_is_the_evaluators_failure(monkeypatch, tmp_path):
    broken = tmp_path / "start.py"
    broken.write_text("raise SystemExit('no such luck')")
    monkeypatch.setenv("JAXBENCH_CACHE", str(tmp_path))  # another service than the other tests'
    monkeypatch.setattr(client, "_SCRIPT", broken)
    verdict = evaluate("rms_norm", QUICK)
    assert verdict.status == "evaluator_error"
    assert "does not start" in verdict.message and "no such luck" in verdict.message
    assert verdict.provenance.source_sha256 and verdict.provenance.workload == "rms_norm"
    # One that dies while it answers is tried twice.
    broken.write_text(
        "import socket, sys\nlistener = socket.socket(socket.AF_UNIX)\nlistener.bind(sys.argv[2])\n"
        "listener.listen()\nlistener.accept()\nimport os\nos.unlink(sys.argv[2])\n"
        "sys.exit('dead again')"
    )
    verdict = evaluate("rms_norm", QUICK)
    assert verdict.status == "evaluator_error" and "died twice" in verdict.message
    assert verdict.details == "" and verdict.message.count("dead again") >= 1


@pytest.mark.slow
def test_who_gives_up_ends_only_what_is_its_own(attempts):
    stop = Stop()
    with ThreadPoolExecutor(2) as threads:
        endless = threads.submit(SharedEvaluator().evaluate, RMS_NORM, ENDLESS, stop=stop)
        other = threads.submit(evaluate, "rms_norm", attempts["incorrect"], seed=1)
        until(lambda: status()["running"] == 2)
        stop.cancel()
        assert endless.result(20).status == "evaluator_error"
        assert other.result().status == "incorrect"
    until(lambda: status()["running"] == 0, 20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_ends_takes_its_jobs_along(number, folder):
    evaluate("rms_norm", QUICK)
    before = status()["pid"]
    code = f"jaxbench_env.evaluate_many([('rms_norm', {ENDLESS!r})] * 5, workers=4)"
    program = run(code, folder, stderr=subprocess.DEVNULL)
    until(lambda: status()["running"] == 2 and status()["waiting"] >= 1)
    program.send_signal(number)
    program.wait(20)
    until(lambda: status()["running"] == status()["waiting"] == 0, 20)
    assert evaluate("rms_norm", QUICK).status == "no_kernel"
    assert status()["pid"] == before


def test_environments_in_worker_processes_use_it(attempts):
    before = len(marked("zygote.py"))
    envs = gym.make_vec("JAXBench/rms_norm", num_envs=2, vectorization_mode="async")
    try:
        envs.reset(seed=0)
        *_, infos = envs.step((QUICK, attempts["wrong_signature"]))
        assert infos["result"]["status"].tolist() == ["no_kernel", "wrong_signature"]
        assert len(marked("zygote.py")) <= before + 1
    finally:
        envs.close()


def test_it_ends_when_it_is_not_needed(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("JAXBENCH_SERVICE_IDLE_SECONDS", "1")
    own = address.own()
    evaluate("rms_norm", "")
    pid = status()["pid"]
    until(lambda: not alive(pid), 20)
    assert not own.socket.exists() and not own.lock.exists()


def test_a_baseline_comes_from_the_service_once(monkeypatch, folder):
    monkeypatch.setattr(baselines, "shipped", lambda versions: {})
    monkeypatch.setattr(baselines, "_known", {})
    made = SharedEvaluator().baseline(RMS_NORM)
    monkeypatch.setattr(client, "ask", None)  # a second question would raise
    assert SharedEvaluator().baseline(RMS_NORM) is made and made.ms > RMS_NORM.roofline_ms()


def test_with_fences_off_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(client, "ask", None)
    evaluator = SharedEvaluator(without={"audit"})
    assert evaluator.evaluate(RMS_NORM, QUICK).status == "no_kernel"
    monkeypatch.setenv("JAXBENCH_SERVICE", "off")
    assert evaluate("rms_norm", QUICK).status == "no_kernel"
    monkeypatch.setenv("JAXBENCH_SERVICE", "maybe")
    with pytest.raises(ValueError, match="'on' or 'off', not 'maybe'"):
        evaluate("rms_norm", QUICK)


def test_the_command_shows_and_stops_it():
    evaluate("rms_norm", QUICK)
    rows = json.loads(CliRunner().invoke(main, ["service", "status", "--json"]).output)
    own = [row for row in rows if row["own"]]
    assert [row["pid"] for row in own] == [status()["pid"]]
    assert own[0]["workers"] == 2 and own[0]["versions"].keys() == {"jax", "jaxlib", "libtpu"}
    assert "2 workers" in CliRunner().invoke(main, ["service", "status"]).output


def test_a_socket_lies_where_only_its_user_can_go(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp/" + "x" * 100)  # too long for a socket's path
    monkeypatch.setattr(address.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = address.directory()
    assert folder.stat().st_mode & 0o777 == 0o700
    for parent in ("/proc", str(tmp_path)):
        monkeypatch.setenv("XDG_RUNTIME_DIR", parent)
        assert len(str(address.own().socket)) <= 107
    open_to_all = tmp_path / "jaxbench-env"
    open_to_all.chmod(0o755)
    assert address.directory() != open_to_all
    open_to_all.rmdir()
    open_to_all.symlink_to("/tmp")
    assert address.directory() != open_to_all


def test_without_a_directory_for_a_socket_each_works_alone_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(address, "directory", lambda: None)
    monkeypatch.setattr(client, "ask", None)
    client._warn_of_no_directory.cache_clear()
    for _ in range(2):
        assert evaluate("rms_norm", "").status == "syntax_error"
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "This process evaluates by itself" in caplog.text
    monkeypatch.setenv("JAXBENCH_SERVICE", "off")
    client._warn_of_no_directory.cache_clear()
    evaluate("rms_norm", "")
    assert len(caplog.records) == 1


def test_progress_is_told_before_the_answer():
    ours, theirs = address.socket.socketpair()
    steps = [["running the kernel", 1, 3], ["comparing", 2, 3]]

    def serve():
        with theirs, Connection(os.dup(theirs.fileno())) as connection:
            request = server._Request(receive(connection)[0], connection)
            for step in steps:
                request.say(state="progress", progress=step)
                request.say(state="running", waiting=0, workers=1)
            request.answer(heard=request.content["do"])

    with ours, ThreadPoolExecutor(1) as threads:
        served, seen = threads.submit(serve), []
        answer = client._exchange(ours, {"do": "x"}, Stop(), lambda *step: seen.append([*step]))
        served.result()
    assert answer["heard"] == "x" and seen == steps


@pytest.mark.slow
def test_numbers_at_the_published_size_come_from_the_service_with_progress():
    own, seen = FIXTURES / "workloads", []
    text = (own / "relu_matmul_kernel.py").read_text()
    result = SharedEvaluator(verify="full").evaluate(
        workloads.get(own / "relu_matmul.py"), text, seed=1, watch=lambda *s: seen.append(s)
    )
    assert result.correct and result.shown["numerics"] == "all of the output"
    assert seen[0] == ("drawing inputs", 0, seen[0][2]) and len(seen) == seen[0][2]


def test_another_user_is_not_talked_to(monkeypatch):
    evaluate("rms_norm", "")
    monkeypatch.setattr(address.os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to user"):
        ours, theirs = address.socket.socketpair()
        with ours, theirs:
            address.peer(ours)


def test_another_version_or_cache_has_another_service(monkeypatch):
    names = {address.own().path}
    monkeypatch.setattr(address.store, "code_version", lambda: "another")
    names.add(address.own().path)
    monkeypatch.setenv("JAXBENCH_CACHE", "/tmp/elsewhere")
    names.add(address.own().path)
    assert len(names) == 3


def test_clients_take_turns():
    turns = Turns(10)
    for number in range(4):
        turns.put("a", f"a{number}")
    turns.put("b", "b0")
    turns.put("c", "c0")
    assert [turns.take() for _ in range(3)] == ["a0", "b0", "c0"]
    turns.put("b", "b1")
    turns.drop("a", "a2")
    turns.drop("a", "gone")
    assert [turns.take() for _ in range(3)] == ["a1", "b1", "a3"]
    assert len(turns) == 0


def test_a_full_queue_takes_nothing_and_a_taker_waits():
    turns = Turns(2)
    assert turns.put("a", 1) and turns.put("b", 2) and not turns.put("b", 3)
    assert [turns.take(), turns.take()] == [1, 2]
    threading.Timer(0.2, turns.put, ["a", 4]).start()
    assert turns.take() == 4
