"""One evaluation from kernel text to verdict."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from jaxbench_env.evaluator import audit as auditing
from jaxbench_env.evaluator import build as building
from jaxbench_env.evaluator.baseline import Baseline, baseline
from jaxbench_env.evaluator.judge.pool import JudgeError, Refused, pool
from jaxbench_env.evaluator.result import (
    EvalResult,
    Memory,
    NumericCheck,
    Provenance,
    Stage,
    Status,
    Times,
)
from jaxbench_env.evaluator.sandbox import Job, Limits, SandboxError, sandbox
from workloads import DRAWS, Workload, chip

PUBLIC_SEED = 0  # inputs of the simulated run: the kernel's author may see them
# Raised whenever the same text could get another verdict or time: part of every cache key.
PROTOCOL = 1

TRACE_LIMITS = Limits(cpu_seconds=120, memory_bytes=4 << 30, disk_bytes=128 << 20)
NUMERICS_SECONDS = 120
MAX_SIMULATED_STEPS = 2048
MAX_ARTEFACT_BYTES = 33 << 20
MIN_PALLAS_SHARE = 0.5
# A prediction may undercut the physical floor by rounding, not by more.
_FLOOR_SLACK = 0.99


class Failure(Exception):
    """The verdict is decided: the fields of the result that say so."""

    def __init__(self, status: Status | str, failed_in: str, message: str, **fields: Any):
        super().__init__(message)
        self.fields = {
            "status": Status(status),
            "failed_in": failed_in,
            "message": message,
            **fields,
        }


@dataclass
class _Run:
    """What is known so far about one candidate."""

    workload: Workload
    source: str
    seed: int
    target: str
    stage: Stage = Stage.NONE
    flags: set[str] = field(default_factory=lambda: {"uncalibrated"})
    blobs: dict[str, bytes] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def timed(self, name: str):
        started = time.monotonic()
        try:
            yield
        finally:
            self.durations[name] = time.monotonic() - started


@dataclass(frozen=True)
class Evaluator:
    """Evaluates kernel texts. Immutable and thread-safe; processes are shared behind it.

    Attributes:
        target: The chip to compile for.
        allow_library_kernels: Whether a text may import finished kernels (the expert baseline).
        audit: Whether the text is audited before it runs. Only tests of the other fences turn
            this off.
        trace_seconds: Wall time for running and tracing the text and for the simulated run.
    """

    target: str = "v6e"
    allow_library_kernels: bool = False
    audit: bool = True
    trace_seconds: float = 60

    def baseline(self, workload: Workload) -> Baseline:
        """XLA's program for the reference, compiled once and kept on disk.

        Raises:
            BuildError: If the reference does not compile.
        """
        versions = building.installed_versions()
        return baseline(workload, self.target, versions, PROTOCOL)

    def evaluate(self, workload: Workload, source: str, *, seed: int | None = None) -> EvalResult:
        """Evaluates one kernel text. Never raises for anything that the text does.

        Args:
            workload: What the text claims to compute.
            source: The text; defines ``workload(*inputs)``.
            seed: Seed of the secret inputs; from the system by default.
        """
        started = time.monotonic()
        seed = secrets.randbits(63) if seed is None else int(seed)
        run = _Run(workload, source, seed, self.target)
        try:
            fields = self._evaluate(run)
        except Failure as failure:
            fields = failure.fields
        except (SandboxError, JudgeError, building.BuildError, OSError) as error:
            fields = {
                "status": Status.EVALUATOR_ERROR,
                "message": f"the evaluator failed, not the kernel: {_last_line(error)}",
                "details": str(error)[:20_000],
            }
        run.durations["total"] = time.monotonic() - started
        if run.notes:
            fields["message"] = " ".join([fields["message"], *run.notes])
        return EvalResult(
            **{"stage": run.stage, **fields},
            flags=tuple(sorted(run.flags)),
            durations={k: round(v, 4) for k, v in run.durations.items()},
            provenance=self._provenance(run),
        )

    def _provenance(self, run: _Run) -> Provenance:
        return Provenance(
            protocol=PROTOCOL,
            workload=run.workload.id,
            workload_version=run.workload.version,
            target=self.target,
            versions=building.installed_versions().as_dict(),
            seed=run.seed,
            source_sha256=hashlib.sha256(run.source.encode(errors="surrogatepass")).hexdigest(),
        )

    def _evaluate(self, run: _Run) -> dict[str, Any]:
        with run.timed("audit"):
            if self.audit:
                self._audit(run)
        run.stage = Stage.AUDITED
        with ThreadPoolExecutor(4) as threads:
            based = threads.submit(self.baseline, run.workload)
            running = _Cancellable()
            try:
                return self._after_audit(run, threads, based, running)
            finally:
                running.cancel()

    def _audit(self, run: _Run) -> None:
        finding = auditing.audit(run.source, allow_library_kernels=self.allow_library_kernels)
        if finding is not None:
            raise Failure(finding.status, "audit", finding.message, line=finding.line)

    def _after_audit(
        self, run: _Run, threads: ThreadPoolExecutor, based: Future, running: _Cancellable
    ) -> dict[str, Any]:
        built: Future | None = None
        job = running.add(self._start_trace(run))
        with job:
            trace = _Trace(run, job)
            with run.timed("trace"):
                for preset, platform in trace.artefacts():
                    blob = trace.read(preset, platform)
                    if platform == "tpu":
                        built = threads.submit(self._build, run, blob, running)
                    else:
                        run.blobs[preset] = blob
            if built is None or "tiles" not in run.blobs:
                raise trace.died()
            run.stage = Stage.TRACED
            checked = threads.submit(self._check, run)
            simulated = threads.submit(self._simulate, run, trace)
            program: building.Built = built.result()
            checks, refused = checked.result()
            race = simulated.result()
        # The order below decides which of several faults is reported, whichever was seen first.
        fields = self._measured(run, program, based.result())
        if refused is not None:
            raise Failure(refused.status, "numerics", str(refused), **fields)
        fields["numerics"] = tuple(checks)
        self._judge_numbers(run, checks, race, fields)
        return self._judge_time(run, program, fields)

    # ------------------------------------------------------------------------------- trace

    @property
    def _trace_limits(self) -> Limits:
        return replace(TRACE_LIMITS, wall_seconds=self.trace_seconds)

    def _start_trace(self, run: _Run) -> Job:
        workload = run.workload
        smallest = min(("tiles", "varied"), key=lambda p: workload.presets[p].nbytes)
        simulate = [smallest, *({"tiles", "varied"} - {smallest})]
        files = {}
        for preset in simulate:
            arrays = workload.inputs(preset, DRAWS[0], PUBLIC_SEED)
            files |= {f"{preset}.{i}": a.tobytes() for i, a in enumerate(arrays)}
        job = {
            "source": run.source,
            "arguments": list(workload.arguments),
            "presets": [
                {
                    "name": name,
                    "args": [[list(s.shape), s.dtype] for s in preset.args.values()],
                    "config": dict(preset.config),
                    "statics": [preset.config[name] for name in workload.static_arguments],
                    "output": [list(workload.output(name).shape), workload.output(name).dtype],
                    "compile": name == "v6e",
                    "check": name != "v6e",
                    "optional": name == "varied",
                }
                for name, preset in workload.presets.items()
            ],
            "device_kind": building.DEVICE_KINDS[self.target],
            "simulate": simulate,
            "max_steps": MAX_SIMULATED_STEPS,
        }
        return sandbox().start("trace", job, files=files, limits=self._trace_limits)

    # ------------------------------------------------------------------------------- compile

    def _build(self, run: _Run, blob: bytes, running: _Cancellable) -> building.Built:
        """Inspects, compiles and prices the full-size artefact."""
        request = {"do": "inspect", "workload": run.workload.id, "preset": "v6e"}
        try:
            facts, _ = pool().ask("price", request, [blob])
        except Refused as refused:
            raise Failure(refused.status, "trace", str(refused)) from None
        run.facts = facts
        _require_kernel(facts)
        try:
            program = building.build(blob, self.target, watch=running.add)
        except building.BuildError as error:
            raise Failure(
                error.status,
                "compile",
                error.message,
                details=error.details,
                memory=Memory(hbm_limit=chip(self.target).hbm_bytes, **_only(error.memory, "vmem")),
            ) from None
        run.durations["compile"] = program.compile_seconds
        run.durations["price"] = program.price_seconds
        return program

    def _measured(self, run: _Run, program: building.Built, based: Baseline) -> dict[str, Any]:
        """Times, memory and counters of a compiled candidate."""
        limits = chip(self.target)
        memory = Memory(
            hbm_used=program.hbm_used,
            hbm_limit=limits.hbm_bytes,
            vmem_used=program.vmem_used,
            vmem_limit=limits.vmem_bytes,
        )
        if program.hbm_used > limits.hbm_bytes:
            raise Failure(
                Status.HBM_OOM,
                "compile",
                f"inputs, output and temporaries take {program.hbm_used / 1e9:.1f} GB and the chip "
                f"has {limits.hbm_bytes / 1e9:.1f} GB",
                memory=memory,
            )
        run.stage = Stage.COMPILED
        times = Times(
            baseline_ms=based.ms,
            roofline_ms=run.workload.roofline_ms(self.target),
            compiler=str(building.installed_versions()),
        )
        if program.prediction is None:
            return {"times": times, "memory": memory}
        prediction = program.prediction
        uncertain = prediction["uncertain"] or based.uncertain
        if uncertain:
            run.flags.add("uncertain")
        times = replace(
            times,
            candidate_ms=prediction["ms"],
            uncertain=uncertain,
            reasons=tuple(prediction["reasons"]),
        )
        _require_share(run.facts, program, memory, times)
        return {"times": times, "memory": memory, "counters": prediction["counters"]}

    # ------------------------------------------------------------------------------ numerics

    def _check(self, run: _Run) -> tuple[list[NumericCheck], Refused | None]:
        """Compares the interpret-mode programs with the reference on secret inputs."""
        presets = [p for p in ("tiles", "varied") if p in run.blobs]
        request = {
            "do": "check",
            "workload": run.workload.id,
            "seed": run.seed,
            "presets": presets,
        }
        with run.timed("numerics"):
            try:
                answer, _ = pool().ask(
                    "numerics", request, [run.blobs[p] for p in presets], NUMERICS_SECONDS
                )
            except Refused as refused:
                return [], refused
        return [NumericCheck(**c) for c in answer["checks"]], None

    def _simulate(self, run: _Run, trace: _Trace) -> dict[str, Any]:
        """Waits for the simulated run and compares its result. Never passes a kernel."""
        with run.timed("simulate"):
            race = trace.race()
            if race["outcome"] not in ("clean", "race"):
                return race
            preset = race["preset"]
            request = {
                "do": "simulated",
                "workload": run.workload.id,
                "preset": preset,
                "seed": PUBLIC_SEED,
            }
            try:
                data = trace.job.read("simulated", MAX_ARTEFACT_BYTES * 8)
                answer, _ = pool().ask("simulated", request, [data, run.blobs[preset]])
            except (Refused, OSError, ValueError) as error:
                return {**race, "outcome": "failed", "reason": str(error)}
            simulated, plain = (NumericCheck(**c) for c in answer["checks"])
            return {**race, "simulated": simulated, "plain": plain}

    def _judge_numbers(
        self, run: _Run, checks: list[NumericCheck], race: dict[str, Any], fields: dict[str, Any]
    ) -> None:
        """Decides on the numbers.

        Raises:
            Failure: If they are wrong, or not to be trusted.
        """
        wrong = [c for c in checks if not c.passed]
        simulated, plain = race.get("simulated"), race.get("plain")
        outcome = race["outcome"]
        where = f"at preset {race.get('preset', '?')}"
        disagree = simulated is not None and simulated.passed != plain.passed
        if wrong and disagree and simulated.passed:
            raise Failure(
                Status.INTERPRETER_ERROR,
                "numerics",
                "the two Pallas interpreters disagree: the simulated TPU computes the right "
                "numbers and plain interpret mode does not, so nothing can be said about the "
                f"kernel. Plain interpret mode: {wrong[0].summary}",
                **fields,
            )
        if wrong:
            raise Failure(Status.INCORRECT, "numerics", _wrong(wrong), **fields)
        if outcome == "race":
            raise Failure(
                Status.INCORRECT,
                "numerics",
                f"a data race was found {where}: a block is read or written while a copy of it "
                "may be in flight; wait for the copy, or make the grid axis 'arbitrary'",
                details=race["reason"],
                **fields,
            )
        if outcome == "out_of_bounds":
            raise Failure(
                Status.INCORRECT,
                "numerics",
                f"the kernel reads outside of an array {where}: {_last_line(race['reason'])}",
                details=race["reason"],
                **fields,
            )
        if disagree:
            raise Failure(
                Status.INCORRECT,
                "numerics",
                f"with uninitialised memory set to NaN the result is wrong {where}: "
                f"{simulated.summary}. Initialise scratch and output blocks before reading them",
                **fields,
            )
        if outcome not in ("clean",):
            run.flags.add("races_unchecked")
            run.notes.append(f"Races were not checked: {_last_line(race['reason'])}.")

    # ---------------------------------------------------------------------------------- time

    def _judge_time(
        self, run: _Run, program: building.Built, fields: dict[str, Any]
    ) -> dict[str, Any]:
        """The verdict on a candidate whose numbers are right.

        Raises:
            Failure: If there is no time, or one that no chip could reach.
        """
        times: Times = fields["times"]
        if times.candidate_ms is None:
            raise Failure(
                Status.EVALUATOR_ERROR,
                "price",
                "the kernel compiles and its numbers are right, but its time cannot be "
                f"predicted: {program.price_error}",
                **fields,
            )
        least = run.workload.min_hbm_bytes() / chip(self.target).hbm_bytes_per_second * 1e3
        if times.candidate_ms < _FLOOR_SLACK * least:
            raise Failure(
                Status.HACK_SUSPECTED,
                "price",
                f"the predicted {times.candidate_ms:.4f} ms are less than the {least:.4f} ms that "
                "it takes to read the inputs and write the output once: at the published size the "
                "kernel does not touch all of them, or the predictor was misled",
                **fields,
            )
        speedup = times.baseline_ms / times.candidate_ms
        if times.uncertain:
            speedup = min(1.0, speedup)
        run.stage = Stage.CORRECT
        message = (
            f"Correct. {times.candidate_ms:.3f} ms predicted, XLA {times.baseline_ms:.3f} ms: "
            f"{speedup:.2f}x."
        )
        if times.uncertain:
            message += f" The time is a bound: {'; '.join(times.reasons)}."
        status = Status.OK if speedup > 1 else Status.SLOWER
        return {**fields, "status": status, "speedup": speedup, "message": message}


# --------------------------------------------------------------------------- trace, supervised


class _Trace:
    """The trace child's report. It can fail a kernel, not pass one."""

    def __init__(self, run: _Run, job: Job):
        self.run, self.job = run, job
        self._events = job.events()

    def artefacts(self):
        """Yields (preset, platform) as artefacts are announced, until all are traced.

        Raises:
            Failure: As the child says.
        """
        for event in self._events:
            kind = event["event"]
            if kind == "traced":
                return
            if kind == "error":
                raise self._error(event)
            if kind == "specialised":
                self.run.flags.add("shape_specialised")
                self.run.notes.append(
                    f"It does not trace at preset {event.get('preset')}: {event.get('message')}."
                )
            if kind == "artefact":
                preset, platform = event.get("preset"), event.get("platform")
                if preset in self.run.workload.presets and platform in ("tpu", "cpu"):
                    yield preset, platform

    def read(self, preset: str, platform: str) -> bytes:
        try:
            return self.job.read(f"{preset}.{platform}", MAX_ARTEFACT_BYTES)
        except (OSError, ValueError) as error:
            raise Failure(
                Status.HACK_SUSPECTED, "trace", f"the traced program cannot be read: {error}"
            ) from None

    def race(self) -> dict[str, Any]:
        """What the simulated run found: ``outcome``, ``reason``, ``preset``."""
        for event in self._events:
            if event["event"] == "race" and event.get("preset") in self.run.blobs:
                return {
                    "outcome": str(event.get("outcome")),
                    "reason": str(event.get("reason")),
                    "preset": event["preset"],
                }
        ended = self.job.wait()
        reason = f"the simulated run ended early ({ended.describe()})"
        return {"outcome": "failed", "reason": reason}

    def _error(self, event: dict[str, Any]) -> Failure:
        try:
            status = Status(event.get("status"))
        except ValueError:
            status = Status.TRACE_ERROR
        if status.rank >= Status.INCORRECT.rank or status is Status.EVALUATOR_ERROR:
            status = Status.HACK_SUSPECTED  # a trace child has no say in these
        line = event.get("line")
        message, details = str(event.get("message")), str(event.get("details") or "")
        hints = auditing.removed_names(self.run.source)
        if hints and "has no attribute" in message + details:
            message = ". ".join([message, *hints])
        failed_in = "trace"
        if status in (Status.UNSUPPORTED, Status.COMPILE_ERROR):
            failed_in, self.run.stage = "compile", Stage.TRACED
        return Failure(
            status,
            failed_in,
            message,
            details=details[:20_000],
            line=line if isinstance(line, int) else None,
        )

    def died(self) -> Failure:
        """The verdict on a child that ended before it had traced everything."""
        ended = self.job.wait()
        if ended.killed == "timeout" or ended.signal == 24:  # SIGXCPU
            return Failure(
                Status.TIMEOUT,
                "trace",
                f"running and tracing the file took {ended.seconds:.0f} s, longer than permitted; "
                "a kernel file must only define functions, and Python loops in them are unrolled",
            )
        if ended.out_of_memory:
            return Failure(
                Status.OUT_OF_MEMORY,
                "trace",
                f"tracing the file needed more than {TRACE_LIMITS.memory_bytes / 1e9:.0f} GB; make "
                "no large arrays at import or trace time",
            )
        if ended.killed == "disk":
            return Failure(
                Status.CRASHED,
                "trace",
                f"the file wrote more than {TRACE_LIMITS.disk_bytes >> 20} MiB; a kernel file must "
                "only define functions, and large constants are not accepted",
            )
        if ended.killed == "processes":
            return Failure(
                Status.CRASHED,
                "trace",
                "the file starts processes or threads without end; a kernel file must only define "
                "functions",
            )
        return Failure(
            Status.CRASHED,
            "trace",
            f"the process that traced the file ended without a result ({ended.describe()}); do "
            "not call os._exit, signals or threads, and make no huge unrolled programs",
            details=self.job.log(),
        )


