"""The machine that programs are replayed on: scalar memory, synchronisation flags, DMAs, HBM.

Vector and matrix units do not appear here: their work is one cycle a bundle, as scheduled. What is
left to decide is how long each wait lasts. HBM is one queue with a bandwidth and a latency; a DMA
occupies it for its bytes (or its number of contiguous runs, if that takes longer) and raises its
flag a latency later.
"""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from jaxbench_env.evaluator.timing.constants import Constants
from jaxbench_env.evaluator.timing.lowering import TICKS
from jaxbench_env.evaluator.timing.program import LEAVE, LOST, Program
from jaxbench_env.evaluator.timing.values import HALF, UNKNOWN, WORD, NotAffine

MAX_DEPTH = 8  # programs that call programs; libtpu nests two levels
MAX_REASONS = 40
MAX_FLAGS = 1 << 16  # far more than the hardware has


WORDS_PER_STEP = 64  # words of memory handled at the price of one step


def _word(value: int | None) -> object:
    """A fed 32-bit word as a signed number; None is unknown."""
    return UNKNOWN if value is None else (int(value) + HALF & WORD) - HALF


class OutOfSteps(Exception):
    """The step budget is used up; carries the time projected for the program."""

    def __init__(self, time: int) -> None:
        """Stops a replay at a projected time."""
        super().__init__(time)
        self.time = time


class Tally:
    """Everything that is only counted, so that a repeated loop period can be added many times."""

    def __init__(self) -> None:
        """Starts with nothing counted."""
        self.steps = self.hbm_read = self.hbm_written = self.dmas = self.wait = 0
        self.blocks: dict[int, defaultdict[int, int]] = {}  # executions by program and block
        self.waits: dict[tuple[int, int], int] = {}  # waiting ticks by program and block
        self.calls: dict[str, list[int]] = {}  # program name -> calls, ticks, waiting ticks, bytes

    @property
    def hbm_bytes(self) -> int:
        """Bytes read from and written to HBM."""
        return self.hbm_read + self.hbm_written

    def block_counts(self, program: int) -> defaultdict[int, int]:
        """Executions of each block of a program."""
        return self.blocks.setdefault(program, defaultdict(int))

    def add(self, other: Tally, times: int) -> None:
        """Adds `other` `times` times."""
        self.steps += other.steps * times
        self.hbm_read += other.hbm_read * times
        self.hbm_written += other.hbm_written * times
        self.dmas += other.dmas * times
        self.wait += other.wait * times
        for number, counts in other.blocks.items():
            mine = self.block_counts(number)
            for index, count in counts.items():
                mine[index] += count * times
        for place, ticks in other.waits.items():
            self.waits[place] = self.waits.get(place, 0) + ticks * times
        for name, record in other.calls.items():
            mine = self.calls.setdefault(name, [0, 0, 0, 0])
            for index, count in enumerate(record):
                mine[index] += count * times


class Flag:
    """A synchronisation flag: its value and the DMAs that will still raise it, in issue order."""

    __slots__ = ("value", "pending")

    def __init__(self) -> None:
        """Starts at 0 with nothing pending."""
        self.value = 0
        self.pending: deque[tuple[int, int]] = deque()  # time of completion, amount


