"""The judge processes of this process: started when needed, replaced when they die."""

from __future__ import annotations

import atexit
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jaxbench_env.evaluator.judge import worker
from jaxbench_env.evaluator.result import Status
from jaxbench_env.evaluator.sandbox import TPU_ENVIRONMENT
from jaxbench_env.evaluator.stop import Stop

ADDRESS_SPACE = 24 << 30
# A worker is replaced after so many requests, or when it still holds so much memory after one: what
# jax remembers of many candidates adds up.
MAX_REQUESTS = 200
MAX_RESIDENT_BYTES = 2 << 30
_ROOT = Path(__file__).parents[3]  # the directory that holds the packages


Watch = Callable[[str, int, int], None]  # what is being done, steps done, steps in all


class JudgeError(RuntimeError):
    """The judge itself failed: never the candidate's fault."""


class Refused(Exception):
    """The judge refuses the candidate. `status` is the verdict."""

    def __init__(self, status: Status, message: str):
        super().__init__(message)
        self.status = status


class Died(Exception):
    """A judge process ended without an answer."""


class Worker:
    """One judge process."""

    def __init__(self) -> None:
        """Starts the process; it is ready when it answers."""
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TPU_"))}
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", worker.__name__, str(theirs.fileno()), str(ADDRESS_SPACE)],
                pass_fds=[theirs.fileno()],
                env={
                    **inherited,
                    **TPU_ENVIRONMENT,
                    # A cast to bfloat16 is meant: XLA would otherwise skip some on a CPU.
                    "XLA_FLAGS": "--xla_allow_excess_precision=false",
                    "PYTHONPATH": path,
                },
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
        self._connection = Connection(ours.detach())
        self.requests = 0

    def ask(
        self,
        request: dict[str, Any],
        blobs: Sequence[bytes],
        timeout: float,
        stop: Stop,
        watch: Watch | None = None,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Sends one request and waits for the answer; a cancelled `stop` ends the process.

        Raises:
            Refused: If the judge refuses the candidate, is killed by it or takes too long.
            Died: If the process ends.
            JudgeError: If the judge fails by itself.
        """
        self.requests += 1
        stop.add(self)
        try:
            worker.send(self._connection, request, blobs)
            answer, out = self._answer(request["do"], timeout)
            while "progress" in answer:
                if watch is not None:
                    watch(*answer["progress"])
                answer, out = self._answer(request["do"], timeout)
        except (EOFError, OSError):
            code = self._process.wait()
            raise Died(f"{_what(request['do'])} killed the judge's process ({code})") from None
        finally:
            stop.discard(self)  # from here on it is at work for others
        if answer["ok"]:
            return answer, out
        if answer["status"]:
            raise Refused(Status(answer["status"]), answer["error"])
        raise JudgeError(answer["error"])

    def _answer(self, do: str, timeout: float) -> tuple[dict[str, Any], list[bytes]]:
        """The next message, within `timeout` seconds of the process' own time.

        A process that waits for a processor spends none: a verdict must not depend on the load.
        """
        patience = Patience(self._process.pid, timeout)
        while not self._connection.poll(min(0.5, timeout)):
            if not patience.over():
                continue
            self.kill()
            raise Refused(
                Status.TIMEOUT,
                f"{_what(do)} took longer than {timeout:.0f} s; use larger blocks or fewer loop "
                "iterations",
            )
        return worker.receive(self._connection)

    @property
    def alive(self) -> bool:
        """Whether it can take another request."""
        return (
            self._process.poll() is None
            and self.requests < MAX_REQUESTS
            and self.resident_bytes() <= MAX_RESIDENT_BYTES
        )

    def resident_bytes(self) -> int:
        """Memory of the process; 0 if there is none, or on a system that does not say."""
        try:
            with open(f"/proc/{self._process.pid}/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            return 0

    def kill(self) -> None:
        """Ends the process; another thread that waits for its answer sees it end."""
        self._process.kill()
        self._process.wait()

    cancel = kill

    def close(self) -> None:
        """Ends the process and frees what belongs to it. May be called more than once."""
        self.kill()
        self._connection.close()
        self._log.close()


def _what(do: str) -> str:
    """The work of a request, as the subject of a sentence about a kernel."""
    if do in ("check", "simulated", "full"):
        return "running the kernel in interpret mode"
    if do in ("inspect", "examine", "feeds"):
        return "reading the traced programs"
    return "replaying the schedule" if do == "price" else f"the judge's work ({do})"


class Patience:
    """A limit on a process' time in which what other processes take does not count.

    Time counts if the process runs or sleeps, not if it waits for a processor (the kernel's
    schedstat says how long each thread did). `BACKSTOP` times the limit ends it in any case.
    """

    BACKSTOP = 8

    def __init__(self, pid: int, seconds: float):
        """Starts to count."""
        self._pid, self._seconds = pid, seconds
        self._started = self._last = time.monotonic()
        self._spent, self._waited = 0.0, self._waiting()

    def _waiting(self) -> dict[str, float]:
        """Seconds that each thread has waited for a processor."""
        found = {}
        try:
            for thread in os.listdir(f"/proc/{self._pid}/task"):
                with open(f"/proc/{self._pid}/task/{thread}/schedstat") as file:
                    found[thread] = int(file.read().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            pass  # threads end; a system without it counts wall time
        return found

    def over(self) -> bool:
        """Whether the limit is passed. To be asked often."""
        now, waited = time.monotonic(), self._waiting()
        lost = max((t - self._waited.get(k, t) for k, t in waited.items()), default=0.0)
        self._spent += max(0.0, now - self._last - lost)
        self._last, self._waited = now, waited
        return self._spent > self._seconds or now - self._started > self.BACKSTOP * self._seconds


class Pool:
    """Judge processes by turns. Thread-safe; grows with the number of concurrent requests."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._lock = threading.Lock()
        self._idle: dict[str, list[Worker]] = {}
        self._all: set[Worker] = set()
        self._generation = 0  # raised by close, so that nobody starts again what it has ended
        self._owner = os.getpid()

    def ask(
        self,
        kind: str,
        request: dict[str, Any],
        blobs: Sequence[bytes] = (),
        timeout: float = 120,
        stop: Stop | None = None,
        watch: Watch | None = None,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Has one request answered.

        Args:
            kind: Workers of a kind keep their own caches (``"numerics"``, ``"price"``).
            request: The request.
            blobs: Artefacts that go with it.
            timeout: Seconds, from one message of the worker to the next.
            stop: Ends the judge that is at work on this request, if it is cancelled.
            watch: Hears what the worker says about its progress.

        Raises:
            Refused: See `Worker.ask`.
            JudgeError: See `Worker.ask`.
        """
        stop = stop or Stop()
        with self._lock:
            idle = self._idle.setdefault(kind, [])
            chosen, generation = (idle.pop() if idle else None), self._generation
        chosen = chosen or self._start()
        try:
            answer = chosen.ask(request, blobs, timeout, stop, watch)
        except Died as error:
            if generation != self._generation or stop.over:
                self._end(chosen)
                raise Refused(Status.CRASHED, "the evaluation was stopped") from error
            # Once may be bad luck (an out-of-memory killer picks the largest), twice is not.
            self._end(chosen)
            chosen = self._start()
            try:
                answer = chosen.ask(request, blobs, timeout, stop, watch)
            except Died as error:
                self._end(chosen)
                raise Refused(Status.CRASHED, str(error)) from None
        except (Refused, JudgeError):
            self._back(kind, chosen)
            raise
        except BaseException:
            self._end(chosen)  # interrupted: its answer would go to the next request
            raise
        self._back(kind, chosen)
        return answer

    def _start(self) -> Worker:
        started = Worker()
        with self._lock:
            self._all.add(started)
        return started

    def _end(self, ended: Worker) -> None:
        with self._lock:
            self._all.discard(ended)
        ended.close()

    def _back(self, kind: str, done: Worker) -> None:
        if done.alive:
            with self._lock:
                self._idle[kind].append(done)
        else:
            self._end(done)

    def close(self) -> None:
        """Ends all processes, also those that are at work: whoever waits for one is refused."""
        if os.getpid() != self._owner:
            return  # a fork of the owner: the processes are not ours to end
        with self._lock:
            workers, self._idle = list(self._all), {kind: [] for kind in self._idle}
            self._all.clear()
            self._generation += 1
        for each in workers:
            each.kill()


_pools: dict[int, Pool] = {}
_pools_lock = threading.Lock()


def _after_fork() -> None:
    """The lock may have been held by a thread that a fork does not have."""
    global _pools_lock
    _pools_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def pool() -> Pool:
    """This process's own judges; a fork gets new ones."""
    with _pools_lock:
        pid = os.getpid()
        if pid not in _pools:
            _pools.clear()
            _pools[pid] = Pool()
            atexit.register(_pools[pid].close)
        return _pools[pid]
