"""XLA's program for the reference: compiled, priced, and kept on disk."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field

from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.build import BuildError, Built, Versions, build
from jaxbench_env.evaluator.judge.pool import pool
from jaxbench_env.evaluator.judge.worker import named
from workloads import Workload

_lock = threading.Lock()
_known: dict[str, Baseline] = {}


@dataclass(frozen=True)
class Baseline:
    """What XLA makes of a reference at the published size.

    Attributes:
        ms: Predicted time in milliseconds.
        uncertain: Whether the predictor could follow the program.
        reasons: What was estimated.
        hbm_used: Bytes of arguments, output and temporaries.
        compile_seconds: Wall time of the compile, once.
        counters: The predictor's counters.
    """

    ms: float
    uncertain: bool
    reasons: tuple[str, ...]
    hbm_used: int
    compile_seconds: float
    counters: dict[str, float] = field(default_factory=dict)


def baseline(workload: Workload, target: str, versions: Versions, protocol: int) -> Baseline:
    """The baseline of a workload, from memory, from disk, or made now.

    Raises:
        BuildError: If the reference does not compile.
    """
    name = store.key(
        {
            "protocol": protocol,
            "workload": workload.id,
            "version": workload.version,
            "source": workload.reference_source(),
            "sizes": dict(workload.sizes["v6e"]),
            "target": target,
            "versions": versions.as_dict(),
        }
    )
    if name in _known:
        return _known[name]
    with _lock:  # two threads must not compile the same baseline
        if name in _known:
            return _known[name]
        record = store.load("baselines", name)
        if record is None:
            record = asdict(_make(workload, target))
            store.save("baselines", name, record)
        record["reasons"] = tuple(record["reasons"])
        _known[name] = Baseline(**record)
        return _known[name]


def _make(workload: Workload, target: str) -> Baseline:
    _, blobs = pool().ask("numerics", {"do": "reference", **named(workload)})
    built: Built = build(blobs[0], target)
    if built.prediction is None:
        raise BuildError("evaluator_error", f"the baseline cannot be priced: {built.price_error}")
    return Baseline(
        ms=built.prediction["ms"],
        uncertain=built.prediction["uncertain"],
        reasons=tuple(built.prediction["reasons"]),
        hbm_used=built.hbm_used,
        compile_seconds=built.compile_seconds,
        counters=built.prediction["counters"],
    )
