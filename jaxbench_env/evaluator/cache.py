"""Verdicts on disk: the same text for the same workload is evaluated once.

A record's name is a hash of all that a verdict depends on (`key`), so nothing ever becomes stale:
a new compiler, protocol, evaluator or workload asks for other names. Records lie in 256 folders by
the first two digits of their names; each is held to its share of the limit, oldest use first.

A verdict with a seed of the caller's is kept under that seed. One with a seed from the system is
kept as such, and the same text gets the same verdict again. That is sound: its numbers were checked
on inputs that its author could not know when the text was written, and whoever changes the text to
fit a seed that a verdict has shown has another text, which gets another seed.

Not kept are verdicts of an evaluator with fences switched off, those that another run on a quieter
machine might not repeat (`UNSETTLED`, a simulated run that was cut short) and those of the audit,
which is as fast as reading a file.

Whoever can write to the cache decides verdicts. Kernel texts cannot: their processes see no files,
or belong to a user of their own. Where the machine offers neither fence they run as the evaluator's
user, who could as well rewrite the evaluator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.result import EvalResult, Status

if TYPE_CHECKING:
    from workloads import Workload

#: May depend on how busy the machine was.
UNSETTLED = frozenset(
    {Status.EVALUATOR_ERROR, Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.CRASHED}
)
DEFAULT_BYTES = 1 << 30
_FOLDERS = 256
_MAX_RECORD_BYTES = 4 << 20
_OLD_SECONDS = 3600  # a temporary file of that age belongs to nobody


def limit_bytes() -> int:
    """Most bytes that all records take: ``$JAXBENCH_CACHE_BYTES``, 1 GiB by default; 0 is off.

    Raises:
        ValueError: If the variable is not a whole number.
    """
    chosen = os.environ.get("JAXBENCH_CACHE_BYTES", "")
    if chosen and not chosen.isdecimal():
        raise ValueError(f"JAXBENCH_CACHE_BYTES is a number of bytes, not {chosen!r}")
    return int(chosen) if chosen else DEFAULT_BYTES


def key(
    workload: Workload,
    source: str,
    seed: int | None,
    versions: Mapping[str, str],
    settings: Mapping[str, Any],
) -> str:
    """Name of the record of a verdict.

    Args:
        workload: The workload.
        source: The kernel text.
        seed: The caller's seed, or None for one from the system.
        versions: Versions of jax, jaxlib and libtpu.
        settings: All else that the evaluator was told: protocol, target, permissions.
    """
    parts = {
        "code": store.code_version(),  # with it tolerances, input generators, compile flags
        "workload": _described(workload),
        "source": source_hash(source),
        "seed": "system" if seed is None else seed,
        "versions": dict(versions),
        "python": sys.version_info[:2],  # decides what is a syntax error
        "settings": dict(settings),
    }
    return store.key(parts)


@functools.lru_cache(maxsize=256)
def _described(workload: Workload) -> list[Any]:
    """What tells a workload from all others."""
    sizes = {name: dict(sizes) for name, sizes in workload.sizes.items()}
    return [workload.id, workload.variant, workload.version, workload.reference_source(), sizes]


def load(name: str, workload: Workload, source: str, seed: int | None) -> EvalResult | None:
    """The verdict that is kept under a name; None if there is none that can be read."""
    if not limit_bytes():
        return None
    started = time.monotonic()
    path = _path(name)
    try:
        with open(path, "rb") as file:
            record = json.loads(file.read(_MAX_RECORD_BYTES))
        result = EvalResult.from_dict(record)
        found = result.provenance
        fits = (
            (found.workload, found.source_sha256) == (workload.id, source_hash(source))
            and (seed is None or found.seed == seed)
            and result.status not in UNSETTLED
        )
    except Exception:  # missing, cut short, of another format, not ours: whatever is in it
        return None
    if not fits:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # its last use
    seconds = round(time.monotonic() - started, 4)
    return dataclasses.replace(result, durations={"cache": seconds, "total": seconds})


def save(name: str, result: EvalResult) -> None:
    """Keeps a verdict, if it is one to keep. Without a disk to write to, nothing happens."""
    limit = limit_bytes()
    if not limit or result.status in UNSETTLED or result.failed_in == "audit":
        return
    path = _path(name)
    store.write(path, json.dumps(result.to_dict(durations=False)).encode())
    _prune(path.parent, limit // _FOLDERS)


def source_hash(source: str) -> str:
    """SHA-256 of a text, hexadecimal; any text has one."""
    return hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Info:
    """What is kept.

    Attributes:
        directory: Where.
        verdicts: How many.
        bytes: What they take on disk.
        limit_bytes: What they may take; 0 if verdicts are not kept.
    """

    directory: str
    verdicts: int
    bytes: int
    limit_bytes: int


def info() -> Info:
    """Counts what is kept."""
    files = [file for folder in _folders() for file in _files(folder)]
    total = sum(size for _, size, _ in files)
    return Info(str(_root()), len(files), total, limit_bytes())


def clear() -> Info:
    """Removes all verdicts (baselines stay), and says what there was."""
    before = info()
    for folder in _folders():
        shutil.rmtree(folder, ignore_errors=True)
    return before


def _root() -> Path:
    return store.cache_directory() / "verdicts"


def _path(name: str) -> Path:
    return _root() / name[:2] / f"{name}.json"


def _folders() -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in _root().iterdir() if len(path.name) == 2 and path.is_dir()]
    return []


def _files(folder: Path) -> list[tuple[float, int, str]]:
    """Last use, bytes on disk and path of every file of a folder."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process has removed it
                facts = entry.stat(follow_symlinks=False)
                found.append((facts.st_mtime, facts.st_blocks * 512, entry.path))
    return found


def _prune(folder: Path, limit: int) -> None:
    """Removes the files that were not used for longest until the rest is within the limit."""
    files = sorted(_files(folder), reverse=True)
    total, old = 0, time.time() - _OLD_SECONDS
    for used, size, path in files:
        total += size
        abandoned = path.endswith(".tmp") and used < old
        if total > limit or abandoned:
            with contextlib.suppress(OSError):
                os.unlink(path)
