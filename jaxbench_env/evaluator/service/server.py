"""The service process: takes requests, lets clients take turns, evaluates, answers.

One connection is one request. While it waits or runs the service says so every few seconds; whoever
closes the connection gives the request up, and what was started for it ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.build import BuildError, installed_versions
from jaxbench_env.evaluator.evaluator import Evaluator
from jaxbench_env.evaluator.judge.pool import pool
from jaxbench_env.evaluator.judge.worker import receive, send, workload_of
from jaxbench_env.evaluator.result import Status
from jaxbench_env.evaluator.sandbox import sandbox
from jaxbench_env.evaluator.service.address import peer
from jaxbench_env.evaluator.service.turns import Turns
from jaxbench_env.evaluator.stop import Stop

MAX_WAITING = 256
HEARTBEAT_SECONDS = 5.0
REQUEST_SECONDS = 30.0
_SEND_LIMIT = struct.pack("ll", 10, 0)  # a client that does not read must not hold a worker
# Idle for so long it ends: with a client that still lives ($JAXBENCH_SERVICE_IDLE_SECONDS), and
# when the last one is gone.
IDLE_SECONDS, ALONE_SECONDS = 600, 30


def _number(variable: str, default: int) -> int:
    """A number of at least 1 from the environment.

    Raises:
        ValueError: If the variable is not a whole number.
    """
    chosen = os.environ.get(variable, "")
    if chosen and not chosen.isdecimal():
        raise ValueError(f"{variable} is a whole number, not {chosen!r}")
    return max(1, int(chosen)) if chosen else default


class _Request:
    """One request and the connection that waits for its answer."""

    def __init__(self, content: dict[str, Any], connection: Connection):
        self.content, self.stop, self.running = content, Stop(), False
        self._connection, self._lock, self._answered = connection, threading.Lock(), False

    def say(self, **state: Any) -> None:
        """Tells the client how its request stands, until it is answered."""
        with self._lock, contextlib.suppress(OSError):
            if not self._answered:
                send(self._connection, state)

    def answer(self, **content: Any) -> None:
        """Answers the request; nothing is said after that."""
        with self._lock, contextlib.suppress(OSError):
            self._answered = True
            send(self._connection, {"state": "done", **content})


class Server:
    """The service."""

    def __init__(self, listener: socket.socket, path: str):
        """Takes over a listening socket and the path that it listens at."""
        self._listener, self._path = listener, path
        self._count = _number("JAXBENCH_SERVICE_WORKERS", os.cpu_count() or 1)
        self._idle = _number("JAXBENCH_SERVICE_IDLE_SECONDS", IDLE_SECONDS)
        self._turns: Turns[_Request] = Turns(MAX_WAITING)
        self._lock = threading.Lock()
        self._open: set[_Request] = set()
        self._running = self._served = 0
        self._clients: set[int] = set()
        self._started = self._used = time.monotonic()
        self._wake, self._woken = socket.socketpair()

    def run(self) -> None:
        """Serves until it is told to stop, or has been idle for long enough."""
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for _ in range(self._count):
            threading.Thread(target=self._work, daemon=True).start()
        while not self._unused():
            ready, _, _ = select.select([self._listener, self._woken], [], [], 1.0)
            if self._woken in ready:
                break
            if ready:
                connected, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[connected], daemon=True).start()
        # Unlinked first: whoever comes now starts the next service, which waits for the lock.
        os.unlink(self._path)
        self._listener.close()
        with self._lock:
            for request in self._open:
                request.stop.cancel()
        sandbox().close()
        pool().close()

    def stop(self) -> None:
        """Ends `run`."""
        self._wake.send(b"1")

    def _unused(self) -> bool:
        with self._lock:
            if self._open:
                self._used = time.monotonic()
            self._clients = {pid for pid in self._clients if os.path.exists(f"/proc/{pid}")}
            limit = self._idle if self._clients else min(self._idle, ALONE_SECONDS)
            return time.monotonic() - self._used > limit

    def _serve(self, connected: socket.socket) -> None:
        """Takes one request and watches its connection to the end."""
        with connected:
            try:
                client = peer(connected)
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_LIMIT)
                connection = Connection(os.dup(connected.fileno()))
            except OSError:
                return
            with connection:
                try:
                    if connection.poll(REQUEST_SECONDS):
                        self._take(client, _Request(receive(connection)[0], connection), connection)
                except (EOFError, OSError):
                    return  # the client is gone
                except Exception:  # what it says is no request
                    traceback.print_exc()

    def _take(self, client: int, request: _Request, connection: Connection) -> None:
        do = request.content["do"]
        if do == "status":
            request.answer(**self.status())
        elif do == "stop":
            request.answer(pid=os.getpid())
            self.stop()
        else:
            with self._lock:
                self._clients.add(client)
                self._open.add(request)
            try:
                self._watch(client, request, connection)
            finally:
                request.stop.cancel()
                self._turns.drop(client, request)
                with self._lock:
                    self._open.discard(request)
                    self._used = time.monotonic()

    def _watch(self, client: int, request: _Request, connection: Connection) -> None:
        if not self._turns.put(client, request):
            request.say(state="full", waiting=len(self._turns))
            return
        # There is nothing to read but the end: the client has its answer, or gave up.
        while not connection.poll(HEARTBEAT_SECONDS):
            state = "running" if request.running else "waiting"
            request.say(state=state, waiting=len(self._turns), workers=self._count)

    def _work(self) -> None:
        """Answers one request after the other, for ever."""
        while True:
            request = self._turns.take()
            if request.stop.over:
                continue
            with self._lock:
                self._running += 1
            request.running = True
            try:
                answer = _HANDLERS[request.content["do"]](request)
            except BuildError as error:
                answer = {"error": error.message, "status": error.status, "details": error.details}
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                answer = {"error": text, "details": traceback.format_exc()}
            with self._lock:
                self._running -= 1
                self._served += 1
            request.answer(**answer)

    def status(self) -> dict[str, Any]:
        """What the service does, JSON-ready."""
        with self._lock:
            return {
                "pid": os.getpid(),
                "workers": self._count,
                "running": self._running,
                "waiting": len(self._turns),
                "served": self._served,
                "clients": len(self._clients),
                "uptime_seconds": round(time.monotonic() - self._started, 1),
                "versions": installed_versions().as_dict(),
                "cache": str(store.cache_directory()),
            }


def _evaluate(request: _Request) -> dict[str, Any]:
    content, stop = request.content, request.stop
    evaluator = Evaluator(**content["settings"])
    workload, source = workload_of(content), content["source"]

    def watch(*progress: Any) -> None:
        request.say(state="progress", progress=progress)

    for _ in range(2):
        result = evaluator.evaluate(workload, source, seed=content["seed"], stop=stop, watch=watch)
        # Something of ours died: once is bad luck.
        if result.status is not Status.EVALUATOR_ERROR or result.failed_in or stop.over:
            break
    return {"result": result.to_dict()}


def _baseline(request: _Request) -> dict[str, Any]:
    evaluator = Evaluator(**request.content["settings"])
    return {"baseline": asdict(evaluator.baseline(workload_of(request.content)))}


_HANDLERS: dict[str, Callable[[_Request], dict[str, Any]]] = {
    "evaluate": _evaluate,
    "baseline": _baseline,
}
