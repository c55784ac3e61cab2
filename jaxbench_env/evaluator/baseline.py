"""XLA's program for the reference: compiled and priced once, shipped or kept on disk."""

from __future__ import annotations

import functools
import json
import os
import threading
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from typing import Any

from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.build import (
    COMPILE_LIMITS,
    BuildError,
    Built,
    Timeline,
    Versions,
    build,
)
from jaxbench_env.evaluator.judge.pool import Refused, pool
from jaxbench_env.evaluator.judge.worker import named
from workloads import Workload, chip

# References are ours, and the unrolled one takes minutes; kernels get less.
LIMITS = replace(COMPILE_LIMITS, wall_seconds=1200, cpu_seconds=2400)

_lock = threading.Lock()
_locks: dict[str, threading.Lock] = {}


def _after_fork() -> None:
    """Locks may have been held by threads that a fork does not have."""
    global _lock
    _lock = threading.Lock()
    _locks.clear()


os.register_at_fork(after_in_child=_after_fork)
_known: dict[str, Baseline] = {}


@dataclass(frozen=True)
class Baseline:
    """What XLA makes of a reference at the published size.

    Attributes:
        ms: Predicted time in milliseconds; where it is uncertain, one that charges all doubts.
        uncertain: Whether the predictor could not follow the program.
        reasons: What was estimated.
        hbm_used: Bytes of arguments, output and temporaries.
        compile_seconds: Wall time of the compile, once.
        counters: The predictor's counters.
        least_ms: Where it is uncertain, a time that charges no doubts: at most the true one.
    """

    ms: float
    uncertain: bool
    reasons: tuple[str, ...]
    hbm_used: int
    compile_seconds: float
    counters: dict[str, float] = field(default_factory=dict)
    least_ms: float | None = None

    @property
    def paid_ms(self) -> float:
        """The time that a speedup is paid by: where there are doubts, the one without them.

        The reference is ours, so a doubt about it is no reason to pay a candidate nothing; but
        nobody may earn more than their speedup.
        """
        return self.least_ms if self.uncertain and self.least_ms is not None else self.ms

    @property
    def bounded(self) -> bool:
        """Whether `paid_ms` is at most the true time, as far as the predictor can tell."""
        return not self.uncertain or self.least_ms is not None

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Baseline:
        """Rebuilds a baseline from `dataclasses.asdict`, also after a trip through JSON."""
        return cls(**{**record, "reasons": tuple(record["reasons"])})


def fingerprint(workload: Workload, target: str, protocol: int) -> str:
    """What a baseline depends on besides the compiler, as a key."""
    return store.key(
        {
            "protocol": protocol,
            "workload": workload.id,
            "version": workload.version,
            "source": workload.reference_source(),
            "sizes": dict(workload.sizes["v6e"]),
            "target": target,
        }
    )


def data_file(versions: Versions) -> str:
    """Name of the shipped table for a pair of compiler versions."""
    return f"baselines_jax-{versions.jax}_libtpu-{versions.libtpu}.json"


@functools.cache
def shipped(versions: Versions) -> dict[str, Any]:
    """The table that ships for these versions: workload id -> record. Empty if there is none."""
    try:
        text = (files("jaxbench_env.evaluator.data") / data_file(versions)).read_text()
    except FileNotFoundError:
        return {}
    return json.loads(text)["workloads"]


def baseline(workload: Workload, target: str, versions: Versions, protocol: int) -> Baseline:
    """The baseline of a workload: from memory, shipped, from disk, or made now.

    Raises:
        BuildError: If the reference does not compile.
    """
    name = _name(workload, target, versions, protocol)
    if name in _known:
        return _known[name]
    with _lock:
        lock = _locks.setdefault(name, threading.Lock())
    with lock:  # two threads must not compile the same baseline
        found = kept(workload, target, versions, protocol)
        if found is None:
            found = remember(make(workload, target), workload, target, versions, protocol)
            store.save("baselines", name, asdict(found))
    return found


def kept(workload: Workload, target: str, versions: Versions, protocol: int) -> Baseline | None:
    """The baseline of a workload from memory, shipped, or from disk; None if it is to be made."""
    name = _name(workload, target, versions, protocol)
    if name in _known:
        return _known[name]
    row = shipped(versions).get(workload.id, {})
    mark = fingerprint(workload, target, protocol)
    record = row["baseline"] if row.get("fingerprint") == mark else None
    record = record or store.load("baselines", name)
    if not _complete(record):
        return None
    return remember(Baseline.from_dict(record), workload, target, versions, protocol)


def remember(
    found: Baseline, workload: Workload, target: str, versions: Versions, protocol: int
) -> Baseline:
    """Keeps a baseline in memory, and returns it."""
    return _known.setdefault(_name(workload, target, versions, protocol), found)


def _name(workload: Workload, target: str, versions: Versions, protocol: int) -> str:
    mark, code = fingerprint(workload, target, protocol), store.code_version()
    return store.key({"fingerprint": mark, "versions": versions.as_dict(), "code": code})


def _complete(record: dict[str, Any] | None) -> bool:
    """Whether a stored record has all that is needed; tables of earlier versions know no bound."""
    fields = Baseline.__dataclass_fields__.keys()
    return record is not None and fields ^ record.keys() <= {"least_ms"}


def compiled(
    workload: Workload, target: str, *, timeline: Timeline | None = None, bounded: bool = False
) -> Built:
    """Compiles the reference, whatever is known of it already.

    Args:
        workload: Whose reference.
        target: The chip.
        timeline: As for `build`.
        bounded: As for `build`.

    Raises:
        BuildError: If it does not compile.
    """
    try:
        _, blobs = pool().ask("numerics", {"do": "reference", **named(workload)})
    except Refused as error:
        raise BuildError("evaluator_error", f"the baseline cannot be lowered: {error}") from error
    return build(blobs[0], target, limits=LIMITS, timeline=timeline, bounded=bounded)


def make(workload: Workload, target: str) -> Baseline:
    """Compiles and prices the reference.

    Raises:
        BuildError: If it does not compile or has no time.
    """
    try:
        built = compiled(workload, target, bounded=True)
    except BuildError as error:
        message = f"XLA's program for the reference of {workload.id} on the {target}: "
        raise BuildError(error.status, message + error.message, error.details) from error
    limit = chip(target).hbm_bytes
    if built.hbm_used > limit:
        raise BuildError(
            "hbm_oom",
            f"the reference of {workload.id} needs {built.hbm_used / 1e9:.1f} GB of HBM and the "
            f"{target} has {limit / 1e9:.1f} GB: there is no baseline; choose another target",
        )
    if built.prediction is None:
        raise BuildError("evaluator_error", f"the baseline cannot be priced: {built.price_error}")
    return Baseline(
        ms=built.prediction["ms"],
        uncertain=built.prediction["uncertain"],
        reasons=tuple(built.prediction["reasons"]),
        hbm_used=built.hbm_used,
        compile_seconds=round(built.compile_seconds, 2),
        counters=built.prediction["counters"],
        least_ms=built.least_ms,
    )
