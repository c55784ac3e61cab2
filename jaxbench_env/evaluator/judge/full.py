"""The numbers at the published size: the whole kernel, against the reference part by part.

At the published size the reference's intermediate results (all attention scores, all experts) do
not fit into memory, and float32 takes minutes. So the reference is evaluated on independent parts
(`workloads.slices`), each compared by the same rule as a whole output at a small preset.
"""

from __future__ import annotations

import dataclasses
import math
import resource
import time
from collections.abc import Callable

import jax
import numpy as np

from jaxbench_env.evaluator.judge import artefact, numerics
from jaxbench_env.evaluator.judge.compare import compare
from jaxbench_env.evaluator.result import NumericCheck, Status
from workloads import DRAWS, Workload
from workloads.slices import Part, counts, parts

#: Bound on inputs, output and temporaries together, of the kernel and of the reference.
MAX_BYTES = 12 << 30
LEAST_PARTS = 16  # for a sample of them to mean something, and for progress to be seen

Tell = Callable[[str, int, int], None]  # what is being done, steps done, steps in all


@dataclasses.dataclass(frozen=True)
class Found:
    """What was compared at the published size.

    Attributes:
        check: The comparison, over all parts.
        share: Share of the output that was compared, 0 to 1.
        kernel_seconds: Wall time of the kernel in interpret mode.
        reference_seconds: Wall time of the reference, in float32 and in its own types.
        peak_bytes: Largest resident memory of this process so far.
    """

    check: NumericCheck
    share: float
    kernel_seconds: float
    reference_seconds: float
    peak_bytes: int


def check(
    workload: Workload, preset: str, seed: int, blob: bytes | None, share: float, tell: Tell
) -> Found:
    """Compares a candidate with the reference at the published size, on nominal inputs.

    Args:
        workload: The workload.
        preset: The preset, ``"v6e"``.
        seed: Secret: decides the inputs, and which parts are compared.
        blob: CPU artefact; without one XLA's own result stands in for the candidate's, which
            costs what the reference costs.
        share: Share of the output to compare, above 0, up to 1. An output that is a mean over the
            parts is always compared whole.
        tell: Hears of progress.

    Raises:
        ArtefactError: If the artefact may not be used, or something takes more than `MAX_BYTES`.
    """
    draw = DRAWS[0]
    rng = np.random.default_rng(seed)
    spec = workload.output(preset)
    room = MAX_BYTES - workload.presets[preset].nbytes - 2 * spec.nbytes
    run = numerics.program(workload, preset, blob, room) if blob is not None else None
    split, exact, own = _reference(workload, preset, room)
    todo = _chosen(split, share, rng)
    steps = len(todo) + 2
    tell("drawing inputs", 0, steps)
    inputs = workload.inputs(preset, draw, int(rng.integers(1 << 62)))
    tell("running the kernel", 1, steps)
    started = time.monotonic()
    out = None if run is None else run(inputs)
    kernel_seconds = time.monotonic() - started
    del run
    compared, spent, results = [], 0.0, []
    for number, part in enumerate(todo):
        tell("comparing", 2 + number, steps)
        started = time.monotonic()
        args = [a[index] for a, index in zip(inputs, part.arguments, strict=True)]
        ref, xla = np.asarray(exact(*args)), np.asarray(own(*args))
        spent += time.monotonic() - started
        if part.output is None:
            results.append((ref, xla))
            continue
        got = xla if out is None else out[part.output]
        compared.append(_compare(workload, preset, draw, got, ref, xla, part))
    if results:  # the output is their mean
        ref, xla = (np.mean(values, axis=0) for values in zip(*results, strict=True))
        got = xla if out is None else out
        compared.append(compare(got, ref, xla, workload.tolerance, preset=preset, draw=draw))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    done = len(todo) / len(split)
    return Found(_together(compared), done, kernel_seconds, spent, peak)


def _reference(workload: Workload, preset: str, room: int):
    """The parts, as few as fit, and both forms of the reference compiled for one of them."""
    possible = counts(workload, preset)
    needed = 0
    for count in possible:
        if math.prod(count) < LEAST_PARTS and count != possible[-1]:
            continue
        split = list(parts(workload, preset, count))
        compiled = [
            f.lower(*_specs(workload, preset, split[0])).compile()
            for f in numerics.references(workload, preset)
        ]
        needed = max(c.memory_analysis().temp_size_in_bytes for c in compiled)
        if needed <= room:
            return split, *compiled
    raise artefact.ArtefactError(
        Status.OUT_OF_MEMORY,
        f"the reference needs {needed / 1e9:.1f} GB of temporaries for its smallest part; there "
        f"is room for {room / 1e9:.1f} GB",
    )


def _specs(workload: Workload, preset: str, part: Part) -> list[jax.ShapeDtypeStruct]:
    found = []
    for spec, index in zip(workload.presets[preset].args.values(), part.arguments, strict=True):
        shape = [len(range(*i.indices(n))) for i, n in zip(index, spec.shape, strict=True)]
        found.append(jax.ShapeDtypeStruct(shape, spec.np_dtype))
    return found


def _chosen(split: list[Part], share: float, rng: np.random.Generator) -> list[Part]:
    if split[0].output is None:
        return split
    count = max(1, math.floor(share * len(split)))
    return [split[i] for i in rng.permutation(len(split))[:count]]


def _compare(workload, preset, draw, got, ref, xla, part: Part) -> NumericCheck:
    found = compare(got, ref, xla, workload.tolerance, preset=preset, draw=draw)
    if found.passed:
        return found
    where = ", ".join(
        ":"
        if i == slice(None)
        else str(i.start)
        if i.stop == i.start + 1
        else f"{i.start}:{i.stop}"
        for i in part.output
    )
    return dataclasses.replace(found, summary=f"in the part [{where}]: {found.summary}")


def _together(found: list[NumericCheck]) -> NumericCheck:
    """One check for all parts: the worst numbers, and the summary of the worst part."""
    worst = max(found, key=lambda c: (not c.passed, c.mismatched, c.max_ratio))
    rms = max(found, key=lambda c: c.rms_error / c.rms_limit)
    failed = sum(not c.passed for c in found)
    summary = worst.summary
    if failed and len(found) > 1:
        summary = f"{failed} of the {len(found)} parts compared differ; {summary}"
    return dataclasses.replace(
        worst,
        max_ratio=max(c.max_ratio for c in found),
        rms_error=rms.rms_error,
        rms_limit=rms.rms_limit,
        mismatched=sum(c.mismatched for c in found) / len(found),
        summary=summary,
    )
