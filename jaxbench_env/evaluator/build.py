"""From a TPU artefact to a compiled program and its predicted time."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxbench_env.evaluator.judge.pool import JudgeError, Refused, pool
from jaxbench_env.evaluator.judge.worker import named
from jaxbench_env.evaluator.sandbox import Job, Limits, sandbox
from jaxbench_env.evaluator.stop import Stop
from jaxbench_env.evaluator.store import compile_slot
from workloads import Workload

# Topology names that libtpu accepts without a chip; see jax.experimental.topologies.
TOPOLOGIES = {"v6e": "v6e:1x1", "v5e": "v5e:1x1", "v5p": "v5p:1x1x1"}
DEVICE_KINDS = {"v6e": "TPU v6 lite", "v5e": "TPU v5 lite", "v5p": "TPU v5"}

COMPILE_LIMITS = Limits(
    wall_seconds=180,
    cpu_seconds=400,
    memory_bytes=8 << 30,
    address_space=32 << 30,
    disk_bytes=256 << 20,
)
PRICE_SECONDS = 120
FEEDS_SECONDS = 60
# The final schedule of every program with the source lines of its kernels, and nothing else that
# libtpu could write. The annotations are comments: the schedule is the same without them.
DUMP_FLAGS = (
    "--xla_jf_dump_to=dump --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.* "
    "--xla_mosaic_enable_llo_source_annotations=true"
)


@dataclass(frozen=True, repr=False)
class Scalars:
    """The scalar operands of a program's kernels on secret inputs.

    Attributes:
        kernels: What they belong to, as `timing.to_blobs` makes it.
        blobs: The values.
        problem: Why there are none, if so, as a sentence.
        late: Whether computing them took too long, which it may not on a quieter machine.
    """

    kernels: Sequence[dict[str, Any]] = ()
    blobs: Sequence[bytes] = ()
    problem: str = ""
    late: bool = False


@dataclass(frozen=True)
class Versions:
    """The packages that decide what a program is."""

    jax: str
    jaxlib: str
    libtpu: str

    def as_dict(self) -> dict[str, str]:
        """Package name -> version."""
        return asdict(self)

    def __str__(self) -> str:
        return f"libtpu {self.libtpu}, jax {self.jax}"


@functools.cache
def installed_versions() -> Versions:
    """The installed versions."""
    return Versions(*(importlib.metadata.version(p) for p in ("jax", "jaxlib", "libtpu")))


class BuildError(Exception):
    """No program came of an artefact."""

    def __init__(self, status: str, message: str, details: str = "", **memory: int | None):
        super().__init__(message)
        self.status, self.message, self.details, self.memory = status, message, details, memory


@dataclass(frozen=True)
class Timeline:
    """A timeline to write.

    Attributes:
        title: What it is of.
        iterations: Iterations of each loop to show before exact repetition is left out.
    """

    title: str
    iterations: int = 8


@dataclass(frozen=True)
class Built:
    """A compiled program.

    Attributes:
        hbm_used: Bytes of arguments, output and temporaries.
        vmem_used: The largest scoped VMEM allocation of its Pallas calls, if it has any.
        prediction: `timing.Prediction` as a dict, or None if there is none.
        price_error: Why there is no prediction.
        pallas_programs: Names of the programs that are Pallas calls.
        compile_seconds: Wall time of the compile.
        price_seconds: Wall time of the replay.
        fences: Active parts of the sandbox.
        least_ms: A time that is at most the true one, if asked for and the prediction is uncertain.
        trace: The predicted timeline, if it was asked for: Trace Event Format, gzipped.
    """

    hbm_used: int
    vmem_used: int | None
    prediction: dict[str, Any] | None
    price_error: str
    pallas_programs: tuple[str, ...]
    compile_seconds: float
    price_seconds: float
    fences: tuple[str, ...]
    least_ms: float | None = None
    trace: bytes | None = None


def build(
    artefact: bytes,
    target: str = "v6e",
    *,
    limits: Limits = COMPILE_LIMITS,
    watch: Callable[[Job], None] = lambda job: None,
    stop: Stop | None = None,
    scalars: Scalars = Scalars(),  # noqa: B008 - immutable
    bounded: bool = False,
    timeline: Timeline | None = None,
) -> Built:
    """Compiles an artefact for a TPU that is not there and predicts its time.

    Args:
        artefact: A TPU artefact.
        target: The chip.
        limits: What the compile may use.
        watch: Called with the running job, so that another thread can cancel it.
        stop: Ends the judge that predicts the time, if it is cancelled.
        scalars: Values of the kernels' scalar operands, from `scalars`. They are secret, and the
            compiler does not get them.
        bounded: Whether to bound an uncertain time from below too.
        timeline: What to write a timeline of, if one is wanted.

    Raises:
        BuildError: If the compiler rejects it, runs out of memory or time, or dies.
        JudgeError: If the evaluator itself fails.
    """
    with (
        compile_slot(),
        sandbox().start(
            "compile",
            {"topology": TOPOLOGIES[target]},
            files={"program": artefact},
            limits=limits,
            environment={"LIBTPU_INIT_ARGS": DUMP_FLAGS},
        ) as job,
    ):
        started = time.monotonic()
        watch(job)
        event = next(iter([*job.events()][-1:]), None)
        ended = job.wait()
        if event is None or ended.killed == "disk":
            raise _died(job, limits)
        if event["event"] != "compiled":
            raise _rejected(event)
        compiled = time.monotonic()
        hlo = job.read("hlo.txt", 256 << 20).decode(errors="replace")
        dump, least = job.box / "out" / "dump", None
        patience = PRICE_SECONDS * (5 if bounded else 1)  # the unrolled baseline takes minutes
        prediction, problem, trace = _price(
            dump, target, scalars, patience, stop, timeline=timeline
        )
        if bounded and prediction is not None and prediction["uncertain"]:
            least, problem, _ = _price(dump, target, scalars, patience, stop, least=True)
            prediction = prediction if least else None
        return Built(
            hbm_used=int(event["hbm_used"]),
            vmem_used=event["vmem_used"],
            prediction=prediction,
            price_error=problem,
            pallas_programs=_pallas_programs(hlo),
            compile_seconds=compiled - started,
            price_seconds=time.monotonic() - compiled,
            fences=ended.fences,
            least_ms=least and least["ms"],
            trace=trace,
        )


def _pallas_programs(hlo: str) -> tuple[str, ...]:
    found = re.findall(r'%?([\w.\-]+) = [^\n]*? custom-call\([^\n]*?"tpu_custom_call"', hlo)
    return tuple(dict.fromkeys(found))


def scalars(artefact: bytes, workload: Workload, seed: int, *, stop: Stop | None = None) -> Scalars:
    """The scalar operands that the kernels of an artefact have on secret inputs, for `build`.

    Args:
        artefact: A TPU artefact.
        workload: What it computes.
        seed: Seed of the inputs.
        stop: As for `build`.

    Raises:
        JudgeError: If the evaluator itself fails.
    """
    request = {"do": "feeds", **named(workload), "seed": seed}
    try:
        answer, blobs = pool().ask("price", request, [artefact], FEEDS_SECONDS, stop)
    except Refused:  # it was inspected before, so this is its size
        problem = "scalar operands have no values: computing them takes too long"
        return Scalars(problem=problem, late=True)
    return Scalars(answer["kernels"], blobs, answer["problem"])


def _price(
    dump: Path,
    target: str,
    values: Scalars,
    seconds: float,
    stop: Stop | None,
    *,
    least: bool = False,
    timeline: Timeline | None = None,
) -> tuple[dict[str, Any] | None, str, bytes | None]:
    """The predicted time of a dump folder that a compile child has left, and its timeline."""
    if any(not entry.is_file(follow_symlinks=False) for entry in os.scandir(dump)):
        return None, "the compiler's dump holds something other than files", None
    known = {"kernels": list(values.kernels), "problem": values.problem}
    request = {"do": "price", "dump": str(dump), "least": least, **known}
    request |= {"compiler": str(installed_versions()), "target": target}
    if timeline is not None:
        request["timeline"] = asdict(timeline)
    try:
        answer, blobs = pool().ask("price", request, values.blobs, seconds, stop)
    except Refused as error:
        return None, str(error), None
    except JudgeError as error:
        return None, str(error).strip().splitlines()[-1], None
    prediction = {k: v for k, v in answer.items() if k not in ("ok", "blobs")}
    return prediction, "", blobs[0] if blobs else None


def _died(job: Job, limits: Limits) -> BuildError:
    """What it means that the compile child ended without a word."""
    ended = job.wait()
    if ended.killed == "timeout":
        return BuildError(
            "timeout",
            f"the TPU compiler did not finish within {limits.wall_seconds:.0f} s; unrolled "
            "Python loops and very large blocks make the program long",
        )
    if ended.out_of_memory:
        return BuildError(
            "out_of_memory",
            f"the TPU compiler needed more than {limits.memory_bytes / 1e9:.0f} GB; make "
            "the program smaller (fewer unrolled steps, smaller blocks)",
        )
    if ended.killed == "disk":
        return BuildError("out_of_memory", "the compiled program is too large to be analysed")
    return BuildError(
        "crashed",
        f"the TPU compiler died ({ended.describe()}); this is a bug of the compiler that the "
        "program runs into: write the last change differently",
        job.log(),
    )


def _rejected(event: dict[str, Any]) -> BuildError:
    status, details = event["status"], event["details"]
    used, limit = event.get("vmem_used"), event.get("vmem_limit")
    first = details.splitlines()[0]
    if status == "vmem_oom" and used and limit:
        first = (
            f"the kernel needs {used / 2**20:.1f} MiB of VMEM and {limit / 2**20:.1f} MiB are "
            f"allowed: {(used - limit) / 2**20:.1f} MiB too much. Blocks that move with the grid "
            "are held twice (double buffering); make blocks or scratch smaller, or raise "
            "vmem_limit_bytes in pltpu.CompilerParams where the limit is below the chip's VMEM"
        )
    elif status == "hbm_oom":
        first = f"inputs, output and temporaries do not fit into HBM: {first}"
    else:
        first = f"the TPU compiler rejects the program: {first}"
    return BuildError(status, first, details, vmem_used=used, vmem_limit=limit)
