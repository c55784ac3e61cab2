"""Runs jobs in sandboxed processes: the client of `children/zygote.py`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CHILDREN = Path(__file__).parent / "children"
_MAX_EVENT_BYTES = 1 << 20

# libtpu reads the TPU variables when it is loaded; they stand for a chip that is not there.
TPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # Else the last line of an exception's text is a remark on its traceback.
    "JAX_TRACEBACK_FILTERING": "off",
    "TPU_ACCELERATOR_TYPE": "v6e-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_SKIP_MDS_QUERY": "1",
    # Without it a lock file in the temp directory lets only one process compile.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}


class SandboxError(RuntimeError):
    """The sandbox itself does not work: never the fault of the job in it."""


@dataclass(frozen=True)
class Limits:
    """What one job may use.

    Attributes:
        wall_seconds: Wall-clock time, without that spent waiting for a busy processor.
        cpu_seconds: CPU time of any one of its processes.
        memory_bytes: Resident memory of all its processes together.
        address_space: Address space of any one process.
        file_bytes: Size of any one file.
        disk_bytes: Size of all files.
        processes: Number of processes and threads.
    """

    wall_seconds: float = 60
    cpu_seconds: int = 120
    memory_bytes: int = 6 << 30
    address_space: int = 16 << 30
    file_bytes: int = 256 << 20
    disk_bytes: int = 512 << 20
    processes: int = 64 + 16 * (os.cpu_count() or 1)


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        killed: Why the supervisor ended it (``timeout``, ``memory``, ``processes``, ``disk``,
            ``cancelled``), or empty.
        code: Exit code, if it exited.
        signal: Signal number, if a signal ended it.
        peak_bytes: Largest resident memory seen.
        fences: The sandbox's active parts.
        seconds: Wall-clock time.
    """

    killed: str = ""
    code: int | None = None
    signal: int | None = None
    peak_bytes: int = 0
    fences: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def out_of_memory(self) -> bool:
        """Whether memory was what ended it."""
        return self.killed == "memory" or self.code == 77

    def describe(self) -> str:
        """The end in a few words, for messages."""
        if self.killed:
            return self.killed
        if self.signal:
            with contextlib.suppress(ValueError):
                return f"signal {signal.Signals(self.signal).name}"
            return f"signal {self.signal}"
        return f"exit code {self.code}"


class Job:
    """A running job. Use as a context manager: leaving it ends the job and removes its files."""

    def __init__(self, box: Path, channel: socket.socket, pipe: int):
        """Takes over the job's directory and both of its connections."""
        self.box = box
        self._channel, self._pipe = channel, pipe
        self._ended: Ended | None = None
        self._waiting = threading.Lock()

    def __enter__(self) -> Job:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the job and removes its directory."""
        self.cancel()
        with contextlib.suppress(SandboxError):
            self.wait()
        os.close(self._pipe)
        self._channel.close()
        shutil.rmtree(self.box, ignore_errors=True)

    def events(self) -> Iterator[dict[str, Any]]:
        """What the job says, until it ends. Not to be trusted; malformed lines are dropped."""
        pending = b""
        while chunk := os.read(self._pipe, 1 << 16):
            pending += chunk
            *lines, pending = pending.split(b"\n")
            if len(pending) > _MAX_EVENT_BYTES:
                pending = b""
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):
                    event = json.loads(line)
                    if isinstance(event, dict) and isinstance(event.get("event"), str):
                        yield event

    def wait(self) -> Ended:
        """Waits until nothing of the job is left, and says how it ended. Any thread may.

        Raises:
            SandboxError: If the supervisor died, or could not let the job in.
        """
        with self._waiting:
            if self._ended is None:
                data = b""
                while not data.endswith(b"\n") and (chunk := self._channel.recv(1 << 16)):
                    data += chunk
                try:
                    report = json.loads(data)
                except ValueError:
                    raise SandboxError("the supervisor of a sandboxed process died") from None
                report["fences"] = tuple(report["fences"])
                if not report.pop("entered"):
                    raise SandboxError(f"the sandbox cannot be entered:\n{self.log()}")
                self._ended = Ended(**report)
            return self._ended

    def cancel(self) -> None:
        """Asks the supervisor to end the job now."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)

    def read(self, name: str, most_bytes: int) -> bytes:
        """Reads a file that the job left in ``out/``.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If it is not a regular file or is larger than `most_bytes`.
        """
        # O_NOFOLLOW and the check of the type: the job may have put a link or a pipe there.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            handle = os.open(self.box / "out" / name, flags)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ValueError(f"{name} is not a regular file: {error}") from None
        with os.fdopen(handle, "rb") as file:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode) or info.st_size > most_bytes:
                raise ValueError(f"{name} is not a regular file of at most {most_bytes:,} bytes")
            return file.read(most_bytes)

    def log(self) -> str:
        """What the job printed, its end if that is long."""
        try:
            with open(self.box / "log", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 20_000))
                return file.read().decode(errors="replace")
        except OSError:
            return ""


