"""How a replayed run used the core: slots filled, spills, grid steps and the hottest loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from jaxbench_env.evaluator.timing.loops import (
    Loop,
    bodies,
    describe,
    hottest,
    slot_counts,
    slot_shares,
)
from jaxbench_env.evaluator.timing.machine import Tally
from jaxbench_env.evaluator.timing.program import Program
from jaxbench_env.evaluator.timing.scan import Scan, read

#: Part of the issued bundles below which a program's text is not read again.
WORTH_READING = 0.01


@dataclass
class Usage:
    """What was executed.

    Attributes:
        issued: Bundles issued.
        slots: Instructions executed, by slot class.
        numbers: The counters that are made of them.
        loop: The hottest loop.
    """

    issued: int = 0
    slots: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, float] = field(default_factory=dict)
    loop: Loop | None = None


def usage(
    programs: Sequence[Program],
    kernels: Collection[str],
    tally: Tally,
    cycles_by_name: Mapping[str, float],
    cycles: float,
) -> Usage:
    """Sums up a replay.

    Args:
        programs: The programs that ran.
        kernels: Names of the Pallas programs.
        tally: What was executed.
        cycles_by_name: Cycles of each program over all its calls.
        cycles: Cycles of the whole run.
    """
    used = Usage()
    issued = {}
    for program in programs:
        executed = tally.blocks[program.number]
        used.slots.update(slot_counts(program, executed, list(executed)))
        issued[program.number] = sum(
            times * (program.blocks[index].end - program.blocks[index].start)
            for index, times in executed.items()
        )
    used.issued = sum(issued.values())
    scans = {
        program.number: _scan(program, tally)
        for program in programs
        if issued[program.number] >= WORTH_READING * used.issued
    }
    spills = sum(
        one.spills * tally.blocks[number][index]
        for number, blocks in scans.items()
        for index, one in blocks.items()
    )
    ours = [program for program in programs if program.name in kernels]
    body = hottest(ours or programs, tally)
    if body is not None:
        blocks = scans.get(body.program.number, {})
        own = {index: blocks[index] for index in body.blocks if index in blocks}
        used.loop = describe(body, tally, cycles, own)
    inside = sum(cycles_by_name.get(name, 0.0) for name in kernels)
    steps, bundles = 0, 0.0
    if ours:
        longest = max(ours, key=lambda program: cycles_by_name.get(program.name, 0.0))
        steps, bundles = _steps(longest, tally, issued[longest.number])
    shares = slot_shares(used.slots, used.issued, programs[0].matrix)
    used.numbers = {
        **{f"{unit}_share": part for unit, part in shares.items()},
        "vector_spills": float(spills),
        "kernel_share": min(inside / cycles, 1.0) if cycles else 0.0,
        "steps": float(steps),
        "bundles_per_step": bundles,
    }
    return used


def _steps(program: Program, tally: Tally, issued: int) -> tuple[int, float]:
    """Iterations of the outermost loop that issues most, and bundles in each; else one step."""
    executed = tally.blocks[program.number]
    best, steps = 0, 1
    for body in bodies(program):
        if not body.outermost:
            continue
        blocks = program.blocks[body.header : body.latch + 1]
        inside = sum(
            executed.get(index, 0) * (block.end - block.start)
            for index, block in enumerate(blocks, start=body.header)
        )
        if inside > best:
            best, steps = inside, max(body.iterations(tally), 1)
    return steps, (best or issued) / steps


def _scan(program: Program, tally: Tally) -> dict[int, Scan]:
    """Source lines and spills of the blocks that ran, by index."""
    ran = sorted(index for index, times in tally.blocks[program.number].items() if times)
    places = [(program.blocks[index].start, program.blocks[index].end) for index in ran]
    return dict(zip(ran, read(program.listing, places), strict=True))
