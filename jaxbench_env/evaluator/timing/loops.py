"""Where the time goes: the loops of the replayed programs, and what fills the hottest one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxbench_env.evaluator.timing.constants import MatrixUnits
from jaxbench_env.evaluator.timing.listing import SLOT_CLASSES
from jaxbench_env.evaluator.timing.lowering import TICKS
from jaxbench_env.evaluator.timing.machine import Tally
from jaxbench_env.evaluator.timing.program import Program
from jaxbench_env.evaluator.timing.scan import Scan

#: Slots of one bundle by unit: the most that bundles of libtpu's v6e listings fill. Transcendental
#: and cross-lane operations take two, one to push the operand and one to pop the result.
CAPACITY = {"vpu": 4, "xlu": 4, "eup": 2, "load": 3, "store": 2}
UNITS = ("mxu", *CAPACITY)
MATMULS = ("matmul", "matmul_f32")
MAX_LINES = 3
_UNIT_OF = {**{unit: unit for unit in CAPACITY}, **dict.fromkeys(MATMULS, "mxu")}
WAITS = "hbm"  # what bounds a loop that mostly waits
NOTHING = "latency"  # what bounds a loop in which no unit is busy
BUSY = 0.5


@dataclass(frozen=True)
class Loop:
    """The loop in which a run spends most time, without the loops inside it.

    Attributes:
        program: HLO name of the program it belongs to.
        share: Its part of all cycles, waits included.
        iterations: How often its body ran.
        bundles: Bundles issued in one iteration (mean).
        wait_share: Part of its own cycles that waits for DMAs.
        slots: By unit of `UNITS`, the part of the slots of its bundles that are filled, or for
            "mxu" the part of the matrix units' time in its bundles that multiplications take.
        spills: Vector registers stored to and loaded from spill slots in one iteration (mean).
        spill_share: These as a part of all its vector loads and stores.
        bound: What limits it: "hbm" (it waits more than half of the time), else the fullest unit
            if that is at least half full, else "latency" (operations wait for one another).
        lines: Up to three lines of the kernel text that most of its instructions come from, by
            their number; empty where the compiler does not say.
        unit_lines: By unit, the line that most of its instructions in this loop come from.
    """

    program: str
    share: float
    iterations: int
    bundles: float
    wait_share: float
    slots: dict[str, float]
    spills: float = 0.0
    spill_share: float = 0.0
    bound: str = NOTHING
    lines: tuple[int, ...] = ()
    unit_lines: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Loop:
        """Rebuilds a loop from `dataclasses.asdict`, also after a trip through JSON."""
        return cls(**{**record, "lines": tuple(record["lines"])})


@dataclass
class Body:
    """The blocks of a loop that belong to no loop inside it.

    Attributes:
        program: The program.
        header: Index of its first block.
        latch: Index of the last block that goes back to the header.
        blocks: Indices of its own blocks.
        outermost: Whether no other loop holds it.
    """

    program: Program
    header: int
    latch: int
    blocks: list[int] = field(default_factory=list)
    outermost: bool = True

    def iterations(self, tally: Tally) -> int:
        """How often the branch back to its header was reached."""
        counts = tally.blocks.get(self.program.number, {})
        blocks = self.program.blocks
        return sum(
            counts.get(index, 0)
            for index in range(self.header, self.latch + 1)
            if blocks[index].taken == self.header
        )

    def issued(self, tally: Tally) -> int:
        """Bundles issued in its own blocks."""
        counts = tally.blocks.get(self.program.number, {})
        blocks = self.program.blocks
        return sum(counts.get(i, 0) * (blocks[i].end - blocks[i].start) for i in self.blocks)

    def busy(self, tally: Tally) -> float:
        """Cycles of its own blocks without waits for transfers: at least the bundles issued."""
        counts = tally.blocks.get(self.program.number, {})
        blocks = self.program.blocks
        return sum(counts.get(i, 0) * self.program.cycles(blocks[i]) for i in self.blocks)

    def waited(self, tally: Tally) -> float:
        """Cycles that its own blocks waited."""
        number = self.program.number
        return sum(tally.waits.get((number, index), 0) for index in self.blocks) / TICKS


def bodies(program: Program) -> list[Body]:
    """The loops of a program, outer ones first. Listings hold the blocks of a loop together."""
    latches: dict[int, int] = {}
    for index, block in enumerate(program.blocks):
        if 0 <= block.taken <= index:
            latches[block.taken] = index
    found = [Body(program, header, latches[header]) for header in sorted(latches)]
    open_: list[Body] = []
    following = iter([*found, None])
    coming = next(following)
    for index in range(len(program.blocks)):
        while open_ and open_[-1].latch < index:
            open_.pop()
        if coming is not None and coming.header == index:
            coming.outermost = not open_
            open_.append(coming)
            coming = next(following)
        if open_:
            open_[-1].blocks.append(index)
    return found


def slot_shares(
    counts: Mapping[str, float], bundles: float, matrix: MatrixUnits
) -> dict[str, float]:
    """Use of the units from instructions by slot class and the number of bundles, 0 to 1."""
    if not bundles:
        return dict.fromkeys(UNITS, 0.0)
    shares = {"mxu": matrix.busy(*(counts.get(name, 0) for name in MATMULS)) / bundles}
    shares |= {unit: counts.get(unit, 0) / (slots * bundles) for unit, slots in CAPACITY.items()}
    return {unit: min(share, 1.0) for unit, share in shares.items()}


def slot_counts(program: Program, counts: Mapping[int, int], blocks: Sequence[int]) -> Counter[str]:
    """Instructions executed in some blocks, by slot class; `counts` are executions by block."""
    total: Counter[str] = Counter()
    for index in blocks:
        times, block = counts.get(index, 0), program.blocks[index]
        if times:
            slots = program.listing.histogram(block.start, block.end)
            for name, number in zip(SLOT_CLASSES, slots, strict=True):
                total[name] += times * number
    return total


def hottest(programs: Sequence[Program], tally: Tally) -> Body | None:
    """The loop with most time in its own blocks."""
    found = [body for program in programs for body in bodies(program)]
    found = [body for body in found if body.issued(tally)]
    return max(found, key=lambda body: body.busy(tally) + body.waited(tally), default=None)


def describe(body: Body, tally: Tally, cycles: float, scans: Mapping[int, Scan]) -> Loop:
    """What there is to say about a loop.

    Args:
        body: The loop.
        tally: What was executed.
        cycles: Cycles of the whole run.
        scans: Source lines and spills of its own blocks, by index.
    """
    issued, busy, waited = body.issued(tally), body.busy(tally), body.waited(tally)
    iterations = max(body.iterations(tally), 1)
    executed = tally.blocks[body.program.number]
    counts = slot_counts(body.program, executed, body.blocks)
    shares = slot_shares(counts, issued, body.program.matrix)
    spills = sum(executed.get(index, 0) * scan.spills for index, scan in scans.items())
    lines: Counter[int] = Counter()
    by_unit: dict[str, Counter[int]] = defaultdict(Counter)
    for index, scan in scans.items():
        for (name, line), number in scan.lines.items():
            weight = number * executed.get(index, 0)
            lines[line] += weight
            by_unit[_UNIT_OF.get(name, "")][line] += weight
    wait_share = waited / (busy + waited) if busy else 0.0
    fullest = max(UNITS, key=lambda unit: shares[unit])
    bound = fullest if shares[fullest] >= BUSY else NOTHING
    return Loop(
        program=body.program.name,
        share=min((busy + waited) / cycles, 1.0) if cycles else 0.0,
        iterations=iterations,
        bundles=issued / iterations,
        wait_share=wait_share,
        slots=shares,
        spills=spills / iterations,
        spill_share=min(spills / max(counts["load"] + counts["store"], 1), 1.0),
        bound=WAITS if wait_share > 0.5 else bound,
        lines=tuple(_most(lines, MAX_LINES)),
        unit_lines={unit: _most(by_unit[unit], 1)[0] for unit in UNITS if by_unit[unit]},
    )


def _most(lines: Counter[int], number: int) -> list[int]:
    return sorted(lines, key=lambda line: (-lines[line], line))[:number]