class Sandbox:
    """One zygote process and the jobs that it starts. Thread-safe."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._work: Path | None = None
        self._owner = os.getpid()

    def start(
        self,
        role: str,
        job: Mapping[str, Any],
        *,
        files: Mapping[str, bytes] = {},  # noqa: B006  (never changed)
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Job:
        """Starts a job.

        Args:
            role: ``"trace"`` or ``"compile"``.
            job: JSON-ready description, read by the child.
            files: Contents of its ``in/`` directory.
            limits: What it may use.
            environment: More environment variables; ``{out}`` becomes its output directory.

        Raises:
            SandboxError: If no process can be started.
        """
        limits = limits or Limits()
        with self._lock:
            self._ensure()
            box = Path(tempfile.mkdtemp(dir=self._work))
        box.chmod(0o755)
        (box / "in").mkdir()
        (box / "job.json").write_text(json.dumps(job))
        for name, data in files.items():
            (box / "in" / name).write_bytes(data)
        # The job may be another user, whatever our umask.
        for path in (box / "in", box / "job.json", *(box / "in" / name for name in files)):
            path.chmod(0o755)
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        request = {
            "role": role,
            "box": str(box),
            "limits": asdict(limits),
            "visible": _visible_paths(),
            "packages": _packages(),
            "env": dict(environment or {}),
        }
        try:
            with self._lock:
                socket.send_fds(
                    self._control, [json.dumps(request).encode()], [theirs.fileno(), write_end]
                )
        except OSError as error:
            os.close(read_end)
            ours.close()
            with self._lock:  # the next job gets a new one; those that run have supervisors
                if self._process is not None:
                    self._process.kill()
                    self._process.wait()
            raise SandboxError(f"the zygote process is gone: {error}") from error
        finally:
            theirs.close()
            os.close(write_end)
        return Job(box, ours, read_end)

    def _ensure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._work = self._work or Path(tempfile.mkdtemp(prefix="jaxbench-"))
        self._work.chmod(0o711)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # -I and -S: no variable, no user directory and no .pth file decides what is imported.
        command = [sys.executable, "-I", "-S", "-B", str(CHILDREN / "zygote.py")]
        command += [str(theirs.fileno()), str(self._work), ":".join(_packages())]
        command += [str(CHILDREN / f"{role}.py") for role in ("trace", "compile")]
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **TPU_ENVIRONMENT}
        log = open(self._work / "zygote.log", "wb")
        with log, theirs:
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        try:
            ours.settimeout(120)
            ready = ours.recv(64)
        except TimeoutError:
            ready = b""
        except BaseException:  # an interrupt: nothing half-made may stay
            process.kill()
            process.wait()
            raise
        if ready != b"ready\n":
            text = (self._work / "zygote.log").read_text(errors="replace")
            process.kill()
            process.wait()
            raise SandboxError(f"the sandbox does not start:\n{text[-4000:]}")
        ours.settimeout(None)
        self._process, self._control = process, ours

    def close(self) -> None:
        """Ends the zygote and all jobs. May be called more than once."""
        if os.getpid() != self._owner:
            return  # a fork of the owner: the processes are not ours to end
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._process is not None:
                try:
                    self._process.wait(5)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
                self._process = None
            if self._work is not None:
                _remove(self._work)
                self._work = None


def _remove(path: Path) -> None:
    """Removes a directory in which ending jobs may still be writing."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.05)


@functools.cache
def _packages() -> dict[str, list[str]]:
    """What a job may import besides the standard library: directory -> names in it.

    That is jax with all that it requires, and nothing else that happens to be installed.
    """
    found: dict[str, set[str]] = {}
    todo, seen = ["jax", "jaxlib", "libtpu", "flatbuffers"], set()
    while todo:
        name = todo.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if len(seen) <= 4:
                raise SandboxError(f"{name} is not installed; install jax[tpu]") from None
            continue  # a requirement for another platform or Python version
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement:
                todo.append(re.match(r"[\w.-]+", requirement)[0])
        directory = os.path.realpath(distribution.locate_file(""))
        names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        found.setdefault(directory, set()).update(names or {key.replace("-", "_")})
    return {
        directory: sorted(n for n in names if os.path.exists(os.path.join(directory, n)))
        for directory, names in found.items()
    }


def _visible_paths() -> list[str]:
    """Directories that a job needs besides packages: standard library and system libraries."""
    wanted = [os.path.dirname(os.__file__), sysconfig.get_config_var("DESTSHARED")]
    wanted += ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]
    wanted += ["/sys/devices/system/cpu"]  # libtpu's allocator counts the processors there
    kept: list[str] = []
    for path in sorted({os.path.normpath(p) for p in wanted if p and os.path.exists(p)}, key=len):
        if not any(path.startswith(parent + "/") for parent in kept):
            kept.append(path)
    return kept


_sandboxes: dict[int, Sandbox] = {}
_sandboxes_lock = threading.Lock()


def _after_fork() -> None:
    """The lock may have been held by a thread that a fork does not have."""
    global _sandboxes_lock
    _sandboxes_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def sandbox() -> Sandbox:
    """This process's own sandbox; a fork gets a new one."""
    with _sandboxes_lock:
        pid = os.getpid()
        if pid not in _sandboxes:
            _sandboxes.clear()
            _sandboxes[pid] = Sandbox()
            atexit.register(_sandboxes[pid].close)
        return _sandboxes[pid]
