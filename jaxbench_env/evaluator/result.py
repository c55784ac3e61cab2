"""What an evaluation says: one immutable record, JSON both ways."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxbench_env.evaluator.timing import Loop


class Status(enum.StrEnum):
    """The verdict, in the order of how far a candidate got."""

    EVALUATOR_ERROR = "evaluator_error"
    SYNTAX_ERROR = "syntax_error"
    REJECTED = "rejected"
    TRACE_ERROR = "trace_error"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_SIGNATURE = "wrong_signature"
    NO_KERNEL = "no_kernel"
    HACK_SUSPECTED = "hack_suspected"
    UNSUPPORTED = "unsupported"
    COMPILE_ERROR = "compile_error"
    VMEM_OOM = "vmem_oom"
    HBM_OOM = "hbm_oom"
    INTERPRETER_ERROR = "interpreter_error"
    INCORRECT = "incorrect"
    SLOWER = "slower"
    OK = "ok"

    @property
    def correct(self) -> bool:
        """Whether the candidate computes the right thing."""
        return self in (Status.SLOWER, Status.OK)

    @property
    def rank(self) -> int:
        """Position in the order above, from 0."""
        return list(Status).index(self)


class Stage(enum.IntEnum):
    """The last stage that a candidate passed."""

    NONE = 0
    AUDITED = 1
    TRACED = 2
    COMPILED = 3
    CORRECT = 4


@dataclass(frozen=True)
class NumericCheck:
    """One comparison with the reference.

    Attributes:
        preset: Preset at which the comparison was made.
        draw: Kind of inputs.
        passed: Whether it was within tolerance.
        max_ratio: Largest ``|out - ref| / (rms(ref) + |ref|)``; passes up to ``limit``.
        limit: The tolerance that ``max_ratio`` is held against.
        rms_error: RMS of the error over the RMS of the reference; passes up to ``rms_limit``.
        rms_limit: The larger of the floor and ``xla_factor`` times XLA's own error.
        mismatched: Share of the elements beyond ``limit``, 0 to 1.
        summary: What differs and where, for people. Empty if it passed.
    """

    preset: str
    draw: str
    passed: bool
    max_ratio: float
    limit: float
    rms_error: float
    rms_limit: float
    mismatched: float
    summary: str = ""


@dataclass(frozen=True)
class Times:
    """Times in milliseconds at the published size.

    Attributes:
        candidate_ms: The candidate. None if it did not compile.
        baseline_ms: XLA's program for the reference, same compiler and same predictor. With the
            flag ``baseline_bound`` a bound from below.
        roofline_ms: Least possible time of the best known algorithm.
        source: ``"predicted"`` (schedule replay) or ``"measured"`` (a TPU ran it).
        uncertain: The predictor could not follow the program; the times are bounds.
        reasons: Why it is uncertain, and what else was estimated.
        compiler: Versions of the compiler that made both programs.
    """

    candidate_ms: float | None = None
    baseline_ms: float | None = None
    roofline_ms: float | None = None
    source: str = "predicted"
    uncertain: bool = False
    reasons: tuple[str, ...] = ()
    compiler: str = ""


@dataclass(frozen=True)
class Memory:
    """Memory of the compiled program at the published size, in bytes. None where not known."""

    hbm_used: int | None = None
    hbm_limit: int | None = None
    vmem_used: int | None = None
    vmem_limit: int | None = None


@dataclass(frozen=True)
class Provenance:
    """What must be equal for two results to be comparable."""

    protocol: int = 0
    workload: str = ""
    workload_version: int = 0
    target: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    source_sha256: str = ""


@dataclass(frozen=True)
class EvalResult:
    """The verdict on one kernel text.

    Attributes:
        status: The verdict.
        stage: The last stage that it passed.
        message: What was wrong and what to change, for the author of the kernel.
        failed_in: The stage that failed (``"audit"``, ``"trace"``, ``"compile"``, ``"price"``,
            ``"numerics"``), or empty.
        details: Full text of the failing stage (compiler message, traceback), never cut short of
            the evaluator's own bound of 20,000 characters.
        line: Line of the kernel text that the failure points to, from 1, if known.
        flags: Facts that qualify the verdict: ``uncalibrated``, ``shape_specialised``,
            ``races_unchecked`` (a kernel with copies or signals of its own, not simulated as it
            runs at full size: it earns at most 1), ``uncertain`` (the candidate's time is a bound,
            and earns at most 1), ``work_unshown`` (scalar memory or data decide its work, so that
            it could be less at the published size: it earns at most 1 until the numbers there are
            compared), ``baseline_bound`` (XLA's time is at least the one given, and so is the
            speedup).
        shown: What was shown of a verdict, by fence (`fences.FENCES`): ``"shown"``, or why it could
            not be, as a sentence. Fences that were not reached are not in it. Of the numbers at the
            published size (``verify="full"``) it says how much was compared: ``"all of the
            output"``, or ``"37 % of the output, blocks chosen by the secret seed"``.
        speedup: ``baseline_ms / candidate_ms`` of a correct candidate, else None. At most 1 where
            the time is uncertain or races are unchecked.
        times: Times at the published size.
        memory: Memory at the published size.
        numerics: The comparisons that were made, up to the first failing one of each preset.
        counters: Profile of the candidate's schedule: `timing.Prediction.counters`, and of the
            evaluator "hbm_bandwidth_share" (of the chip's specification), "hbm_bytes_min" (bytes of
            inputs and output, each moved once) and "vmem_used" (bytes).
        loop: The loop in which the candidate spends most time.
        programs: Predicted milliseconds of the candidate's longest HLO programs, by name; "TLP" is
            the top level that calls the others.
        kernels: Names of those that are Pallas calls.
        provenance: Versions, seed and hash.
        durations: Wall-clock seconds by stage; the only part that differs between two evaluations
            with the same seed.
    """

    status: Status
    stage: Stage = Stage.NONE
    message: str = ""
    failed_in: str = ""
    details: str = ""
    line: int | None = None
    flags: tuple[str, ...] = ()
    shown: dict[str, str] = field(default_factory=dict)
    speedup: float | None = None
    times: Times = Times()
    memory: Memory = Memory()
    numerics: tuple[NumericCheck, ...] = ()
    counters: dict[str, float] = field(default_factory=dict)
    loop: Loop | None = None
    programs: dict[str, float] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    provenance: Provenance = Provenance()
    durations: dict[str, float] = field(default_factory=dict)

    @property
    def correct(self) -> bool:
        """Whether the candidate computes the right thing (and compiles)."""
        return self.status.correct

    @property
    def compiled(self) -> bool:
        """Whether the TPU compiler made a program of it."""
        return self.stage >= Stage.COMPILED

    def to_dict(self, *, durations: bool = True) -> dict[str, Any]:
        """The record as JSON-ready data.

        Args:
            durations: Whether to include the wall-clock durations. Without them the record is a
                function of text, seed and versions.
        """
        record = dataclasses.asdict(self)
        record["status"] = self.status.value
        record["stage"] = self.stage.name.lower()
        record["correct"], record["compiled"] = self.correct, self.compiled
        if not durations:
            del record["durations"]
        return _plain(record)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> EvalResult:
        """Rebuilds a result from `to_dict`.

        Raises:
            ValueError: For a record without a known status.
            TypeError: For unknown fields.
        """
        record = {k: v for k, v in record.items() if k not in ("correct", "compiled")}
        try:
            record["status"] = Status(record["status"])
            record["stage"] = Stage[record.get("stage", "none").upper()]
        except KeyError as error:
            raise ValueError(f"not a result: {error} is missing or unknown") from None
        parts = {"times": Times, "memory": Memory, "provenance": Provenance}
        for name, part in parts.items():
            record[name] = part(**_tuples(record.get(name, {})))
        record["loop"] = Loop.from_dict(record["loop"]) if record.get("loop") else None
        record["numerics"] = tuple(NumericCheck(**n) for n in record.get("numerics", ()))
        return cls(**_tuples(record))


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}


def _plain(value: Any) -> Any:
    """Tuples as lists, numpy scalars as Python's, so that json round trips give equal data."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value