class _Cancellable:
    """Jobs that must not outlive a decided verdict."""

    def __init__(self) -> None:
        self._lock, self._jobs, self._over = threading.Lock(), [], False

    def add(self, job: Job) -> Job:
        with self._lock:
            self._jobs.append(job)
            if self._over:
                job.cancel()
        return job

    def cancel(self) -> None:
        with self._lock:
            self._over = True
            for job in self._jobs:
                job.cancel()


# ------------------------------------------------------------------------------------- helpers


def _require_kernel(facts: dict[str, Any]) -> None:
    """Fails a program whose result does not come out of Pallas."""
    if not facts["pallas_calls"]:
        why = (
            "the result of the Pallas call does not reach the output"
            if facts["dropped"]
            else "the program calls no Pallas kernel"
        )
        raise Failure(
            Status.NO_KERNEL,
            "trace",
            f"{why}; return what the kernel computes, and do the main work in it",
        )
    inside, outside = facts["matmul_flops"], facts["outside_flops"]
    if facts["readable"] and outside > inside:
        raise Failure(
            Status.NO_KERNEL,
            "trace",
            f"the matrix products outside Pallas take {outside:,} flops and those inside take "
            f"{inside:,}: move the main work into the kernel",
        )


def _require_share(facts, program: building.Built, memory: Memory, times: Times) -> None:
    """Fails a program without matrix products that moves most of its bytes outside Pallas."""
    if facts["matmul_flops"] or facts["outside_flops"]:
        return
    inside = total = 0
    for entry in program.prediction["programs"]:
        total += entry["hbm_bytes"]
        if entry["name"] in program.pallas_programs:
            inside += entry["hbm_bytes"]
    if total and inside < MIN_PALLAS_SHARE * total:
        raise Failure(
            Status.NO_KERNEL,
            "price",
            f"the Pallas calls move {inside / total:.0%} of the program's HBM bytes; do the main "
            "work in the kernel",
            memory=memory,
            times=times,
        )


def _wrong(wrong: list[NumericCheck]) -> str:
    return " | ".join(f"preset {c.preset}, {c.draw} inputs: {c.summary}" for c in wrong)


def _only(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k.startswith(prefix)}


def _last_line(text: object) -> str:
    lines = str(text).strip().splitlines()
    return lines[-1].strip() if lines else ""
