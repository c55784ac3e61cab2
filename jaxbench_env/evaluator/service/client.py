"""The service as its clients see it: started when needed, asked again if it dies."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jaxbench_env.evaluator import baseline as baselines
from jaxbench_env.evaluator import cache, store
from jaxbench_env.evaluator.baseline import Baseline
from jaxbench_env.evaluator.build import BuildError, installed_versions
from jaxbench_env.evaluator.evaluator import PROTOCOL, Evaluator
from jaxbench_env.evaluator.judge.pool import Watch
from jaxbench_env.evaluator.judge.worker import named, receive, send
from jaxbench_env.evaluator.result import EvalResult, Provenance, Status
from jaxbench_env.evaluator.service import address as addresses
from jaxbench_env.evaluator.service.address import Address, peer
from jaxbench_env.evaluator.service.start import BUSY
from jaxbench_env.evaluator.stop import Stop
from workloads import Workload

START_SECONDS = 60.0
# A service says something every 5 s. One that is silent for so long hangs, and is replaced.
SILENT_SECONDS = 120.0
PATIENT_SECONDS = 60.0  # a longer wait is worth a line
_LOSS_SECONDS = 0.5
_MAX_LOG_BYTES = 1 << 20
_SCRIPT = Path(__file__).with_name("start.py")
_ROOT = Path(__file__).parents[3]  # the directory that holds the packages
_log = logging.getLogger("jaxbench_env")


class ServiceError(RuntimeError):
    """The service cannot be reached or started."""


def enabled() -> bool:
    """Whether work goes to the service: ``JAXBENCH_SERVICE=off`` keeps it in this process.

    So does a machine without a directory for its socket; the first time a warning says so.

    Raises:
        ValueError: If the variable is neither ``on`` nor ``off``.
    """
    chosen = os.environ.get("JAXBENCH_SERVICE") or "on"
    if chosen not in ("on", "off"):
        raise ValueError(f"JAXBENCH_SERVICE is 'on' or 'off', not {chosen!r}")
    if chosen == "off":
        return False
    found = addresses.directory() is not None
    if not found:
        _warn_of_no_directory()
    return found


@functools.cache
def _warn_of_no_directory() -> None:
    _log.warning(
        "no evaluation service: neither $XDG_RUNTIME_DIR nor the temporary directory has room for "
        "a socket that only this user can reach. This process evaluates by itself, as with "
        "JAXBENCH_SERVICE=off"
    )


@dataclass(frozen=True)
class SharedEvaluator(Evaluator):
    """An `Evaluator` that has the machine's service do the work.

    Where there can be no service, or fences are switched off, the work is done in this process.
    """

    def baseline(self, workload: Workload) -> Baseline:
        """As `Evaluator.baseline`; also raises BuildError if there is no service."""
        versions = installed_versions()
        found = baselines.kept(workload, self.target, versions, PROTOCOL)
        if found is not None or not enabled():
            return found or super().baseline(workload)
        try:
            answer = ask({"do": "baseline", **named(workload), "settings": self._settings()})
        except ServiceError as error:
            raise BuildError(Status.EVALUATOR_ERROR, str(error)) from error
        if "error" in answer:
            status = answer.get("status", Status.EVALUATOR_ERROR)
            raise BuildError(status, answer["error"], answer["details"])
        made = Baseline.from_dict(answer["baseline"])
        return baselines.remember(made, workload, self.target, versions, PROTOCOL)

    def evaluate(
        self,
        workload: Workload,
        source: str,
        *,
        seed: int | None = None,
        stop: Stop | None = None,
        watch: Watch | None = None,
    ) -> EvalResult:
        """As `Evaluator.evaluate`."""
        if self.without or not enabled():
            return super().evaluate(workload, source, seed=seed, stop=stop, watch=watch)
        self.check(workload, seed)
        known = self.kept(workload, source, seed)
        if known is not None:
            return known
        request = {
            "do": "evaluate",
            **named(workload),
            "settings": self._settings(),
            "source": source,
            "seed": None if seed is None else int(seed),
        }
        started = time.monotonic()
        try:
            answer = ask(request, stop, watch)
            problem, details = answer.get("error", ""), answer.get("details", "")
        except ServiceError as error:
            answer, problem, details = {}, str(error), ""
        if not problem:
            return EvalResult.from_dict(answer["result"])
        return EvalResult(
            status=Status.EVALUATOR_ERROR,
            message=f"the evaluator failed, not the kernel: {problem}",
            details=details[-20_000:],
            durations={"total": round(time.monotonic() - started, 4)},
            provenance=Provenance(
                protocol=PROTOCOL,
                workload=workload.id,
                workload_version=workload.version,
                target=self.target,
                versions=installed_versions().as_dict(),
                seed=seed,
                source_sha256=cache.source_hash(source),
            ),
        )

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "without"}


def ask(
    request: dict[str, Any], stop: Stop | None = None, watch: Watch | None = None
) -> dict[str, Any]:
    """Has the service answer a request. Starts one if there is none, again if it dies.

    Args:
        request: The request, JSON-ready.
        stop: Gives the request up if it is cancelled.
        watch: Hears what the service says about the progress of the work.

    Raises:
        ServiceError: If there is no answer.
    """
    stop, own, losses = stop or Stop(), addresses.own(), 0
    if own is None:
        raise ServiceError("there is no directory for the evaluation service's socket")
    while losses < 2:  # an evaluation can be repeated, but its text may be what kills the service
        if stop.over:
            raise ServiceError("the evaluation was stopped")
        with _connect(own) as connected:
            answer = _exchange(connected, request, stop, watch)
        if answer is None:
            losses += 1
            time.sleep(_LOSS_SECONDS)  # what dies may take connections until the end
        elif answer["state"] == "full":
            time.sleep(random.uniform(0.5, 1.5))
        else:
            return answer
    raise ServiceError(f"the evaluation service died twice; the end of its log:\n{_tail(own)}")


def answers(address: Address, do: str) -> dict[str, Any] | None:
    """Sends ``"status"`` or ``"stop"`` to a service that may be there; None if it is not."""
    try:
        with _dial(address) as connected:
            return _exchange(connected, {"do": do}, Stop())
    except OSError:
        return None


class _Link:
    """A connection that another thread can end."""

    def __init__(self, connected: socket.socket):
        self._connected = connected

    def cancel(self) -> None:
        with contextlib.suppress(OSError):
            self._connected.shutdown(socket.SHUT_RDWR)


def _exchange(
    connected: socket.socket, request: dict[str, Any], stop: Stop, watch: Watch | None = None
) -> dict[str, Any] | None:
    """Sends a request and waits for its answer. None if the connection ends before."""
    link, patience = stop.add(_Link(connected)), time.monotonic() + PATIENT_SECONDS
    try:
        with Connection(os.dup(connected.fileno())) as connection:
            send(connection, request)
            while connection.poll(SILENT_SECONDS):
                answer, _ = receive(connection)
                if answer["state"] in ("done", "full"):
                    return answer
                if answer["state"] == "progress" and watch is not None:
                    watch(*answer["progress"])
                if answer["state"] == "waiting" and time.monotonic() > patience:
                    patience = float("inf")
                    _log.warning(
                        "waiting for the evaluation service: its %d workers are busy and %d "
                        "evaluations wait",
                        answer["workers"],
                        answer["waiting"],
                    )
        pid = peer(connected)
        if pid > 1:  # it hangs
            os.kill(pid, signal.SIGKILL)
    except (EOFError, OSError):
        pass
    finally:
        stop.discard(link)
    return None


def _connect(own: Address) -> socket.socket:
    """Connects to the service, which is started if need be.

    Raises:
        ServiceError: If it does not start.
    """
    deadline, process = time.monotonic() + START_SECONDS, None
    while time.monotonic() < deadline:
        try:
            return _dial(own)
        except (FileNotFoundError, ConnectionError):
            pass
        code = None if process is None else process.poll()
        if code not in (None, BUSY):
            break
        if process is None or code == BUSY:
            process = _start(own)
        time.sleep(0.1)
    raise ServiceError(
        "the evaluation service does not start (JAXBENCH_SERVICE=off does without it); the end of "
        f"its log, {own.log}:\n{_tail(own)}"
    )


def _dial(address: Address) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.connect(str(address.socket))
        peer(connected)
    except BaseException:
        connected.close()
        raise
    return connected


def _start(own: Address) -> subprocess.Popen:
    """Starts a process that becomes the service if there is none yet."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TPU_"))}
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {
        "JAX_PLATFORMS": "cpu",  # an accelerator is for the clients
        "JAXBENCH_CACHE": str(store.cache_directory().absolute()),
        "PYTHONPATH": path,
    }
    with open(own.log, "ab") as log:
        if log.tell() > _MAX_LOG_BYTES:
            log.truncate(0)
        return subprocess.Popen(
            [sys.executable, str(_SCRIPT), str(own.lock), str(own.socket), str(_ROOT)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,  # an interrupt of the client is not for the service
        )


def _tail(own: Address) -> str:
    try:
        return own.log.read_text(errors="replace")[-2000:]
    except OSError:
        return ""
