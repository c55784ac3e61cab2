"""Which parts of the arrays of a Pallas call its index maps and copies reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxbench_env.evaluator.judge import scalars
from jaxbench_env.evaluator.judge.mosaic import Access
from jaxbench_env.evaluator.judge.program import PallasCall, Program

MAX_CELLS = 1 << 24
MAX_CELLS_PER_BOX = 1 << 12


@dataclass(frozen=True)
class Cover:
    """How much of one array is reached.

    Attributes:
        name: Which array of which call, for people.
        write: Whether it is written; else it is read.
        share: Share of the array that is reached, 0 to 1; None where that could not be told.
        hole: The first element that is not reached, by axis.
        block: Extents of the blocks that the search went by.
        steps: Grid steps of the call.
        aliased: Whether what is not written is an operand's content.
    """

    name: str
    write: bool
    share: float | None
    hole: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    steps: int = 1
    aliased: bool = False

    def describe(self) -> str:
        """The hole as a sentence's part."""
        verb = "writes" if self.write else "reads"
        return (
            f"{self.name}: it {verb} {self.share:.1%} of the array in {self.steps:,} grid steps; "
            f"the block of {'x'.join(map(str, self.block))} at {list(self.hole)} is left out"
        )


def covers(program: Program) -> list[Cover]:
    """Coverage of every array that the Pallas calls of a program read or write.

    Operands that are one array, passed several times, count together.
    """
    found, seen = [], set()
    for number, call in enumerate(program.calls, start=1):
        if call.kernel is None or id(call.kernel) in seen:
            continue
        seen.add(id(call.kernel))
        found += _covers(f"Pallas call {number}" if len(program.calls) > 1 else "the kernel", call)
    return found


def _covers(name: str, call: PallasCall) -> list[Cover]:
    kernel = call.kernel
    operands = kernel.operands
    steps = math.prod(kernel.grid)
    groups: dict[tuple[object, bool], list[int]] = {}
    for place in range(len(call.shapes)):
        write = place >= operands
        same = place if write else call.operands[place]
        groups.setdefault((same, write), []).append(place)
    found = []
    for (_, write), places in groups.items():
        accesses = [a for a in kernel.accesses if a.argument in places and a.write == write]
        shape = call.shapes[places[0]]
        what = f"output {places[0] - operands}" if write else f"input {places[0]}"
        share, hole, block = covered(shape, accesses)
        aliased = write and places[0] - operands in call.aliased
        found.append(Cover(f"{what} of {name}", write, share, hole, block, steps, aliased))
    return found


def covered(
    shape: tuple[int, ...], accesses: Sequence[Access]
) -> tuple[float | None, tuple[int, ...], tuple[int, ...]]:
    """Share of an array that boxes cover, the first element they do not, and the cells' extents.

    The share is None where a box is not known or the search would cost too much.
    """
    known = [a for a in accesses if a.starts is not None and len(a.starts) == len(shape)]
    share, hole, cell = _covered(shape, known)
    if share != 1 and len(known) < len(accesses):
        return None, (), ()
    return share, hole, cell


def _covered(shape, accesses):
    if not shape or math.prod(shape) == 0:
        return 1.0, (), ()
    if not accesses:
        return 0.0, (0,) * len(shape), shape
    cell = [
        int(np.gcd.reduce([n for a in accesses for n in (a.sizes[axis], _divisor(a.starts[axis]))]))
        for axis in range(len(shape))
    ]
    cells = tuple(-(-extent // size) for extent, size in zip(shape, cell, strict=True))
    if math.prod(cells) > MAX_CELLS:
        return None, (), ()
    reached = np.zeros(math.prod(cells), bool)
    for access in accesses:
        if not _mark(reached, cells, cell, access):
            return None, (), ()
    if reached.all():
        return 1.0, (), tuple(cell)
    first = np.unravel_index(int(np.argmin(reached)), cells)
    hole = tuple(int(place) * size for place, size in zip(first, cell, strict=True))
    return float(reached.mean()), hole, tuple(cell)


def _divisor(starts: np.ndarray) -> int:
    """The greatest common divisor of all starts; 0 if all are 0."""
    return int(np.gcd.reduce(starts, axis=None))


def _mark(reached, cells, cell, access: Access) -> bool:
    """Marks the cells of an access; False if that would cost too much."""
    counts = [size // step for size, step in zip(access.sizes, cell, strict=True)]
    if math.prod(counts) > MAX_CELLS_PER_BOX:
        # a box that spans many cells along an axis where others are fine
        counts_are_whole = all(c >= n for c, n in zip(counts, cells, strict=True))
        if counts_are_whole and all((s == 0).all() for s in access.starts) and access.mask is None:
            reached[:] = True
            return True
        return False
    known = [*access.starts, *([] if access.mask is None else [access.mask])]
    if not scalars.affordable(*known):
        return False
    known = scalars.aligned(*known)
    starts = [s // step for s, step in zip(known, cell, strict=False)]
    size = math.prod(np.broadcast_shapes(*(s.shape for s in known)))
    if size * math.prod(counts) > MAX_CELLS:
        return False
    for offset in np.ndindex(*counts):
        flat, inside = np.zeros((), np.int64), np.ones((), bool)
        for start, more, extent in zip(starts, offset, cells, strict=True):
            place = start + more
            inside = inside & (place >= 0) & (place < extent)
            flat = flat * extent + place
        if access.mask is not None:
            inside = inside & (known[-1] != 0)
        flat, inside = np.broadcast_arrays(flat, inside)
        reached[flat[inside]] = True
    return True
