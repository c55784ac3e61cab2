"""Replays programs, and skips loop periods that are proved to repeat exactly.

A loop is watched at its header. Once the last iterations look periodic, one period is rehearsed on
a copy of the machine with `Affine` register values: each holds how much it grows from period to
period. If the rehearsal ends in the state it began in (registers one step further, flags and
pending DMAs at the same distance in time), then the following periods are the same, as long as
every comparison made on the way comes out the same, and the `Horizon` says for how many that holds.
Those are added at once. Loops inside a rehearsed period are rehearsed and skipped too, with values
that may grow along both, so the work does not multiply with the depth of loops. Skipping is exact:
the result is that of the full replay.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxbench_env.evaluator.timing.machine import WORDS_PER_STEP, Engine, OutOfSteps
from jaxbench_env.evaluator.timing.program import LOST, Program
from jaxbench_env.evaluator.timing.values import UNKNOWN, Affine, Horizon, NotAffine

MIN_GAIN = 4  # periods that a skip must save
MAX_PERIOD_STEPS = 50_000  # steps of work in a period worth rehearsing
MAX_REHEARSALS = 4  # loops in loops that are rehearsed at the same time
MAX_HISTORY = 4096
MAX_ARMED = 4
MAX_CLOCKS = 512  # flags and pending DMAs in a state worth comparing
MAX_MULTIPLE = 4  # periods of equal cost that the full period may span


class _Left(Exception):
    """A rehearsed period left its loop."""


def replay(engine: Engine, program: Program, start: int) -> int:
    """Runs `program` from time `start` (ticks) and returns the time at which it ends.

    Raises:
        OutOfSteps: The step budget is used up; it carries a projected end.
    """
    registers: list[object] = [UNKNOWN] * program.size
    return _run(engine, program, registers, 0, start)


def _run(
    engine: Engine,
    program: Program,
    registers: list[object],
    block: int,
    time: int,
    stop: tuple[int, int] | None = None,
) -> int:
    """The replay loop; with `stop` = (header, arrivals) it ends at that arrival at the header."""
    start, previous = time, block if stop else -1
    blocks, headers, tally = program.blocks, program.headers, engine.tally
    counts = tally.block_counts(program.number)
    watching = engine.rehearsals < MAX_REHEARSALS
    watches: dict[int, _Watch] = {}
    arrivals = -1  # the first arrival is the start of the period
    while block >= 0:
        if block in headers:
            if stop and block == stop[0]:
                arrivals += 1
                if arrivals == stop[1]:
                    return time
                if previous < block:
                    raise _Left
            elif watching:
                if previous >= block and block in watches:
                    time = watches[block].arrive(engine, program, registers, time)
                    if watches[block].endless:
                        return time
                else:
                    watches[block] = _Watch(block, tally.steps, time)
        if engine.steps >= engine.limit:
            raise OutOfSteps(_projection(engine, program, registers, start, time))
        tally.steps += 1
        counts[block] += 1
        code = blocks[block].code or program.compile(block)
        engine.steps += blocks[block].cost
        previous = block
        block, time = code(registers, engine, time)
    if block == LOST:
        engine.lost(program)
    if stop:
        raise _Left
    return time


def _projection(engine: Engine, program: Program, registers: list, start: int, time: int) -> int:
    """End of a program that ran out of steps: linear along its longest counted loop."""
    if engine.rehearsals:
        return time
    text = f"step budget reached in {program.name}"
    if program.counter and not engine.least:
        slot, bound = program.counter
        done = registers[slot]
        if type(done) is int and 0 < done < bound:
            engine.note(f"{text}; extrapolated from {done} of {bound} iterations", uncertain=True)
            return start + (time - start) * bound // done
    engine.note(f"{text}; the rest is not charged", uncertain=True)
    return time


class _Watch:
    """Looks for a repeating pattern at one loop header, from one entry of the loop on."""

    def __init__(self, header: int, steps: int, time: int) -> None:
        self.header = header
        self.endless = False
        self._steps, self._time = steps, time
        self._iterations = 0
        self._forget()

    def _forget(self) -> None:
        self._history: list[tuple] = []
        self._last: dict[tuple, int] = {}
        self._armed: dict[int, tuple[int, int, _Snapshot]] = {}  # due -> period, iterations, state
        self._tries: dict[int, tuple[int, int]] = {}  # period -> next try, failures

    def arrive(self, engine: Engine, program: Program, registers: list, time: int) -> int:
        """One arrival over the back edge; returns the time, later if periods were skipped."""
        self._iterations += 1
        if self._iterations < engine.expanded:
            return time
        if engine.outstanding + len(engine.flags) > MAX_CLOCKS:
            return time
        clocks = engine.clock_state(time)
        signature = (time - self._time, engine.tally.steps - self._steps, hash(clocks))
        self._steps, self._time = engine.tally.steps, time
        history = self._history
        if len(history) >= MAX_HISTORY:
            self._forget()
            return time
        seen = self._last.get(signature)
        self._last[signature] = here = len(history)
        history.append(signature)
        due = self._armed.pop(here, None)
        if due is not None:
            time = self._try(engine, program, registers, time, *due)
        if seen is None or here in self._armed:
            return time
        period = here - seen
        ready, failures = self._tries.get(period, (0, 0))
        # buffers alternate in twos or threes, so the whole state may take several such periods
        due_at = here + period * (1 + failures % MAX_MULTIPLE)
        if here >= ready and len(self._armed) < MAX_ARMED and due_at not in self._armed:
            if self._repeats(here, period):
                self._tries[period] = (due_at + 1, failures)
                self._armed[due_at] = (period, self._iterations, _Snapshot(engine, registers, time))
        return time

    def _repeats(self, here: int, period: int) -> bool:
        history = self._history
        if here + 1 < 2 * period:
            return False
        return all(history[at] == history[at - period] for at in range(here, here - period, -1))

    def _try(
        self,
        engine: Engine,
        program: Program,
        registers: list,
        time: int,
        period: int,
        iterations: int,
        before: _Snapshot,
    ) -> int:
        """Rehearses one period and skips what it proves to repeat."""
        here = len(self._history) - 1
        skipped, passed = None, self._iterations - iterations
        if self._repeats(here, period):
            skipped = _skip(engine, program, registers, time, (self.header, passed), before)
        _, failures = self._tries[period]
        if skipped is None:
            failures += 1
            rounds = failures // MAX_MULTIPLE  # tries of all multiples
            pause = period * 2 ** min(rounds, 20) if rounds else 0
            self._tries[period] = (here + 1 + pause, failures)
            return time
        repetitions, ticks, self.endless = skipped
        self._tries[period] = (0, failures)
        # the mark keeps patterns visible that contain skips
        self._history.append(("skip", period, repetitions, ticks))
        self._armed = {at: one for at, one in self._armed.items() if at > here + 1}
        self._iterations += repetitions * passed
        self._steps, self._time = engine.tally.steps, time + ticks
        return time + ticks


class _Snapshot:
    """Registers, scalar memory and clocks at one arrival at a header."""

    def __init__(self, engine: Engine, registers: list, time: int) -> None:
        engine.steps += (len(registers) + len(engine.mem)) // WORDS_PER_STEP
        self.registers, self.memory = list(registers), dict(engine.mem)
        self.clocks = engine.clock_state(time)
        self.steps = engine.steps


def _skip(
    engine: Engine,
    program: Program,
    registers: list,
    time: int,
    stop: tuple[int, int],
    before: _Snapshot,
) -> tuple[int, int, bool] | None:
    """Skips repetitions of the period since `before`: (number, ticks, endless), or None.

    The period ends at the `stop[1]`-th arrival at header `stop[0]`.
    """
    clocks = engine.clock_state(time)
    if clocks != before.clocks or engine.steps - before.steps > MAX_PERIOD_STEPS:
        return None
    if engine.mem.keys() != before.memory.keys():
        return None
    horizon = Horizon()
    places = list(engine.mem)
    first = _affine(before.registers, registers, horizon)
    words = _affine([before.memory[p] for p in places], [engine.mem[p] for p in places], horizon)
    if first is None or words is None:
        return None
    trial = engine.rehearsal()
    trial.mem = dict(zip(places, words, strict=True))
    trial.limit = min(engine.limit, engine.steps + 2 * MAX_PERIOD_STEPS)
    after = list(first)
    try:
        end = _run(trial, program, after, stop[0], time, stop)
    except (_Left, NotAffine, OutOfSteps):
        return None
    finally:
        engine.steps = trial.steps
    if trial.mem.keys() != engine.mem.keys() or trial.clock_state(end) != clocks:
        return None
    last = [trial.mem[place] for place in places]
    if not (_advanced(first, after, horizon) and _advanced(words, last, horizon)):
        return None
    endless = horizon.repetitions == Horizon.UNBOUNDED
    if endless and engine.rehearsals:
        return None
    if endless:
        engine.note(f"loop without an end in {program.name}; a bound is charged", uncertain=True)
        horizon.repetitions = 0 if engine.least else engine.constants.unknown_trip_count
    repetitions = horizon.repetitions + 1
    if repetitions < MIN_GAIN and not endless:
        return None
    ticks = (end - time) * repetitions
    registers[:] = _moved(first, horizon, repetitions)
    engine.mem = dict(zip(places, _moved(words, horizon, repetitions), strict=True))
    engine.advance(ticks)
    engine.tally.add(trial.tally, repetitions)
    engine.skipped(program, stop[0], time, time + ticks, repetitions, trial.tally)
    for text, times in trial.reasons.items():
        engine.note(text, uncertain=trial.uncertain, times=times * repetitions)
    return repetitions, ticks, endless


def _affine(
    before: Sequence[object], now: Sequence[object], horizon: Horizon
) -> list[object] | None:
    """Values of `now` that grow by what they grew since `before`; None if they are not numbers."""
    result: list[object] = []
    for old, new in zip(before, now, strict=True):
        if old is not new:
            growth = _growth(old, new)
            if growth is None:
                return None
            new = new + Affine(0, {horizon: growth}) if growth else new
        result.append(new)
    return result


def _growth(old: object, new: object) -> int | None:
    """Difference of two numbers, if it is one that no outer loop changes."""
    if type(old) not in (int, Affine) or type(new) not in (int, Affine):
        return 0 if old is new else None
    difference = new - old
    return difference if type(difference) is int else None


def _advanced(first: Sequence[object], after: Sequence[object], horizon: Horizon) -> bool:
    """Whether every value is one step further after the period than before it."""
    return all(
        _growth(old, new) == (old.steps.get(horizon, 0) if isinstance(old, Affine) else 0)
        for old, new in zip(first, after, strict=True)
    )


def _moved(values: Sequence[object], horizon: Horizon, repetitions: int) -> list[object]:
    return [
        value.moved(horizon, repetitions) if isinstance(value, Affine) else value
        for value in values
    ]
