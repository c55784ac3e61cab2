"""Results of kernels that do less than the whole operator: none of them may pass.

They are computed in float32 from the reference, so that nothing but what a kernel leaves out can
make them wrong. `jaxbench audit workloads` holds them against every workload's own tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxbench_env.evaluator.judge import numerics
from jaxbench_env.evaluator.judge.compare import compare
from jaxbench_env.evaluator.result import NumericCheck
from workloads import Workload
from workloads.data import structure

PRESET = "varied"
BAND = 64
CHUNK = 96


def audit(
    workload: Workload, draw: str, seed: int, preset: str = PRESET
) -> dict[str, NumericCheck]:
    """The judge's opinion of every degenerate result of one draw, by the result's name."""
    _, exact, own = numerics.expected(workload, preset, draw, seed)
    found = {}
    for name, out in results(workload, draw, seed, preset):
        found[name] = compare(out, exact, own, workload.tolerance, preset=preset, draw=draw)
    return found


def excess(check: NumericCheck) -> float:
    """By what factor a check breaks the rule; a result passes up to 1."""
    return max(check.max_ratio / check.limit, check.rms_error / check.rms_limit)


def results(
    workload: Workload, draw: str, seed: int, preset: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (name, result) of kernels that leave something out."""
    inputs, exact, _ = numerics.expected(workload, preset, draw, seed)
    names = list(workload.presets[preset].args)
    arrays = {
        name: array if array.dtype.kind in "iub" else array.astype(np.float32)
        for name, array in zip(names, inputs, strict=True)
    }
    reference, _ = numerics.references(workload, preset)

    def run(changed: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(reference(*{**arrays, **changed}.values()))

    yield from _constant(exact)
    yield from _identities(arrays, exact)
    for name, array in arrays.items():
        yield from _ignoring(workload, name, array, run)
    axes = structure(workload.id).causal
    if axes:
        yield from _short_memory(arrays, axes, exact, reference)


def _constant(exact: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield "zeros", np.zeros_like(exact)
    yield "ones", np.ones_like(exact)
    if exact.size > 1:
        yield "the mean everywhere", np.full_like(exact, exact.mean())
    for axis, size in enumerate(exact.shape):
        if size > 1 and exact.ndim > 1:
            mean = exact.mean(axis, keepdims=True)
            yield f"means over axis {axis}", np.broadcast_to(mean, exact.shape)


def _identities(arrays, exact) -> Iterator[tuple[str, np.ndarray]]:
    """Inputs that have the output's size, passed through."""
    for name, array in arrays.items():
        if array.size == exact.size > 1 and np.issubdtype(array.dtype, np.floating):
            yield f"{name} as it is", array.reshape(exact.shape)


def _ignoring(workload, name, array, run) -> Iterator[tuple[str, np.ndarray]]:
    """The input replaced by what a kernel that never reads it could assume."""
    exempt = structure(workload.id).ineffective.get(name)
    if exempt == "nothing":
        return
    if np.issubdtype(array.dtype, np.integer):
        # Zeros and sorted values are lengths, offsets and tables that a lazy kernel would assume.
        values = {"zeros": np.zeros_like(array), "sorted": np.sort(array, axis=None)}
    else:
        values = {"zeros": np.zeros_like(array), "ones": np.ones_like(array)}
        if exempt != "mean" and array.size > 1:
            values["its mean"] = np.full_like(array, array.mean())
    for what, value in values.items():
        value = value.reshape(array.shape)
        if not np.array_equal(value, array):
            yield f"{name} replaced by {what}", run({name: value})


def _short_memory(arrays, axes, exact, reference) -> Iterator[tuple[str, np.ndarray]]:
    """Causal operators that see only a part of the past: a mean, a band, their own chunk."""
    out_axis = next(iter(axes.values()))[0]
    length = exact.shape[out_axis]

    def window(start: int, stop: int) -> np.ndarray:
        part = {}
        for name, array in arrays.items():
            index = [slice(None)] * array.ndim
            for axis in axes.get(name, ()):
                index[axis] = slice(start, stop)
            part[name] = array[tuple(index)]
        return np.asarray(reference(*part.values()))

    def join(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts, axis=out_axis)

    chunks = [window(s, s + CHUNK) for s in range(0, length, CHUNK)]
    yield "no state between chunks", join(chunks)
    bands = [chunks[0]] if BAND == CHUNK else [window(0, BAND)]
    for start in range(BAND, length, BAND):
        seen = window(start - BAND, start + BAND)
        bands.append(np.take(seen, range(BAND, 2 * BAND), axis=out_axis))
    yield "a narrow band", join(bands)
    value = arrays[list(axes)[min(2, len(axes) - 1)]]
    if value.shape == exact.shape:
        shape = [1] * value.ndim
        shape[out_axis] = length
        counts = np.arange(1, length + 1, dtype=np.float32).reshape(shape)
        yield "a running mean", np.cumsum(value, axis=out_axis) / counts
