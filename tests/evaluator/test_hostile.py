"""Hostile texts with the audit off: the sandbox must hold by itself."""

import os
import subprocess
import sys
import time

import pytest

import workloads
from jaxbench_env import Evaluator
from jaxbench_env.evaluator import tracing
from jaxbench_env.evaluator.build import DEVICE_KINDS
from jaxbench_env.evaluator.sandbox import Limits

ROOT = os.getuid() == 0


def fences():
    """The sandbox's active parts on this machine."""
    job = tracing.start(workloads.get("rms_norm"), "", DEVICE_KINDS["v6e"], Limits())
    with job:
        return job.wait().fences


@pytest.fixture(scope="module")
def active():
    return fences()


def verdict(head, body="", seconds=20):
    """Evaluates a text whose first lines and whose function's first lines do harm."""
    text = f"{head}\ndef workload(x, scale):\n    {body or 'return x'}\n"
    evaluator = Evaluator(without={"audit"}, trace_seconds=seconds)
    return evaluator.evaluate(workloads.get("rms_norm"), text)


@pytest.mark.parametrize(
    ("head", "status", "says"),
    [
        ("", "no_kernel", "pallas_call"),
        ("x = 1\0", "syntax_error", "null bytes"),
        ("this is no Python", "syntax_error", "invalid syntax"),
        ("import os; os._exit(0)", "crashed", "exit code 0"),
        ("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV"),
        ("import sys; sys.exit(0)", "trace_error", "must only define functions"),
        ("raise KeyboardInterrupt", "trace_error", "KeyboardInterrupt"),
        ("while True: pass", "timeout", "must only define functions"),
        ("import time; time.sleep(1e9)", "timeout", "must only define functions"),
        ("import numpy as np; np.ones(50 << 30, np.uint8)", "out_of_memory", "GiB"),
        ("x = []\nwhile True: x.append(bytearray(100 << 20))", "out_of_memory", "4 GB"),
        ("print('{\"status\": \"ok\", \"speedup\": 99}')", "no_kernel", ""),
        ("import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'{\"event\": \"done\"}\\n')\n"
         "    except OSError: pass", "no_kernel", ""),
        ("import os; os.symlink('/etc/passwd', 'v6e.tpu'); os.symlink('/etc/passwd', 'tiles.cpu')",
         "no_kernel", ""),
        ("import workloads", "trace_error", "No module named 'workloads'"),
        ("import baselines", "trace_error", "No module named 'baselines'"),
        ("import jaxbench_env", "trace_error", "No module named 'jaxbench_env'"),
    ],
)  # fmt: skip
def test_harm_has_its_status_and_the_next_evaluation_works(head, status, says):
    seconds = 3 if status == "timeout" else 30
    result = verdict(head, seconds=seconds)
    assert result.status == status, result.message
    assert says in result.message
    assert verdict("").status == "no_kernel"


@pytest.mark.parametrize("victim", ["0", "os.getppid()", "-1"])
def test_killing_others_does_not_reach_the_evaluator(victim):
    result = verdict(f"import os\ntry: os.kill({victim}, 9)\nexcept OSError: pass")
    assert result.status in ("no_kernel", "crashed")


def test_a_fork_bomb_ends_and_leaves_nothing(active):
    before = _processes()
    result = verdict(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", seconds=5
    )
    assert result.status in ("timeout", "crashed", "trace_error", "out_of_memory")
    for _ in range(100):  # others may start and end some meanwhile
        if _processes() <= before + 2:
            break
        time.sleep(0.1)
    assert _processes() <= before + 2
    assert verdict("").status == "no_kernel"


def _processes():
    return len([name for name in os.listdir("/proc") if name.isdigit()])


def test_orphans_do_not_survive():
    marker = f"orphan-{os.getpid()}"
    result = verdict(
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    os.execv('/usr/bin/sleep', ['{marker}', '99'])"
    )
    assert result.status == "no_kernel"
    listing = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout
    assert marker not in listing


@pytest.mark.parametrize(
    ("fence", "head"),
    [
        ("network", "import socket; socket.create_connection(('127.0.0.1', 9), 2)"),
        ("files", "open('/etc/passwd').read()"),
        ("files", f"open({str(workloads.__file__)!r}).read()"),
        ("files", "open('/box/job2', 'w')"),
        ("user", "import os; os.setuid(0)"),
        ("user", "open('/usr/harm', 'w')"),
        ("pids", "import os; assert os.getpid() > 1000"),
        ("calls", "import ctypes; assert not ctypes.CDLL(None).unshare(0x10000000)"),
        (
            "calls",
            "import ctypes, errno; ctypes.CDLL(None, use_errno=True).syscall(425, 1, 0)\n"
            "assert ctypes.get_errno() != errno.EPERM",
        ),
    ],
)
def test_a_fence_keeps_its_promise(fence, head, active):
    if fence not in active:
        pytest.skip(f"the fence {fence} is not available on this machine")
    result = verdict(head)
    assert result.status == "trace_error", result.message


def test_all_fences_stand_where_we_are_root(active):
    if not ROOT:
        pytest.skip("only root can be sure to have all of them")
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("this container forbids namespaces")
    assert {*active} == {"limits", "supervisor", "pids", "network", "files", "user", "calls"}


def test_a_broken_sandbox_is_the_evaluators_failure(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    from jaxbench_env.evaluator import sandbox

    monkeypatch.setattr(sandbox, "_sandboxes", {os.getpid(): sandbox.Sandbox()})
    result = verdict("")
    assert result.status == "evaluator_error"
    assert "not the kernel" in result.message
