"""Where a service listens: a socket in a directory that only its user can enter."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.build import installed_versions

_MAX_PATH_BYTES = 107  # of a socket's path, on Linux


@dataclass(frozen=True)
class Address:
    """The files of one service; each is the path without its last suffix, and that suffix."""

    path: Path

    @property
    def socket(self) -> Path:
        """The socket; it exists while the service takes requests."""
        return self.path.with_suffix(".sock")

    @property
    def lock(self) -> Path:
        """Locked for as long as the service lives."""
        return self.path.with_suffix(".lock")

    @property
    def log(self) -> Path:
        """What the service prints."""
        return self.path.with_suffix(".log")


def own() -> Address | None:
    """The address of the service that decides as this process would; None without a directory."""
    folder = directory()
    return None if folder is None else Address(folder / _identity())


def every() -> list[Address]:
    """The addresses of all services of this user, also those of other versions."""
    folder = directory()
    return [] if folder is None else [Address(path) for path in sorted(folder.glob("*.sock"))]


def directory() -> Path | None:
    """A directory that only this user can enter, made if need be; None if there can be none."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    candidates = [Path(runtime) / "jaxbench-env"] if os.path.isabs(runtime) else []
    for parent in (tempfile.gettempdir(), "/tmp"):
        candidates.append(Path(parent) / f"jaxbench-service-{os.getuid()}")
    for path in candidates:
        fits = len(os.fsencode(path / f"{'x' * 16}.sock")) <= _MAX_PATH_BYTES
        if fits and _private(path):
            return path
    return None


def _private(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        facts = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    return ours and not facts.st_mode & 0o077 and os.access(path, os.W_OK | os.X_OK)


def _identity() -> str:
    """A name for all that a service's verdicts and its use of the machine depend on."""
    parts = {
        "code": store.code_version(),
        "versions": installed_versions().as_dict(),
        "python": [sys.executable, sys.version, os.environ.get("PYTHONPATH", "")],
        "cache": str(store.cache_directory().absolute()),
        "settings": {k: v for k, v in os.environ.items() if k.startswith("JAXBENCH_")},
        "directory": str(Path(__file__).parent),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def peer(connected: socket.socket) -> int:
    """The process at the other end of a local socket.

    Raises:
        PermissionError: If it belongs to another user.
    """
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    if uid != os.getuid():
        raise PermissionError(f"the process at the other end belongs to user {uid}")
    return pid
