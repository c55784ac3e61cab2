"""One evaluation from kernel text to verdict."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from jaxbench_env.evaluator import audit as auditing
from jaxbench_env.evaluator import build as building
from jaxbench_env.evaluator import cache, fences, profile, tracing, verdict
from jaxbench_env.evaluator.baseline import Baseline, baseline
from jaxbench_env.evaluator.estimate import full_limit, full_share, numerics_limit
from jaxbench_env.evaluator.judge.pool import Refused, Watch, pool
from jaxbench_env.evaluator.judge.worker import named
from jaxbench_env.evaluator.result import (
    EvalResult,
    Memory,
    NumericCheck,
    Provenance,
    Stage,
    Status,
    Times,
)
from jaxbench_env.evaluator.sandbox import Limits
from jaxbench_env.evaluator.stop import Stop
from jaxbench_env.evaluator.timing.constants import MEASURED
from jaxbench_env.evaluator.verdict import Failure
from workloads import CORES, Workload, chip

# Raised whenever the same text could get another verdict or time: part of every cache key.
PROTOCOL = 2

VERIFY = ("presets", "full")

_FULL = threading.Lock()  # each may take 12 GiB: one at a time


@dataclass(frozen=True)
class Evaluator:
    """Evaluates kernel texts. Immutable and thread-safe; processes are shared behind it.

    Attributes:
        target: The chip to compile for.
        allow_library_kernels: Whether a text may import finished kernels (the expert baseline).
        without: Fences (`fences.FENCES`) that are switched off. Only tests of the other fences
            do that; such a verdict is worth nothing.
        verify: ``"presets"`` checks the numbers at the check presets, ``"full"`` also those of a
            correct kernel at the published size: seconds to many minutes, up to 12 GiB.
        trace_seconds: Time for running and tracing the text and for the simulated run, without
            that spent waiting for a busy processor.
        cache: Whether a verdict that is on disk already is given again; see `cache`. It is kept
            in either case.
    """

    target: str = "v6e"
    allow_library_kernels: bool = False
    without: frozenset[str] = frozenset()
    verify: str = "presets"
    trace_seconds: float = 60
    cache: bool = True

    def __post_init__(self) -> None:
        """Checks the names."""
        if self.verify not in VERIFY:
            raise ValueError(f"unknown verify {self.verify!r}; it is {' or '.join(VERIFY)}")
        object.__setattr__(self, "without", fences.without(self.without))

    def baseline(self, workload: Workload) -> Baseline:
        """XLA's program for the reference, compiled once and kept on disk.

        Raises:
            BuildError: If the reference does not compile.
        """
        versions = building.installed_versions()
        return baseline(workload, self.target, versions, PROTOCOL)

    def evaluate(
        self,
        workload: Workload,
        source: str,
        *,
        seed: int | None = None,
        watch: Watch | None = None,
        stop: Stop | None = None,
    ) -> EvalResult:
        """Evaluates one kernel text. Never raises for anything that the text does.

        Args:
            workload: What the text claims to compute.
            source: The text; defines ``workload(*inputs)``.
            seed: Seed of the secret inputs; from the system by default.
            watch: Hears of the progress at the published size: what is being done, steps done,
                steps in all.
            stop: Ends the evaluation early if it is cancelled; its result then means nothing.

        Raises:
            ValueError: For a workload that is neither registered nor from a file, an unknown
                target, or a negative seed.
        """
        self.check(workload, seed)
        known = self.kept(workload, source, seed)
        if known is not None:
            return known
        run = _Run(workload, source, secrets.randbits(63) if seed is None else int(seed))
        stop = stop or Stop()
        stop.add(run.stop)
        try:
            result = self._result(run, watch)
        finally:
            stop.discard(run.stop)
        if run.repeatable and not run.stop.over and not self.without:
            cache.save(self._key(workload, source, seed), result)
        return result

    def check(self, workload: Workload, seed: int | None) -> None:
        """Raises as `evaluate` does, and does nothing else."""
        named(workload)
        chip(self.target)
        if seed is not None and int(seed) < 0:
            raise ValueError(f"a seed is a whole number of at least 0, not {seed}")

    def kept(self, workload: Workload, source: str, seed: int | None) -> EvalResult | None:
        """The verdict that is on disk already, if there is one and it may be used."""
        if not self.cache or self.without:
            return None
        return cache.load(self._key(workload, source, seed), workload, source, seed)

    def _key(self, workload: Workload, source: str, seed: int | None) -> str:
        settings = {k: v for k, v in asdict(self).items() if k not in ("without", "cache")}
        settings["protocol"] = PROTOCOL
        versions = building.installed_versions().as_dict()
        return cache.key(workload, source, None if seed is None else int(seed), versions, settings)

    def _result(self, run: _Run, watch: Watch | None) -> EvalResult:
        started = time.monotonic()
        if self.target != MEASURED:
            run.flags.add("uncalibrated")
        try:
            fields = self._evaluate(run)
            if self.verify == "full":
                fields = _verify_full(run, fields, watch)
            if "conservation" not in self.without:
                counted = verdict.judge_work(fields, run.workload, run.shown)
                if counted is not fields:
                    run.flags.add("work_unshown")
                fields = counted
        except Failure as failure:
            fields = failure.fields
        except Exception as error:
            fields = {
                "status": Status.EVALUATOR_ERROR,
                "message": "the evaluator failed, not the kernel: "
                + verdict.last_line(str(error) or type(error).__name__),
                "details": traceback.format_exc()[-20_000:],
            }
        run.durations["total"] = time.monotonic() - started
        fields["message"] = " ".join([fields["message"], *run.notes])
        return EvalResult(
            **{"stage": run.stage, **fields},
            flags=tuple(sorted(run.flags)),
            shown=dict(sorted(run.shown.items())),
            durations={name: round(seconds, 4) for name, seconds in run.durations.items()},
            provenance=Provenance(
                protocol=PROTOCOL,
                workload=run.workload.id,
                workload_version=run.workload.version,
                target=self.target,
                versions=building.installed_versions().as_dict(),
                seed=run.seed,
                source_sha256=cache.source_hash(run.source),
            ),
        )

    def timeline(
        self, workload: Workload, source: str, *, seed: int = 0, iterations: int = 8
    ) -> building.Built:
        """Compiles a kernel text at the published size and writes its predicted timeline.

        The numbers are not checked, so it says nothing about whether the kernel is right.

        Args:
            workload: What the text claims to compute.
            source: The text.
            seed: Seed of the inputs that decide what depends on data.
            iterations: Iterations of each loop to show before exact repetition is left out.

        Raises:
            Failure: With the verdict on a text that does not get as far as a compiled program.
        """
        run = _Run(workload, source, seed, timeline=building.Timeline(workload.id, iterations))
        limits = self._audit(run)
        kind, cores = building.DEVICE_KINDS[self.target], CORES[self.target]
        with (
            tracing.start(workload, source, kind, limits, cores=cores) as job,
            Stop() as jobs,
        ):
            trace = tracing.Trace(workload, source, jobs.add(job))
            for preset, platform, artefact in trace.artefacts():
                if (preset, platform) == ("v6e", "tpu"):
                    return self._build(run, artefact, jobs)
        raise AssertionError("artefacts() raises unless it yields the TPU's")

    def _audit(self, run: _Run) -> Limits:
        """Audits the text; returns the limits for running it."""
        with run.timed("audit"):
            finding = None
            if "audit" not in self.without:
                allowed = self.allow_library_kernels
                finding = auditing.audit(run.source, allow_library_kernels=allowed)
        if finding is not None:
            raise Failure(finding.status, "audit", finding.message, line=finding.line)
        run.stage = Stage.AUDITED
        return replace(tracing.LIMITS, wall_seconds=self.trace_seconds)

    def _evaluate(self, run: _Run) -> dict[str, Any]:
        limits = self._audit(run)
        kind, cores = building.DEVICE_KINDS[self.target], CORES[self.target]
        checked = {*run.workload.check_presets, *(["v6e"] if self.verify == "full" else [])}
        # Left from the inside out: jobs are cancelled, threads end, and only then the connection
        # to the trace child is closed, which one of them may be reading.
        with (
            tracing.start(run.workload, run.source, kind, limits, checked, cores) as job,
            ThreadPoolExecutor(5) as threads,
            run.stop.add(Stop()) as jobs,
        ):
            based = threads.submit(self.baseline, run.workload)
            trace = tracing.Trace(run.workload, run.source, jobs.add(job), checked)
            built = self._trace(run, trace, threads, jobs)
            checked = threads.submit(_check, run)
            simulated = threads.submit(_simulate, run, trace)
            examined = threads.submit(_examine, run)
            program: building.Built = built.result()
            checks, refused = checked.result()
            race = simulated.result()
            findings, races, refused_program = examined.result()
            known = based.result()
        # The order below decides which of several faults is reported, whichever was seen first.
        fields = self._measured(run, program, known)
        if refused is not None:
            raise Failure(refused.status, "numerics", str(refused), **fields)
        fields["numerics"] = tuple(checks)
        if "memory" in self.without:
            race = {"outcome": "skipped", "reason": "the fence is off"}
        judged = () if "numerics" in self.without else checks
        unchecked = verdict.judge_numbers(judged, race, fields)
        if refused_program is not None:
            raise Failure(refused_program.status, "trace", str(refused_program), **fields)
        unchecked, capped = verdict.judge_races(unchecked, race, races)
        run.shown["memory"] = unchecked or "shown"
        if unchecked:
            run.notes.append(f"Races were not checked: {unchecked}.")
        capped = capped and "memory" not in self.without
        if capped:
            run.flags.add("races_unchecked")
        if run.reach is not None and "kernel" not in self.without:
            sure = run.reach["fault"] or run.facts["kernel"]["shown"] == "shown"
            verdict.require("kernel", run.reach if sure else run.facts["kernel"], run)
        for fence, finding in findings.items():
            if fence not in self.without:
                verdict.require(fence, finding, run, **fields)
        output = run.workload.output("v6e").nbytes
        if "conservation" not in self.without and fields["times"].candidate_ms is not None:
            verdict.require_traffic(output, fields)
        floor = 0.0
        if "floor" not in self.without:
            least = output + run.workload.sure_input_bytes()
            floor = chip(self.target).roofline_ms(run.facts["sure_flops"], least)
            run.shown["floor"] = "shown"
        return verdict.judge_time(fields, floor, program.price_error, capped)

    def _trace(
        self, run: _Run, trace: tracing.Trace, threads: ThreadPoolExecutor, jobs: Stop
    ) -> Future[building.Built]:
        """Collects the artefacts; the full-size one is compiled while the others are traced."""
        built = None
        with run.timed("trace"):
            try:
                for preset, platform, artefact in trace.artefacts():
                    run.programs[preset, platform] = artefact
                    if (preset, platform) == ("v6e", "tpu"):
                        built = threads.submit(self._build, run, artefact, jobs)
                    elif platform == "cpu":
                        run.artefacts[preset] = artefact
            except Failure as failure:
                if failure.fields["failed_in"] == "compile":
                    run.stage = Stage.TRACED
                raise
        run.stage = Stage.TRACED
        for preset, message in trace.specialised.items():
            run.flags.add("shape_specialised")
            run.notes.append(f"It does not trace at preset {preset}: {message}")
        return built

    def _build(self, run: _Run, artefact: bytes, jobs: Stop) -> building.Built:
        """Inspects, compiles and prices the full-size artefact."""
        try:
            return self._built(run, artefact, jobs)
        finally:
            if not run.scalars.done():
                run.scalars.set_result(building.Scalars())

    def _built(self, run: _Run, artefact: bytes, jobs: Stop) -> building.Built:
        request = {"do": "inspect", **named(run.workload), "preset": "v6e"}
        try:
            run.facts, _ = pool().ask("price", request, [artefact], stop=run.stop)
        except Refused as refused:
            raise Failure(refused.status, "trace", str(refused)) from None
        if "kernel" not in self.without:
            verdict.require("kernel", run.facts["kernel"], run)
        verdict.require_vmem(run.facts, chip(self.target).vmem_bytes)
        values = building.Scalars()
        if run.facts["scalar_operands"]:
            with run.timed("feeds"):
                seed = feeds_seed(run.seed)
                values = building.scalars(artefact, run.workload, seed, stop=run.stop)
            run.repeatable &= not values.late
        run.scalars.set_result(values)
        try:
            program = building.build(
                artefact,
                self.target,
                watch=jobs.add,
                stop=run.stop,
                scalars=values,
                timeline=run.timeline,
            )
        except building.BuildError as error:
            memory = Memory(hbm_limit=chip(self.target).hbm_bytes, **error.memory)
            raise Failure(
                error.status, "compile", error.message, details=error.details, memory=memory
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
            baseline_ms=based.paid_ms,
            roofline_ms=run.workload.roofline_ms(self.target),
            compiler=str(building.installed_versions()),
        )
        prediction = program.prediction
        if prediction is None:
            return {"times": times, "memory": memory}
        uncertain = prediction["uncertain"] or not based.bounded
        uncertain = uncertain and "predictor" not in self.without
        if uncertain:
            run.flags.add("uncertain")
        if based.uncertain and based.bounded:
            run.flags.add("baseline_bound")
            run.notes.append(
                "XLA's time is a bound from below, so the speedup is too: parts of XLA's program "
                "depend on data or run where there is no schedule to replay."
            )
        reasons = tuple(prediction["reasons"])
        times = replace(times, candidate_ms=prediction["ms"], uncertain=uncertain, reasons=reasons)
        programs, pallas = prediction["programs"], program.pallas_programs
        if "kernel" not in self.without:
            verdict.require_share(run.facts, programs, pallas, memory, times)
        return {"times": times, "memory": memory, **profile.fields(run.workload, program, limits)}


def feeds_seed(seed: int) -> int:
    """Seed of the inputs on which a candidate is timed, other than those of its numbers."""
    return int(np.random.SeedSequence([seed, 1 << 32]).generate_state(1)[0])


def _check(run: _Run) -> tuple[list[NumericCheck], Refused | None]:
    """Compares the interpret-mode programs with the reference on secret inputs."""
    presets = [p for p in run.workload.check_presets if p in run.artefacts]
    request = {"do": "check", **named(run.workload), "seed": run.seed, "presets": presets}
    blobs = [run.artefacts[p] for p in presets]
    both = [p for p in presets if (p, "tpu") in run.programs]
    if both:
        # There the program around the kernel is run without it: see `judge.reach`.
        request["reach"] = min(both, key=lambda p: run.workload.presets[p].nbytes)
        blobs.append(run.programs[request["reach"], "tpu"])
    limit = numerics_limit(run.workload)
    with run.timed("numerics"):
        try:
            answer, _ = pool().ask("numerics", request, blobs, limit, run.stop)
        except Refused as refused:
            return [], refused
    run.reach = answer.get("reach", run.reach)
    return [NumericCheck(**c) for c in answer["checks"]], None


def _examine(run: _Run) -> tuple[dict[str, Any], dict[str, str], Refused | None]:
    """Compares the artefacts with each other: see `judge.evidence`."""
    names = list(run.programs)
    request = {"do": "examine", **named(run.workload), "artefacts": names}
    values = run.scalars.result()
    request |= {"seed": feeds_seed(run.seed), "kernels": list(values.kernels)}
    with run.timed("examine"):
        try:
            blobs = [*(run.programs[name] for name in names), *values.blobs]
            answer, _ = pool().ask("price", request, blobs, stop=run.stop)
        except Refused as refused:
            return {}, {}, refused
    return answer["findings"], answer["races"], None


def _verify_full(run: _Run, fields: dict[str, Any], watch: Watch | None) -> dict[str, Any]:
    """Compares a kernel that is right at the check presets at the published size."""
    request = {
        "do": "full",
        **named(run.workload),
        "preset": "v6e",
        "seed": run.seed,
        "share": full_share(run.workload),
    }
    with run.timed("full"), _FULL:
        try:
            blobs, limit = [run.artefacts["v6e"]], full_limit(run.workload)
            found, _ = pool().ask("full", request, blobs, limit, run.stop, watch)
        except Refused as refused:
            run.repeatable &= refused.status not in cache.UNSETTLED
            return verdict.judge_full(None, 0.0, refused, fields, run.shown)
    check = NumericCheck(**found["check"])
    return verdict.judge_full(check, found["share"], None, fields, run.shown)


def _simulate(run: _Run, trace: tracing.Trace) -> dict[str, Any]:
    """Waits for the simulated run and compares its result. Never passes a kernel."""
    with run.timed("simulate"):
        race = trace.race()
        result = race.pop("result", None)
        run.repeatable &= not race.pop("cut_short", False)
        if result is None:
            return race
        preset = race["preset"]
        request = {
            "do": "simulated",
            **named(run.workload),
            "preset": preset,
            "seed": tracing.PUBLIC_SEED,
        }
        limit = numerics_limit(run.workload)
        try:
            blobs = [result, run.artefacts[preset]]
            answer, _ = pool().ask("simulated", request, blobs, limit, run.stop)
        except Refused as refused:
            run.repeatable = False
            return {**race, "outcome": "failed", "reason": str(refused)}
        simulated, plain = (NumericCheck(**c) for c in answer["checks"])
        return {**race, "simulated": simulated, "plain": plain}


@dataclass
class _Run:
    """What is known so far about one candidate."""

    workload: Workload
    source: str
    seed: int
    timeline: building.Timeline | None = None
    stage: Stage = Stage.NONE
    flags: set[str] = field(default_factory=set)
    artefacts: dict[str, bytes] = field(default_factory=dict)  # preset -> CPU artefact
    programs: dict[tuple[str, str], bytes] = field(default_factory=dict)  # by preset and platform
    facts: dict[str, Any] = field(default_factory=dict)
    reach: dict[str, str] | None = None  # finding on whether Pallas decides the output
    notes: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)  # fence -> see EvalResult.shown
    scalars: Future[building.Scalars] = field(default_factory=Future)  # of the full size
    durations: dict[str, float] = field(default_factory=dict)
    repeatable: bool = True  # whether a quieter machine would say the same
    stop: Stop = field(default_factory=Stop)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Records the wall time of a stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.durations[name] = time.monotonic() - started
