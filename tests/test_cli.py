import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import workloads
from jaxbench_env.cli import main

ATTEMPTS = Path(__file__).parent / "fixtures" / "attempts"
OWN = Path(__file__).parent / "fixtures" / "workloads"


def run(*arguments, **kwargs):
    return CliRunner().invoke(main, [str(a) for a in arguments], **kwargs)


def test_help_names_every_command():
    text = run("--help").output
    assert all(name in text for name in ("list", "show", "eval", "trace", "tune", "demo", "doctor"))


def test_list_shows_every_workload():
    assert all(name in run("list").output for name in workloads.ids())
    assert [row["id"] for row in json.loads(run("list", "--json").output)] == [*workloads.ids()]


def test_show_prints_the_task():
    assert run("show", "16p").output == workloads.get("mamba2_scan").task_text() + "\n"
    assert json.loads(run("show", "gemm", "--json").output)["messages"][0]["role"] == "system"


@pytest.mark.parametrize(("attempt", "code"), [("ok", 0), ("no_kernel", 1), ("syntax_error", 1)])
def test_eval_tells_the_verdict_by_its_exit_code(attempt, code):
    result = run("eval", "rms_norm", ATTEMPTS / f"{attempt}.py", "--seed", 1)
    assert result.exit_code == code
    assert f"Status: {attempt}." in result.output


def test_eval_as_json():
    result = run("eval", "rms_norm", ATTEMPTS / "no_kernel.py", "--json")
    record = json.loads(result.output)
    assert record["status"] == "no_kernel" and record["durations"]["total"] > 0


def test_eval_reads_standard_input_and_any_bytes():
    result = run("eval", "rms_norm", "-", input=b"\xff\xfe\x00 not text")
    assert result.exit_code == 1 and "syntax_error" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["eval", "rmsnorm", "x.py"], "did you mean 'rms_norm'"),
        (["eval", "rms_norm", "/no/such/file.py"], "No such file"),
        (["eval", "rms_norm"], "Missing argument"),
        (["show", "16q"], "no workload"),
        (["eval", "rms_norm", "-", "--seed", "-1"], "-1 is not in the range"),
        (["audit", "workloads", "--only", "nothing"], "no workload"),
        (["list", "--family", "cats"], "no family"),
        (["list", "--sort", "colour"], "no column"),
    ],
)
def test_wrong_use_is_explained_and_exits_with_2(arguments, says):
    result = run(*arguments)
    assert result.exit_code == 2 and says in result.output


def test_a_file_is_shown_as_a_workload():
    result = run("show", OWN / "relu_matmul.py")
    assert result.exit_code == 0 and "# relu_matmul (relu_matmul.py)" in result.output


def test_a_kernel_is_evaluated_against_a_file(monkeypatch):
    monkeypatch.setattr(sys.modules["jaxbench_env.cli.main"], "LONG_SECONDS", 0)
    arguments = ("eval", OWN / "scaled_softmax.py", OWN / "scaled_softmax_kernel.py", "--json")
    result = run(*arguments)
    record = json.loads(result.stdout)
    assert result.exit_code == 0 and record["correct"]
    assert record["provenance"]["workload"] == "scaled_softmax"
    assert "Checking the numbers takes about" in result.stderr and "PRESETS" in result.stderr


def test_a_file_that_is_no_workload_is_wrong_use(tmp_path):
    result = run("show", OWN / "scaled_softmax_kernel.py")
    assert result.exit_code == 2 and "NameError" not in result.output
    assert "no dict `CONFIG`" in result.output
    result = run("eval", tmp_path / "missing.py", OWN / "scaled_softmax_kernel.py")
    assert result.exit_code == 2 and "cannot be read" in result.output


def test_a_byte_order_mark_is_passed_over(tmp_path, attempts):
    path = tmp_path / "kernel.py"
    path.write_text("\ufeff" + attempts["no_kernel"], encoding="utf-8")
    assert "Status: no_kernel." in run("eval", "rms_norm", path).output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_evaluation_leaves_nothing(number, tmp_path):
    """Neither files nor processes, whether or not Python had a chance to clean up."""
    (tmp_path / "temporary").mkdir()
    kernel = tmp_path / "kernel.py"
    kernel.write_text("while True: pass\ndef workload(x, scale): return x\n")
    command = [sys.executable, "-m", "jaxbench_env.cli", "eval", "rms_norm", str(kernel)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "temporary").glob("jaxbench-*/*/job.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    for _ in range(100):
        if not list((tmp_path / "temporary").glob("jaxbench-*/*")):
            break
        time.sleep(0.1)
    assert not list((tmp_path / "temporary").glob("jaxbench-*/job.json"))
    assert not [p for p in (tmp_path / "temporary").iterdir() if "slots" not in p.name]


def test_trace_writes_the_timeline_of_a_kernel(tmp_path):
    file = tmp_path / "out.json.gz"
    kernel = ATTEMPTS / "ok.py"
    result = run("trace", "rms_norm", kernel, "-o", file, "--iterations", 2, "--json")
    written = json.loads(result.output)
    assert result.exit_code == 0 and written["bytes"] == file.stat().st_size
    document = json.loads(gzip.decompress(file.read_bytes()))
    whole = max(event["dur"] for event in document["traceEvents"] if event["name"] == "TLP")
    # the time is also that of a launch, some microseconds
    assert 0 <= 1000 * written["predicted_ms"] - whole < 10
    # the compiler's source annotations name lines of the kernel text
    assert any(event["name"].startswith("line ") for event in document["traceEvents"])


def test_trace_says_why_there_is_none(tmp_path):
    result = run("trace", "rms_norm", ATTEMPTS / "syntax_error.py", "-o", tmp_path / "t", "--json")
    assert result.exit_code == 1 and "syntax_error" in json.loads(result.output)["error"]


@pytest.mark.parametrize(
    "arguments", [["rms_norm"], ["rms_norm", ATTEMPTS / "ok.py", "--baseline"]]
)
def test_trace_is_of_a_kernel_or_of_the_baseline(arguments):
    result = run("trace", *arguments)
    assert result.exit_code == 2 and "--baseline" in result.output


def test_a_failing_evaluator_exits_with_3(monkeypatch):
    from jaxbench_env.evaluator import tracing
    from jaxbench_env.evaluator.sandbox import SandboxError

    def broken(*_):
        raise SandboxError("no room")

    monkeypatch.setattr(tracing, "start", broken)
    result = run("eval", "rms_norm", ATTEMPTS / "ok.py")
    assert result.exit_code == 3 and "no room" in result.output


def test_doctor_compiles_something():
    result = run("doctor", "--json")
    facts = json.loads(result.output)
    assert result.exit_code == 0 and facts["compiles"]
    assert facts["versions"]["libtpu"] and "limits" in facts["fences"]
    assert "works" in run("doctor").output


def test_the_demo_ends_with_a_right_kernel():
    result = run("demo")
    assert result.exit_code == 0, result.output
    task, rest = result.output.split("Attempt 1", 1)
    assert workloads.get("mamba2_scan").task_text() in task
    statuses = re.findall(r"^Status: (\w+)\.", rest, re.MULTILINE)
    assert statuses == ["compile_error", "incorrect", "ok"]
    assert float(re.findall(r"^Reward: ([\d.]+)", rest, re.MULTILINE)[-1]) > 5
    assert "predicted, not measured" in rest
