"""The trace child, supervised: starts it and turns what it says into artefacts or a verdict."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import Any

from jaxbench_env.evaluator.audit import removed_names
from jaxbench_env.evaluator.judge.pool import JudgeError, Refused, pool
from jaxbench_env.evaluator.judge.worker import named
from jaxbench_env.evaluator.result import Status
from jaxbench_env.evaluator.sandbox import Job, Limits, sandbox
from jaxbench_env.evaluator.verdict import Failure, last_line
from workloads import DRAWS, Workload

PUBLIC_SEED = 0  # inputs of the simulated run: the kernel's author may see them
OPTIONAL_PRESET = "varied"  # a kernel need not trace here
MAX_SIMULATED_STEPS = 2048
MAX_SIMULATED_BYTES = 1 << 28  # of inputs
MAX_ARTEFACT_BYTES = 33 << 20
LIMITS = Limits(cpu_seconds=120, memory_bytes=4 << 30, disk_bytes=128 << 20)

_SIGXCPU = 24


def start(
    workload: Workload,
    source: str,
    device_kind: str,
    limits: Limits,
    checked: Collection[str] = (),
    cores: int = 1,
) -> Job:
    """Starts a trace child for a kernel text.

    It gets the text, the shapes and scalars of all presets, and the public inputs of the
    simulated run: no seed, reference or expected value.

    Args:
        workload: The workload.
        source: The text.
        device_kind: The chip, by jax's name.
        limits: What the child may use.
        checked: Presets at which it exports the interpret-mode program, too; by default the
            check presets.
        cores: Cores of the chip that run a program together.

    Raises:
        SandboxError: If no process can be started.
        JudgeError: If the public inputs cannot be made.
    """
    simulate = _simulated(workload)
    files = {}
    for preset in simulate:
        arrays = _public_inputs(workload, preset)
        files |= {f"{preset}.{i}": data for i, data in enumerate(arrays)}
    job = {
        "source": source,
        "arguments": list(workload.arguments),
        "presets": [
            _describe(workload, name, name in (checked or workload.check_presets))
            for name in workload.presets
        ],
        "device_kind": device_kind,
        "cores": cores,
        "simulate": simulate,
        "max_steps": MAX_SIMULATED_STEPS,
    }
    return sandbox().start("trace", job, files=files, limits=limits)


@functools.lru_cache(maxsize=8)
def _public_inputs(workload: Workload, preset: str) -> list[bytes]:
    """Inputs of the simulated run, the same for every candidate."""
    if workload.file is None:
        return [a.tobytes() for a in workload.inputs(preset, DRAWS[0], PUBLIC_SEED)]
    # A judge runs the file: its jax code would start this process's accelerator.
    request = {"do": "inputs", **named(workload), "preset": preset, "draw": DRAWS[0]}
    try:
        return pool().ask("numerics", {**request, "seed": PUBLIC_SEED})[1]
    except Refused as error:  # there is no candidate yet whose fault it could be
        raise JudgeError(f"the inputs cannot be made: {error}") from None


def _simulated(workload: Workload) -> list[str]:
    """Check presets whose arrays a simulated run can hold, smallest first."""
    small = [
        name
        for name in workload.check_presets
        if workload.presets[name].nbytes <= MAX_SIMULATED_BYTES
        and workload.output(name).nbytes <= LIMITS.disk_bytes // 2
    ]
    return sorted(small, key=lambda name: workload.presets[name].nbytes)


def _describe(workload: Workload, name: str, checked: bool) -> dict[str, Any]:
    preset, output = workload.presets[name], workload.output(name)
    return {
        "name": name,
        "args": [[list(s.shape), s.dtype] for s in preset.args.values()],
        "config": dict(preset.config),
        "statics": [preset.config[key] for key in workload.static_arguments],
        "output": [list(output.shape), output.dtype],
        "check": checked,
        "optional": name == OPTIONAL_PRESET,
    }


class Trace:
    """The trace child's report. It can fail a kernel, not pass one.

    Attributes:
        job: The running child.
        specialised: What it said about presets at which the text does not trace, by preset.
    """

    def __init__(self, workload: Workload, source: str, job: Job, checked: Collection[str] = ()):
        """Listens to a child that was started with `start`."""
        self._checked = checked or workload.check_presets
        self.job = job
        self.specialised: dict[str, str] = {}
        self._workload, self._source = workload, source
        self._events = job.events()
        self._traced: set[str] = set()

    def artefacts(self) -> Iterator[tuple[str, str, bytes]]:
        """Yields (preset, platform, artefact), until all presets are traced.

        Raises:
            Failure: As the child says, or as its end means.
        """
        for event in self._events:
            kind, preset = event["event"], event.get("preset")
            if kind == "traced":
                break
            if kind == "error":
                raise self._error(event)
            if kind == "specialised":
                self.specialised[str(preset)] = str(event.get("message"))
            platform = event.get("platform")
            if not (isinstance(preset, str) and isinstance(platform, str)):
                continue
            known = preset in self._workload.presets and platform in ("tpu", "cpu")
            if kind == "artefact" and known:
                self._traced.add(f"{preset}.{platform}")
                yield preset, platform, self._read(f"{preset}.{platform}")
        required = [p for p in self._workload.check_presets if p != OPTIONAL_PRESET]
        wanted = {f"{p}.tpu" for p in required} | {f"{p}.cpu" for p in self._checked}
        wanted.discard(f"{OPTIONAL_PRESET}.cpu")
        if not {"v6e.tpu"} | wanted <= self._traced:
            raise self._died()

    def _read(self, name: str) -> bytes:
        try:
            return self.job.read(name, MAX_ARTEFACT_BYTES)
        except (OSError, ValueError) as error:
            raise Failure(
                Status.HACK_SUSPECTED, "trace", f"the traced program cannot be read: {error}"
            ) from None

    def race(self) -> dict[str, Any]:
        """What the simulated run found: outcome, reason, preset, hint and, as bytes, its result.

        ``cut_short`` is True where a limit of time or memory may have ended it.
        """
        if not _simulated(self._workload):
            return {"outcome": "skipped", "reason": "the arrays are too large to simulate"}
        for event in self._events:
            preset = str(event.get("preset"))
            if event["event"] != "race" or f"{preset}.cpu" not in self._traced:
                continue
            found = {
                "outcome": str(event.get("outcome")),
                "reason": str(event.get("reason")),
                "preset": preset,
                "hint": str(event.get("hint", "")),
            }
            if found["outcome"] in ("clean", "race"):
                try:
                    found["result"] = self.job.read("simulated", 1 << 30)
                except (OSError, ValueError) as error:
                    found |= {"outcome": "failed", "reason": str(error)}
            return found
        ended = self.job.wait()
        said = last_line(self.job.log())
        reason = f"the simulated run ended early ({ended.describe()}) {said}".strip()
        return {"outcome": "failed", "reason": reason, "cut_short": True}

    def _error(self, event: dict[str, Any]) -> Failure:
        try:
            status = Status(event.get("status"))
        except ValueError:
            status = Status.TRACE_ERROR
        if status.rank >= Status.INCORRECT.rank or status is Status.EVALUATOR_ERROR:
            status = Status.HACK_SUSPECTED  # a trace child has no say in these
        line = event.get("line")
        message, details = str(event.get("message")), str(event.get("details") or "")
        hints = removed_names(self._source)
        if hints and "has no attribute" in message + details:
            message = ". ".join([message, *hints])
        rejected = status in (Status.UNSUPPORTED, Status.COMPILE_ERROR)
        return Failure(
            status,
            "compile" if rejected else "trace",
            message,
            details=details[:20_000],
            line=line if isinstance(line, int) else None,
        )

    def _died(self) -> Failure:
        """The verdict on a child that ended before it had traced everything."""
        ended = self.job.wait()
        if ended.killed == "timeout" or ended.signal == _SIGXCPU:
            return Failure(
                Status.TIMEOUT,
                "trace",
                "running and tracing the file took longer than permitted; "
                "a kernel file must only define functions, and Python loops in them are unrolled",
            )
        if ended.out_of_memory:
            return Failure(
                Status.OUT_OF_MEMORY,
                "trace",
                f"tracing the file needed more than {LIMITS.memory_bytes / 1e9:.0f} GB; make no "
                "large arrays at import or trace time",
            )
        if ended.killed == "disk":
            why = f"the file wrote more than {LIMITS.disk_bytes >> 20} MiB; it must only define"
            return Failure(Status.CRASHED, "trace", f"{why} functions")
        if ended.killed == "processes":
            why = "the file starts processes or threads without end; it must only define functions"
            return Failure(Status.CRASHED, "trace", why)
        return Failure(
            Status.CRASHED,
            "trace",
            f"the process that traced the file ended without a result ({ended.describe()}); do "
            "not call os._exit, signals or threads, and make no huge unrolled programs",
            details=self.job.log(),
        )
