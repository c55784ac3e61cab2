"""What a simulated run meets, told by the names of refs and the steps of the grid.

The interpreter speaks of buffer numbers and vector clocks. Here every buffer gets the name of the
kernel's argument, every copy the grid step at which it was started, and reads of what nobody has
written are noted.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax._src import source_info_util
from jax._src.pallas.mosaic.interpret import race_detection_state, vector_clock
from jax._src.pallas.mosaic.interpret.shared_memory import Semaphore

BEHIND = "the output behind "  # the name of an output in HBM, before that of its block in VMEM
MAX_RACES = 20  # texts of more are of no use to anybody
_LINE = re.compile(r"kernel\.py:(\d+)")
_BLOCK = re.compile(
    r'input "([^"]*)" in iteration (\([^)]*\)).*reading \[(.*)\] but input has shape (.*)\.', re.S
)
_ACCESS = re.compile(
    r"(read|write|access) of \(\d+ \d+ \w+ (\d+)\): \w+ \[(.*)\] but buffer has shape (.*?) ?\.",
    re.S,
)
_REVISIT = re.compile(r"Revisited block .* of output (\d+) in iteration (\([^)]*\))", re.S)
_SLICE = re.compile(r"slice\((\d+), (\d+), \w+\)|(\d+)")


@dataclass
class Found:
    """What a simulated run met, first things first.

    Attributes:
        races: Accesses of one place without an order between them.
        doubts: The same where it was through a reshaped or bitcast ref, of which the part is not
            known.
        unwritten: The first read of what nobody had written.
        revisited: The first block of an output that came back.
        stuck: The wait that nothing can end.
    """

    races: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    unwritten: str = ""
    revisited: str = ""
    stuck: str = ""


@dataclass(frozen=True)
class _Access:
    kind: str  # "read" or "written"
    range: tuple
    clock: Any
    copy: bool
    step: tuple[int, ...]
    line: str
    whole: bool  # what was accessed is a part of the range

    def __str__(self) -> str:
        if self.copy:
            verb = "read" if self.kind == "read" else "written"
            return f"{verb} by the copy that was started at grid step {self.step}{self.line}"
        return f"{self.kind} at grid step {self.step}{self.line}"


class Listener:
    """Names, steps and masks of one run."""

    def __init__(self) -> None:
        self.found = Found()
        self.names: dict[int, str] = {}
        self.copies: dict[int, tuple[int, ...]] = {}  # copy -> the step that started it
        self.accesses: dict[Any, tuple[list[_Access], list[_Access]]] = {}  # reads, writes
        self.unwritten: dict[int, np.ndarray] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.blocks: dict[str, int] = {}  # name of an argument -> its buffer in VMEM
        self.outputs: list[str] = []
        self.step: tuple[int, ...] = ()
        self.started = 0  # copies, in all calls
        self.view = False  # whether what is being accessed is a part of the range that is told
        self.storing = False  # whether it is read only to be written back with a part changed
        self.lock = threading.Lock()

    def record_step(self, token, point, core):
        """The interpreter's own report of a grid step."""
        self.step = tuple(int(i) for i in point)
        return token

    def forget(self) -> None:
        """Every Pallas call has a memory of its own, whose buffers are numbered anew."""
        for known in (self.names, self.copies, self.accesses, self.unwritten, self.blocks):
            known.clear()

    def name(self, key) -> str:
        """What the kernel calls a buffer."""
        return self.names.get(key, "a scratch buffer")

    # -- races

    def access(self, kind: str, thread: tuple, clock, key, range_, source) -> bool:
        """Notes an access; whether it is a race with an earlier one."""
        copy = thread[0] in self.copies
        step = self.copies[thread[0]] if copy else self.step
        new = _Access(kind, range_, clock, copy, step, _line(source), self.view)
        with self.lock:
            reads, writes = self.accesses.setdefault(key, ([], []))
            earlier = list(writes) if kind == "read" else [*writes, *reads]
            (reads if kind == "read" else writes).append(new)
        for old in earlier:
            if _ordered(old.clock, clock):
                continue
            if race_detection_state._ranges_overlap(range_, old.range):
                text = f"{self.name(key[1])}{_rows(range_)} is {new} while it may still be {old}"
                known = self.found.doubts if new.whole or old.whole else self.found.races
                with self.lock:
                    if len(known) < MAX_RACES and text not in known:
                        known.append(text)
                if known is self.found.races:
                    return True
        return False

    @contextlib.contextmanager
    def through(self, views, storing: bool = False) -> Iterator[None]:
        """While something is accessed through these transforms of a range, if there are any."""
        self.view, self.storing = bool(views), storing
        try:
            yield
        finally:
            self.view = self.storing = False

    # -- memory that nobody has written

    def allocated(self, label: tuple[str, bool], answer):
        """Gives a new buffer its name, and a mask if it holds nothing yet."""
        number = int(answer[1])
        name, fresh = label
        self.names[number], self.blocks[name] = name, number
        if fresh and number in self.shapes:
            self.unwritten[number] = np.ones(self.shapes[number], bool)
        return answer

    def reads(self, number: int, range_) -> None:
        """Notes the first read of what nobody has written."""
        mask = self.unwritten.get(number)
        if mask is None or self.found.unwritten or self.storing:
            return
        with contextlib.suppress(IndexError):
            if mask[range_].any():
                self.found.unwritten = (
                    f"{self.name(number)}{_rows(range_)} is read at grid step {self.step} before "
                    "anything was written there"
                )

    def writes(self, number: int, range_, mask=None) -> None:
        """Notes what is written from now on."""
        unwritten = self.unwritten.get(number)
        if unwritten is None:
            return
        with contextlib.suppress(IndexError, ValueError):
            if mask is None:
                unwritten[range_] = False
            else:
                unwritten[range_] &= ~np.asarray(mask, bool)

    def written_back(self, number: int) -> int | None:
        """The buffer in VMEM whose block has now left it, if this store was that.

        The chip has two such buffers by turns, and what the next block finds there is not its own.
        """
        name = self.name(number)
        block = self.blocks.get(name.removeprefix(BEHIND)) if name.startswith(BEHIND) else None
        if block is not None and block in self.unwritten:
            self.unwritten[block][...] = True
        return block

    def revisit(self, error: str) -> None:
        """Notes the first block of an output that came back, of which the interpreter says so."""
        match = _REVISIT.search(error)
        if match and not self.found.revisited:
            number = int(match[1])
            name = self.outputs[number] if number < len(self.outputs) else f"output {number}"
            self.found.revisited = (
                f"a block of {name} comes back at grid step {match[2]}, after others; what it held "
                "is not there any more: put the axes that do not choose the block last in the grid"
            )

    # -- waits

    def waits(self, semaphore: Semaphore, value: int, core: int, source) -> None:
        """Does the copies that a wait needs; raises where none is left that could end it.

        One core runs the kernel: what nobody has started by now, nobody will.
        """
        pending = semaphore.tasks[core]
        while semaphore.count_by_core[core] < value and pending:
            pending.pop()()
        if semaphore.count_by_core[core] < value and semaphore.num_cores == 1:
            self.found.stuck = f"the wait at grid step {self.step}{_line(source)}"
            raise RuntimeError(self.found.stuck)

    # -- exceptions

    def explain(self, error: str) -> str:
        """An out-of-bounds message of the interpreter in words, or as it is."""
        if match := _BLOCK.search(error):
            name, step, place, shape = match.groups()
            return f"the block of `{name}` at grid step {step} is outside: {_outside(place, shape)}"
        if match := _ACCESS.search(error):
            verb, number, place, shape = match.groups()
            verb = {"write": "written", "access": "accessed"}.get(verb, verb)
            where = f"{verb} outside at grid step {self.step}: {_outside(place, shape)}"
            return f"{self.name(int(number))} is {where}"
        return error


