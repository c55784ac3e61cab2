"""What the profile of a correct kernel tells its author to change: up to three sentences.

Each rule looks at the numbers of `EvalResult.counters` and at `EvalResult.loop`, and says nothing
unless they carry it. Rules are weighed by the part of the time that their subject takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxbench_env.evaluator.result import EvalResult
from jaxbench_env.evaluator.timing import Loop

MAX_SENTENCES = 3

_UNITS = {
    "mxu": "matrix units",
    "vpu": "vector ALUs",
    "xlu": "cross-lane units",
    "eup": "transcendental unit",
    "load": "vector load slots",
    "store": "vector store slots",
}
_HINTS = {
    "vpu": "compute in fewer elementwise operations, and take masks, casts and constants out of "
    "the loop",
    "xlu": "reduce and transpose across lanes once at the end instead of in every iteration",
    "eup": "evaluate fewer exp, log, rsqrt and divisions",
    "load": "read each value once and keep it in registers",
    "store": "keep what is accumulated in registers and write it once",
}

# Thresholds; each is a part of the time, of the bytes or of the slots.
OUTSIDE = 0.1  # outside the kernel
WAITING = 0.25  # waiting for HBM
SLOW = 0.6  # HBM bandwidth below which waiting is not for lack of it
SATURATED = 0.7  # HBM bandwidth that is as good as all of it
EXCESS = 1.25  # bytes moved over the least
HOT = 0.3  # time in the hottest loop, waits left out
SPILLED = 0.3  # vector loads and stores that move spilled registers
FULL = 0.6  # slots of a unit that bounds a loop
IDLE_MXU = (0.05, 0.6)  # matrix units that are used, and not well
BUSY_MXU = 0.85
SHORT_STEP, MANY_STEPS = 400, 64  # bundles in a grid step, grid steps


def advice(result: EvalResult) -> list[str]:
    """Sentences about a correct kernel whose time is certain, the weightiest first; else none."""
    if not result.correct or result.times.uncertain or not result.counters:
        return []
    found = [*_outside(result), *_memory(result)]
    if result.loop is not None:
        found += _loop(result.loop)
    found += _steps(result)
    found.sort(key=lambda pair: -pair[0])
    return [sentence for _, sentence in found[:MAX_SENTENCES]]


Found = Iterator[tuple[float, str]]  # weight, sentence


def _outside(result: EvalResult) -> Found:
    """XLA programs around the kernel."""
    outside = 1 - result.counters.get("kernel_share", 1.0)
    if outside < OUTSIDE:
        return
    others = {name: ms for name, ms in result.programs.items() if name not in result.kernels}
    longest = max(others, key=others.__getitem__, default="")
    most = f", most of it in {longest} ({others[longest]:.3f} ms)" if longest else ""
    yield (
        outside,
        f"{outside:.0%} of the time is spent outside the kernel{most}: transposes, pads, casts and "
        "copies of whole arrays are programs of their own; do them on blocks, in the kernel.",
    )


def _memory(result: EvalResult) -> Found:
    """Waits for HBM, and what moves through it."""
    counters = result.counters
    waiting, speed = counters.get("dma_wait_share", 0.0), counters.get("hbm_bandwidth_share", 0.0)
    moved, least = counters.get("hbm_bytes", 0.0), counters.get("hbm_bytes_min", 0.0)
    if waiting < WAITING or not moved or not least:
        return
    if moved > EXCESS * least:
        yield (
            waiting * (1 - least / moved),
            f"{_size(moved)} move through HBM where {_size(least)} would do if every array moved "
            f"once, and {waiting:.0%} of the time waits for it: choose blocks and the order of the "
            "grid so that what is used again stays in VMEM.",
        )
    if speed < SLOW:
        each = moved / max(counters.get("dma_count", 0.0), 1.0)
        yield (
            waiting * (1 - speed),
            f"{waiting:.0%} of the time waits for HBM, which runs at {speed:.0%} of its bandwidth: "
            f"transfers of {_size(each)} on average are too small or start too late to hide its "
            "latency; use larger blocks, or start more copies ahead (pltpu.make_async_copy).",
        )
    elif speed >= SATURATED and moved <= EXCESS * least:
        yield (
            0.0,
            f"HBM is the limit: it moves {_size(moved)}, little more than the least, at "
            f"{speed:.0%} of its specified bandwidth; only fewer bytes would be faster.",
        )


def _loop(loop: Loop) -> Found:
    """What fills the hottest loop."""
    busy = loop.share * (1 - loop.wait_share)
    if busy < HOT:
        return
    where = _where(loop.lines)
    full = loop.slots.get(loop.bound, 0.0)
    mxu = loop.slots.get("mxu", 0.0)
    matrix = ""
    if IDLE_MXU[0] <= mxu < IDLE_MXU[1]:
        matrix = f"; the matrix units are busy for {mxu:.0%} of it"
        matrix += f" (line {loop.unit_lines['mxu']})" if "mxu" in loop.unit_lines else ""
    if loop.bound in ("load", "store") and loop.spill_share >= SPILLED:
        yield (
            busy * loop.spill_share,
            f"{loop.spill_share:.0%} of the vector loads and stores of the hottest loop{where} "
            f"move spilled registers, {loop.spills:,.0f} in an iteration, and its "
            f"{_UNITS[loop.bound]} are {full:.0%} full{matrix}: its values do not fit the 64 "
            "vector registers; work on a smaller slice of the block at a time.",
        )
    elif loop.bound in _HINTS and full >= FULL:
        line = loop.unit_lines.get(loop.bound)
        yield (
            busy * full / 2,
            f"The {_UNITS[loop.bound]} bound the hottest loop{_where((line,) if line else ())}: "
            f"{full:.0%} of their slots are filled{matrix}; {_HINTS[loop.bound]}.",
        )
    elif loop.bound == "mxu" and mxu >= BUSY_MXU:
        line = loop.unit_lines.get("mxu")
        yield (
            0.0,
            f"The matrix units are the limit: they are busy for {mxu:.0%} of the hottest loop"
            f"{_where((line,) if line else ())}; only fewer or narrower products would be faster.",
        )
    elif loop.bound == "latency":
        unit = max(_UNITS, key=lambda name: loop.slots.get(name, 0.0))
        yield (
            busy * (1 - loop.slots.get(unit, 0.0)) / 2,
            f"No unit is busy for half of the hottest loop{where}, the {_UNITS[unit]} most with "
            f"{loop.slots.get(unit, 0.0):.0%}{matrix}: its operations wait for one another; do "
            "more independent rows or blocks in one iteration.",
        )


def _steps(result: EvalResult) -> Found:
    """Grid steps that do too little."""
    counters = result.counters
    steps, bundles = counters.get("steps", 0.0), counters.get("bundles_per_step", 0.0)
    if steps >= MANY_STEPS and 0 < bundles < SHORT_STEP:
        yield (
            counters.get("kernel_share", 0.0) * (1 - bundles / SHORT_STEP) / 2,
            f"Each of {steps:,.0f} grid steps issues only {bundles:,.0f} bundles: larger blocks "
            "spread the cost of a step over more work.",
        )


def _where(lines: tuple[int, ...]) -> str:
    if not lines:
        return ""
    if len(lines) == 1:
        return f" (line {lines[0]})"
    return f" (lines {', '.join(map(str, lines[:-1]))} and {lines[-1]})"


def _size(size: float) -> str:
    return (
        f"{size / 1e6:,.{0 if size >= 1e8 else 1}f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    )
