"""Records what happens when during a replay; off unless asked for.

A `Recorder` makes the replay's engine keep events beside its tallies: which block ran when, each
wait, each transfer, each call, and each loop period that was skipped as exact repetition. Recording
sits in a subclass of the engine and around the compiled blocks, so that a replay without it is the
same as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxbench_env.evaluator.timing.listing import Instruction
from jaxbench_env.evaluator.timing.machine import Engine, Tally
from jaxbench_env.evaluator.timing.program import Program

MAX_EVENTS = 50_000  # in all, so that a trace of them stays below 20 MB
MAX_PER_PROGRAM = 20_000


@dataclass(frozen=True, slots=True)
class Ran:
    """One execution of a basic block. Times here and below are in ticks."""

    program: Program
    block: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Waited:
    """A wait for a DMA, from the arrival at it to its end."""

    program: Program
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A transfer.

    Attributes:
        program: The program that issued it.
        instruction: The instruction that issued it.
        issued: When.
        start: When the memory began to move its bytes; `issued` between on-chip memories.
        end: When the memory was free again.
        done: When its flag was raised.
        size: Bytes.
        sides: How many of its ends are in HBM.
    """

    program: Program
    instruction: Instruction
    issued: int
    start: int
    end: int
    done: int
    size: int
    sides: int


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a program."""

    name: str
    depth: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """Loop periods that were not run because they repeat exactly.

    Attributes:
        program: The program with the loop.
        header: Index of the loop's first block.
        start: When the first of them begins.
        end: When the last one ends.
        repetitions: Number of periods.
        period: What happens in one period.
    """

    program: Program
    header: int
    start: int
    end: int
    repetitions: int
    period: Tally


@dataclass
class Recorder:
    """Events of one replay, in the order in which they ended.

    Attributes:
        iterations: Iterations of each loop that are run before any is skipped. Recognising a
            repetition takes about four, so that fewer are not to be had.
        events: What happened.
        top: The top-level program, when the replay is over.
        end: When everything was over, in ticks.
        left_out: Events that were too many, by name of the program.
    """

    iterations: int = 8
    events: list[Ran | Waited | Moved | Called | Skipped] = field(default_factory=list)
    top: Program | None = None
    end: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    _kept: Counter[int] = field(default_factory=Counter)

    def add(self, event: Ran | Waited | Moved | Skipped) -> None:
        """Keeps an event while there is room."""
        number = event.program.number
        if len(self.events) >= MAX_EVENTS or self._kept[number] >= MAX_PER_PROGRAM:
            self.left_out[event.program.name] += 1
            return
        self._kept[number] += 1
        self.events.append(event)

    def watch(self, programs: Sequence[Program]) -> None:
        """Makes the blocks of programs report when they run."""
        for program in programs:
            program.compile = _reporting(program)


def _reporting(program: Program):
    plain = program.compile

    def compile_block(index: int):
        code = plain(index)

        def block(registers, engine, time):
            following = code(registers, engine, time)
            engine.ran(program, index, time, following[1])
            return following

        program.blocks[index].code = block
        return block

    return compile_block


class Recording(Engine):
    """An engine that tells a recorder what it does."""

    def __init__(self, *args: object, recorder: Recorder) -> None:
        """Takes the arguments of `Engine`."""
        super().__init__(*args)
        self.recorder: Recorder | None = recorder
        self.expanded = recorder.iterations

    def rehearsal(self) -> Engine:
        """A copy to try out a loop period on; what it does has not happened."""
        other = super().rehearsal()
        other.recorder, other.expanded = None, 0
        return other

    def ran(self, program: Program, block: int, start: int, end: int) -> None:
        """A block was run."""
        if self.recorder:
            self.recorder.add(Ran(program, block, start, end))

    def wait(
        self, time: int, flag: object, amount: object, program: Program, block: int = 0
    ) -> int:
        """As `Engine.wait`."""
        until = super().wait(time, flag, amount, program, block)
        if self.recorder and until > time:
            self.recorder.add(Waited(program, time, until))
        return until

    def dma(
        self,
        time: int,
        granules: object,
        flag: object,
        reads: int,
        writes: int,
        run: object,
        window: int,
        program: Program,
        transfer: int = 0,
    ) -> None:
        """As `Engine.dma`."""
        free = self.hbm_free
        super().dma(time, granules, flag, reads, writes, run, window, program, transfer)
        if self.recorder:
            number = flag if type(flag) is int and flag in self.flags else -1
            done, moved = self.flags[number].pending[-1]
            sides = reads + writes
            start, end = (max(free, time), self.hbm_free) if sides else (time, done)
            size = moved * 32
            one = program.transfers[transfer]
            self.recorder.add(Moved(program, one, time, start, end, done, size, sides))

    def call(self, name: str, arguments: dict[int, object], time: int) -> int:
        """As `Engine.call`."""
        end = super().call(name, arguments, time)
        if self.recorder and len(self.recorder.events) < MAX_EVENTS:
            self.recorder.events.append(Called(name, self.depth, time, end))
        return end

    def skipped(
        self, program: Program, header: int, start: int, end: int, repetitions: int, period: Tally
    ) -> None:
        """As `Engine.skipped`."""
        if self.recorder:
            self.recorder.add(Skipped(program, header, start, end, repetitions, period))