def _line(source) -> str:
    """Where in the kernel text, as far as jax knows."""
    if source is None:
        return ""
    match = _LINE.search(source_info_util.summarize(source))
    return f" (line {match[1]})" if match else ""


def _ordered(one, other) -> bool:
    if hasattr(one, "ordered"):  # clocks are objects from jax 0.11 on
        return one.ordered(other)
    return vector_clock.ordered(one, other)


def _rows(range_) -> str:
    """A range as an index, empty for all of it."""
    parts = [
        f"{r.start}:{r.stop}"
        if isinstance(r, slice) and r.stop is not None
        else ":"
        if isinstance(r, slice)
        else str(int(r))
        for r in range_
    ]
    return f"[{', '.join(parts)}]" if any(p != ":" for p in parts) else ""


def _outside(place: str, shape: str) -> str:
    """The first axis on which a range leaves a shape, both as the interpreter prints them."""
    sizes = [int(n) for n in re.findall(r"\d+", shape)]
    ranges = [
        (int(m[1]), int(m[2])) if m[1] else (int(m[3]), int(m[3]) + 1)
        for m in _SLICE.finditer(place)
    ]
    for axis, ((start, stop), size) in enumerate(zip(ranges, sizes, strict=False)):
        if stop > size:
            return f"indices {start} to {stop - 1} of axis {axis}, which has {size}"
    return f"{place} of shape {shape}"
