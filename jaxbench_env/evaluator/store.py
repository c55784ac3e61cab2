"""Files that outlive a process: the cache directory and the machine-wide compile slots."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_GIB = 1 << 30


def cache_directory() -> Path:
    """Where results are kept: ``$JAXBENCH_CACHE``, else below ``$XDG_CACHE_HOME``."""
    chosen = os.environ.get("JAXBENCH_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "jaxbench-env"


def key(parts: Mapping[str, Any]) -> str:
    """A file name for what JSON-ready parts stand for."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(kind: str, name: str) -> dict[str, Any] | None:
    """Reads a cached record; a missing or damaged one is None."""
    try:
        return json.loads((cache_directory() / kind / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None


def save(kind: str, name: str, record: Mapping[str, Any]) -> None:
    """Writes a record so that no reader ever sees half of it. A full disk is not an error."""
    write(cache_directory() / kind / f"{name}.json", json.dumps(record).encode())


def write(path: Path, data: bytes) -> None:
    """Writes a file at once or not at all; what cannot be written is left out."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:  # a full disk, an interrupt
            os.unlink(temporary)
            raise


@functools.cache
def code_version() -> str:
    """A hash of the code and data that decide verdicts: of the evaluator and the workloads."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for root in (package, package.parents[1] / "workloads"):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".json"):
                digest.update(f"{path.relative_to(root)}:{path.stat().st_size}:".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compile_slots() -> int:
    """How many compiles may run at once on this machine: ``$JAXBENCH_COMPILES``, else by size.

    A large program's compile takes 5 to 6 GB.
    """
    chosen = os.environ.get("JAXBENCH_COMPILES", "")
    if chosen.isdecimal():
        return max(1, int(chosen))
    if chosen:
        raise ValueError(f"JAXBENCH_COMPILES is a number of compiles, not {chosen!r}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // (6 * _GIB)))


@contextlib.contextmanager
def compile_slot() -> Iterator[None]:
    """Holds one of the machine's compile slots; the kernel frees it if this process dies."""
    folder = Path(tempfile.gettempdir()) / f"jaxbench-slots-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    while True:
        for number in range(compile_slots()):
            with open(folder / str(number), "w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(0.02)