class Engine:
    """State of the machine while an executable is replayed. Times are in ticks.

    Args:
        constants: The machine model.
        feeds: Values of scalar operands: (program name, operand index) -> 32-bit words.
        max_steps: Work that may be done, about one step a basic block.
        replay: Runs a program: (engine, program, start time) -> end time.
        least: Whether what cannot be known is taken to cost nothing, for a bound from below.

    Attributes:
        programs: A `Program`, or the estimated ticks of one call, by name.
        reasons: What was uncertain or estimated, with the number of times.
        uncertain: Whether the replay could not follow everything.
        expanded: Iterations of a loop that are run before any is skipped.
        rehearsals: Loop periods, one in the other, that this copy tries out (`steady.py`).
    """

    def __init__(
        self,
        constants: Constants,
        feeds: Mapping[tuple[str, int], Sequence[int]],
        max_steps: int,
        replay: Callable[[Engine, Program, int], int],
        least: bool = False,
    ) -> None:
        """Starts with empty memory, all flags down and HBM idle."""
        self.constants, self.feeds, self.replay = constants, feeds, replay
        self.least = least
        self.limit = max_steps
        self.steps = 0
        self.programs: dict[str, Program | int] = {}
        self.mem: dict[int, object] = {}
        self.flags: dict[int, Flag] = {}
        self.hbm_free = 0
        self.outstanding = 0  # completions that no wait has used yet
        self.tally = Tally()
        self.reasons: dict[str, int] = {}
        self.uncertain = False
        self.waits_elsewhere = False
        self.expanded = 0
        self.rehearsals = 0
        self.arguments: dict[int, object] = {}
        self.depth = 0
        self.running = ""  # the name that was called, which may share another one's schedule
        self.unknown_exits: dict[tuple[int, int], int] = {}
        self._occupancy: dict[tuple[int, int, int, int], int] = {}
        self._latency = round(constants.dma_latency * TICKS)
        self._local_latency = round(constants.dma_latency * constants.local_latency_share * TICKS)

    def rehearsal(self) -> Engine:
        """A copy to try out a loop period on: same state, empty tally, reasons thrown away."""
        other = copy.copy(self)
        other.mem = dict(self.mem)
        other.flags = {}
        for number, flag in self.flags.items():
            twin = other.flags[number] = Flag()
            twin.value, twin.pending = flag.value, deque(flag.pending)
        other.tally, other.reasons, other.rehearsals = Tally(), {}, self.rehearsals + 1
        other.arguments = dict(self.arguments)
        other.unknown_exits = dict(self.unknown_exits)
        return other

    def clock_state(self, time: int) -> tuple:
        """Flags and HBM relative to `time`: equal states have equal futures."""
        flags = [
            (number, flag.value, *((max(done - time, 0), more) for done, more in flag.pending))
            for number, flag in self.flags.items()
            if flag.value or flag.pending
        ]
        return max(self.hbm_free - time, 0), *sorted(flags)

    def advance(self, ticks: int) -> None:
        """Moves all pending completions `ticks` into the future."""
        self.hbm_free += ticks
        for flag in self.flags.values():
            flag.pending = deque((done + ticks, amount) for done, amount in flag.pending)

    # ---- reports

    def note(self, text: str, *, uncertain: bool, times: int = 1) -> None:
        """Records a reason."""
        self.uncertain = self.uncertain or uncertain
        if text in self.reasons or len(self.reasons) < MAX_REASONS:
            self.reasons[text] = self.reasons.get(text, 0) + times

    def doubtful(self, remark: int, program: Program) -> bool:
        """An effect under a predicate that cannot be evaluated: whether it is charged."""
        op = program.remarks[remark]
        self.note(f"{op} under an unknown condition in {program.name}; charged", uncertain=True)
        # what may have changed scalar memory leaves it unknown in either case
        return not self.least or op.startswith("sst") or "smem" in op

    def unmodelled(self, remark: int, program: Program) -> None:
        """An operation that steers time but is not part of the model."""
        self.note(f"{program.remarks[remark]} in {program.name} is not modelled", uncertain=True)

    def sparse_core_wait(self) -> None:
        """A wait for the SparseCore; its work is estimated as a whole from the HLO."""
        self.waits_elsewhere = True

    # ---- scalar memory

    def store(self, address: object, value: object) -> None:
        """Stores a word. A store to an unknown place makes all of scalar memory unknown."""
        if type(address) is int:
            self.mem[address] = value
        elif address is UNKNOWN:
            self._forget_all()
        else:
            raise NotAffine

    def _forget_all(self) -> None:
        self.steps += len(self.mem) // WORDS_PER_STEP
        for address in self.mem:
            self.mem[address] = UNKNOWN

    def fill(self, start: object, granules: object, operand: int) -> None:
        """A DMA into scalar memory: fed values, or else unknown ones."""
        if type(start) is not int or type(granules) is not int:
            self._plain(start, granules)
            self._forget_all()
            return
        words = granules * 8
        self.steps += min(max(words, 0), len(self.mem)) // WORDS_PER_STEP
        values = self.feeds.get((self.running, operand))
        if values is not None and len(values) <= words:  # a copy of the whole operand, not a part
            self.steps += len(values) // WORDS_PER_STEP
            for index, value in enumerate(values):
                self.mem[start + index] = _word(value)
            start, words = start + len(values), words - len(values)
        if words < len(self.mem):
            for address in range(start, start + words):
                if address in self.mem:
                    self.mem[address] = UNKNOWN
        else:
            for address in self.mem:
                if start <= address < start + words:
                    self.mem[address] = UNKNOWN

    def operand(self, index: int, passed: object) -> object:
        """A scalar operand that is passed by value."""
        values = self.feeds.get((self.running, index))
        return passed if values is None or len(values) != 1 else _word(values[0])

    # ---- DMAs and flags

    @staticmethod
    def _plain(*values: object) -> None:
        """Refuses values that change from one loop period to the next."""
        for value in values:
            if value is not UNKNOWN and type(value) is not int:
                raise NotAffine

    def _flag(self, number: object, program: Program) -> Flag:
        self._plain(number)
        if number is UNKNOWN:
            self.note(f"unknown synchronisation flag in {program.name}", uncertain=True)
            number = -1
        elif len(self.flags) >= MAX_FLAGS and number not in self.flags:
            self.note(f"too many synchronisation flags in {program.name}", uncertain=True)
            number = -1
        flag = self.flags.get(number)
        if flag is None:
            flag = self.flags[number] = Flag()
        return flag

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
        """Issues a transfer of 32-byte granules; `reads` and `writes` say which end is in HBM.

        `transfer` is the index of the instruction in the program's `transfers`, for those who
        record what happens.
        """
        self._plain(granules, run)
        target = self._flag(flag, program)
        if granules is UNKNOWN or granules < 0:
            self.note(
                f"DMA of unknown size in {program.name}; charged as a whole window", uncertain=True
            )
            granules = 0 if self.least else (window or self.constants.unknown_dma_bytes) // 32
        size = granules * 32
        self.tally.dmas += 1
        if reads or writes:
            self.tally.hbm_read += size * reads
            self.tally.hbm_written += size * writes
            run = run if type(run) is int and run > 0 else 0
            self.hbm_free = max(self.hbm_free, time) + self._hbm_ticks(size, reads, writes, run)
            done = self.hbm_free + self._latency
        else:
            speed = self.constants.local_bandwidth_ratio * self.constants.hbm_bytes_per_cycle
            done = time + self._local_latency + round(size / speed * TICKS)
        target.pending.append((done, granules))
        self.outstanding += 1

    def _hbm_ticks(self, size: int, reads: int, writes: int, run: int) -> int:
        key = (size, reads, writes, run)
        ticks = self._occupancy.get(key)
        if ticks is None:
            k = self.constants
            cycles = max(size * (reads + writes) / k.hbm_bytes_per_cycle, k.dma_min_cycles)
            if run:
                cycles = max(cycles, size / run * k.chunk_cycles)
            ticks = round(cycles * TICKS) if size else 0
            if len(self._occupancy) < 4096:
                self._occupancy[key] = ticks
        return ticks

    def wait(
        self, time: int, flag: object, amount: object, program: Program, block: int = 0
    ) -> int:
        """Time at which the flag has reached `amount`; `block` is where the program waits."""
        self._plain(amount)
        target = self._flag(flag, program)
        if amount is UNKNOWN:
            self.note(f"wait for an unknown amount in {program.name}", uncertain=True)
            pending_amount = 0 if self.least else sum(more for _, more in target.pending)
            amount = target.value + pending_amount
        until, value, pending = time, target.value, target.pending
        while value < amount and pending:
            done, more = pending.popleft()
            self.outstanding -= 1
            value += more
            until = max(until, done)
        if value < amount:
            self.note(
                f"wait in {program.name} for something that nothing replayed signals",
                uncertain=True,
            )
            value = amount
            until = max(until, time if self.least else time + self._latency)
        target.value = value
        if until > time:
            self.tally.wait += until - time
            place = program.number, block
            self.tally.waits[place] = self.tally.waits.get(place, 0) + until - time
        return until

    def add(self, flag: object, amount: object, program: Program) -> None:
        """Adds to a flag."""
        self._plain(amount)
        target = self._flag(flag, program)
        if amount is UNKNOWN:
            self.note(f"unknown amount signalled in {program.name}", uncertain=True)
        else:
            target.value += amount

    def reset(self, flag: object, value: object, program: Program) -> None:
        """Turns a flag on or off (value 0 at the start of a kernel); either way it reads 0."""
        self._plain(value)
        target = self._flag(flag, program)
        if type(value) is int and value == 0:
            target.value = 0

    # ---- control flow

    def skipped(
        self, program: Program, header: int, start: int, end: int, repetitions: int, period: Tally
    ) -> None:
        """Told of loop periods that were not run; only `record.py` listens."""

    def unknown_branch(self, index: int, program: Program) -> int:
        """Successor of a block whose branch depends on something unknown.

        A branch over vector work only is never taken: the work is charged in full, which bounds the
        time from above. Any other makes the result uncertain. Forward branches fall through and
        backward ones are taken, so the guarded work and the loop body are charged, but after
        `unknown_trip_count` times the other way is taken once, which ends loops.
        """
        block = program.blocks[index]
        if program.only_vector_work(index):
            self.note(
                f"conditional vector work in {program.name} is charged in full", uncertain=False
            )
            return block.taken if self.least and block.taken >= 0 else block.falls
        if self.rehearsals:
            raise NotAffine
        usual, other = block.falls, block.taken
        if block.taken <= index and block.taken != LOST:
            usual, other = other, usual
            text = f"trip count unknown in {program.name}; a bound is charged"
        else:
            text = f"branch on an unknown value in {program.name}"
        self.note(text, uncertain=True)
        key = (program.number, index)
        self.unknown_exits[key] = self.unknown_exits.get(key, 0) + 1
        if self.least or self.unknown_exits[key] >= self.constants.unknown_trip_count:
            self.unknown_exits[key] = 0
            return other
        return usual

    def call(self, name: str, arguments: dict[int, object], time: int) -> int:
        """Runs a program and returns the time at which it ends."""
        program = self.programs.get(name)
        if program is None or self.depth >= MAX_DEPTH:
            self.note(f"no schedule and no estimate for {name[:80]}", uncertain=True)
            program = self._latency
        waited, moved = self.tally.wait, self.tally.hbm_bytes
        if type(program) is int:
            end = time + program
        else:
            end = self._run(name, program, arguments, time)
        record = self.tally.calls.setdefault(name, [0, 0, 0, 0])
        record[0] += 1
        record[1] += end - time
        record[2] += self.tally.wait - waited
        record[3] += self.tally.hbm_bytes - moved
        return end

    def _run(self, name: str, program: Program, arguments: dict[int, object], time: int) -> int:
        saved, limit, caller = self.arguments, self.limit, self.running
        self.arguments, self.depth, self.running = arguments, self.depth + 1, name
        if not self.rehearsals:
            # one program may use half of what is left, so that the others still get a turn
            self.limit = self.steps + (limit - self.steps) // 2
        try:
            end = self.replay(self, program, time)
        except OutOfSteps as stopped:
            if self.rehearsals:
                raise NotAffine from None
            end = stopped.time
            self.programs[name] = end - time  # later calls take as long
            self.hbm_free = max(self.hbm_free, end)
        finally:
            self.arguments, self.limit, self.running = saved, limit, caller
            self.depth -= 1
        return end

    def lost(self, program: Program) -> int:
        """A branch to a place that the listing does not define ends the program."""
        self.note(f"branch without a known target in {program.name}", uncertain=True)
        return LEAVE
