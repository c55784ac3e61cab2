"""Limits of time do not count what other processes take."""

import subprocess
import sys
import time

import pytest

from jaxbench_env.evaluator.judge.pool import Patience, Pool, Refused


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process.pid
    process.kill()
    process.wait()


def test_sleep_counts(sleeper):
    patience = Patience(sleeper, 0.2)
    assert not patience.over()
    time.sleep(0.5)
    assert patience.over()


def test_waiting_for_a_processor_does_not_count_up_to_the_backstop(sleeper, monkeypatch):
    patience = Patience(sleeper, 0.2)
    waited = iter(range(1, 100))  # a second more each time: longer than really passes
    monkeypatch.setattr(patience, "_waiting", lambda: {"1": float(next(waited))})
    patience.over()
    time.sleep(0.5)
    assert not patience.over()
    time.sleep(0.2 * Patience.BACKSTOP)
    assert patience.over()


@pytest.mark.parametrize(
    ("do", "what"),
    [
        ("check", "running the kernel in interpret mode"),
        ("examine", "reading the traced programs"),
        ("price", "replaying the schedule"),
    ],
)
def test_a_timeout_says_what_took_long(do, what):
    judges = Pool()
    try:
        with pytest.raises(Refused, match=f"^{what} took longer than"):
            judges.ask("price", {"do": do}, timeout=0.01)
    finally:
        judges.close()
