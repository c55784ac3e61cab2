"""A recorded replay as a trace for Perfetto or chrome://tracing (Trace Event Format, JSON).

Two processes: "TensorCore" with the programs by name, the iterations of their loops, the basic
blocks, the waits, and as counters how full the slots of each unit are; "HBM and DMAs" with the
transfers, once as they occupy the memory and once from issue to completion. Times are microseconds.

Loop periods that were skipped as exact repetition are one slice, "x N repeated", whose arguments
are those of all of them together: the sums over a trace are those of the whole run.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from jaxbench_env.evaluator.timing.loops import UNITS, Body, bodies, slot_counts, slot_shares
from jaxbench_env.evaluator.timing.lowering import TICKS
from jaxbench_env.evaluator.timing.predict import safe_name
from jaxbench_env.evaluator.timing.program import Program
from jaxbench_env.evaluator.timing.record import Called, Moved, Ran, Recorder, Skipped, Waited
from jaxbench_env.evaluator.timing.scan import read

CORE, HBM = 1, 2  # processes
PROGRAMS, LOOPS, BLOCKS, WAITS, REST = 11, 12, 13, 14, 15  # tracks of the core
AGAIN, BUS, LANES = (
    19,
    20,
    21,
)  # tracks of the memory; transfers in flight take as many as they need
_TRACKS = {
    PROGRAMS: "programs",
    LOOPS: "loop iterations",
    BLOCKS: "basic blocks",
    WAITS: "waits for DMAs",
    REST: "not shown",
}
MAX_DEPTH = 20
_CLASSES = ("load", "store", "vpu", "xlu", "eup", "mxu", "matmul", "matmul_f32")
_LABELS = {"mxu": "MXU", "vpu": "VPU", "xlu": "XLU", "eup": "EUP", "load": "load", "store": "store"}

Event = dict[str, Any]
Shares = dict[str, float]
NOTHING: Shares = dict.fromkeys(UNITS, 0.0)


def chrome_trace(recorder: Recorder, clock_hz: float, title: str) -> bytes:
    """The trace, gzipped JSON.

    Args:
        recorder: What a finished replay recorded.
        clock_hz: Core clock, as the data leave it.
        title: What was replayed.
    """
    document = {
        "traceEvents": _Writer(recorder, clock_hz).events(),
        "displayTimeUnit": "ns",
        "otherData": {"title": title, "clock_hz": clock_hz, "times": "predicted"},
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    return gzip.compress(text, 6, mtime=0)


class _Writer:
    """Turns what was recorded into events of the format."""

    def __init__(self, recorder: Recorder, clock_hz: float) -> None:
        self._recorder, self._scale = recorder, 1e6 / clock_hz / TICKS
        self._programs = {
            one.program.number: one.program
            for one in recorder.events
            if not isinstance(one, Called)
        }
        self._bodies: dict[int, dict[int, Body]] = {}
        self._contents: dict[tuple[int, int], tuple[dict[str, Any], Shares]] = {}
        self._lines: dict[int, list[str]] = {}
        self._lanes = 0

    def events(self) -> list[Event]:
        """All events: names of tracks, slices with outer ones first, counters."""
        kept = self._recorder.events
        work = [one for one in kept if isinstance(one, (Ran, Skipped))]
        work.sort(key=lambda one: (one.start, -one.end))
        waits = [one for one in kept if isinstance(one, Waited)]
        slices = [
            self._slice(CORE, PROGRAMS, "TLP", 0, self._recorder.end),
            *(
                self._slice(CORE, PROGRAMS, safe_name(one.name), one.start, one.end)
                for one in kept
                if isinstance(one, Called)
            ),
            *self._loops(work),
            *self._blocks(work),
            *(self._slice(CORE, WAITS, "wait", one.start, one.end) for one in waits),
            *self._transfers(one for one in kept if isinstance(one, Moved)),
            *self._not_shown(work),
        ]
        slices.sort(key=lambda event: (event["ts"], -event["dur"]))
        return [*self._names(), *slices, *self._counters(work, waits)]

    # ---- tracks of the core

    def _blocks(self, work: list[Ran | Skipped]) -> Iterator[Event]:
        for one in work:
            if isinstance(one, Ran):
                block = one.program.blocks[one.block]
                name = self._lines_of(one.program)[one.block] or one.program.name
                name += f", bundles {block.start} to {block.end - 1}"
                details = self._content(one.program, one.block)[0]
            else:
                name = f"x {one.repetitions:,} repeated"
                details = self._skipped(one)[0]
                if one.period.dmas:
                    yield self._slice(HBM, AGAIN, name, one.start, one.end)
            yield self._slice(CORE, BLOCKS, name, one.start, one.end, details)

    def _loops(self, work: list[Ran | Skipped]) -> Iterator[Event]:
        """Iterations of loops, inner ones inside outer ones."""
        stacks: dict[int, list[_Iteration]] = {}
        last: dict[int, int] = {}
        for one in work:
            program = one.program
            stack = stacks.setdefault(program.number, [])
            at = one.header if isinstance(one, Skipped) else one.block
            before = last.get(program.number, one.start)
            last[program.number] = one.end
            entered = isinstance(one, Ran) and at == 0 and 0 not in self._loops_of(program)
            left = (d for d, row in enumerate(stack) if entered or not row.holds(at))
            yield from self._close(stack, next(left, len(stack)), before)
            body = self._loops_of(program).get(at)
            if body is None:
                continue
            depth = next((d for d, row in enumerate(stack) if row.body is body), len(stack))
            yield from self._close(stack, depth + 1, one.start)
            number = 0
            if depth < len(stack):
                number = stack[depth].number + 1
                yield from self._close(stack, depth, one.start)
            if isinstance(one, Skipped):
                first, number = number, number + body.iterations(one.period) * one.repetitions - 1
                name = f"x {one.repetitions:,} repeated, {first:,} to {number:,}"
                yield self._slice(CORE, LOOPS, name, one.start, one.end)
            if len(stack) < MAX_DEPTH:
                start = one.end if isinstance(one, Skipped) else one.start
                stack.append(_Iteration(body, number, start))
        for number, stack in stacks.items():
            yield from self._close(stack, 0, last[number])

    def _close(self, stack: list[_Iteration], depth: int, time: int) -> Iterator[Event]:
        """Ends the iterations from a depth on."""
        for row in reversed(stack[depth:]):
            if row.start < time:
                name = f"{row.body.program.name} " if row.body.outermost else ""
                name += f"{'step' if row.body.outermost else 'iteration'} {row.number:,}"
                yield self._slice(CORE, LOOPS, name, row.start, time)
        del stack[depth:]

    def _counters(self, work: list[Ran | Skipped], waits: list[Waited]) -> Iterator[Event]:
        """Slots filled in the blocks that run; none while the core waits."""
        points: list[tuple[int, int, Shares]] = []  # time, order, shares from then on
        for one in work:
            if isinstance(one, Ran):
                shares = self._content(one.program, one.block)[1]
            else:
                shares = self._skipped(one)[1]
            points += [(one.start, 1, shares), (one.end, 0, NOTHING)]
        points += [(one.start, 2, NOTHING) for one in waits]
        points += [(one.end, 3, NOTHING) for one in waits]
        points.sort(key=lambda point: point[:2])
        waiting, running, shown = 0, NOTHING, None
        for index, (time, order, shares) in enumerate(points):
            if order < 2:
                running = shares
            else:
                waiting += 1 if order == 2 else -1
            current = NOTHING if waiting else running
            if current is shown or index + 1 < len(points) and points[index + 1][0] == time:
                continue
            shown = current
            yield {
                "ph": "C",
                "pid": CORE,
                "tid": 0,
                "name": "slots filled, %",
                "ts": self._time(time),
                "args": {_LABELS[unit]: round(100 * share, 1) for unit, share in current.items()},
            }

    def _not_shown(self, work: list[Ran | Skipped]) -> Iterator[Event]:
        """From where on a program had more events than are kept."""
        for name, number in sorted(self._recorder.left_out.items()):
            start = max((one.end for one in work if one.program.name == name), default=0)
            text = f"{name}: {number:,} more events"
            yield self._slice(CORE, REST, text, start, self._recorder.end)

    # ---- tracks of the memory

    def _transfers(self, transfers: Iterable[Moved]) -> Iterator[Event]:
        busy: list[tuple[int, int]] = []  # (end, lane)
        spare: list[int] = []
        for one in sorted(transfers, key=lambda one: (one.issued, one.done)):
            source, destination, operand = one.program.route(one.instruction)
            which = f", operand {operand}" if operand >= 0 else ""
            name = f"{source} to {destination}{which}"
            details = {
                "program": one.program.name,
                "from": source,
                "to": destination,
                "bytes": one.size,
                "hbm_bytes": one.size * one.sides,
            }
            if one.sides:
                yield self._slice(HBM, BUS, name, one.start, one.end, details)
            while busy and busy[0][0] <= one.issued:
                heapq.heappush(spare, heapq.heappop(busy)[1])
            if not spare:
                spare.append(self._lanes)
                self._lanes += 1
            lane = heapq.heappop(spare)
            heapq.heappush(busy, (one.done, lane))
            yield self._slice(HBM, LANES + lane, name, one.issued, one.done, details)

    # ---- what they have in common

    def _slice(
        self,
        process: int,
        track: int,
        name: str,
        start: int,
        end: int,
        details: dict[str, Any] | None = None,
    ) -> Event:
        begins, ends = self._time(start), self._time(end)
        return {
            "ph": "X",
            "pid": process,
            "tid": track,
            "name": name,
            "ts": begins,
            "dur": round(ends - begins, 6),
            **({"args": details} if details else {}),
        }

    def _time(self, ticks: int) -> float:
        return round(ticks * self._scale, 6)

    def _names(self) -> list[Event]:
        memory = {AGAIN: "repeated", BUS: "HBM busy"}
        memory |= {LANES + lane: f"in flight {lane}" for lane in range(self._lanes)}
        core = dict(_TRACKS)
        if not self._recorder.left_out:
            del core[REST]
        found = []
        for process, title, tracks in (
            (CORE, "TensorCore", core),
            (HBM, "HBM and DMAs", memory),
        ):
            found.append(_label("process_name", process, 0, name=title))
            found.append(_label("process_sort_index", process, 0, sort_index=process))
            for track, name in tracks.items():
                found.append(_label("thread_name", process, track, name=name))
                found.append(_label("thread_sort_index", process, track, sort_index=track))
        return found

    def _content(self, program: Program, index: int) -> tuple[dict[str, Any], Shares]:
        """What a block holds: instructions by class, and how full its slots are."""
        key = program.number, index
        if key not in self._contents:
            block = program.blocks[index]
            counts = slot_counts(program, {index: 1}, [index])
            bundles = block.end - block.start
            self._contents[key] = (
                _details(bundles, counts, 1),
                slot_shares(counts, bundles, program.matrix),
            )
        return self._contents[key]

    def _skipped(self, one: Skipped) -> tuple[dict[str, Any], Shares]:
        """What all skipped periods did, and how full the slots were on average, waits included."""
        counts: Counter[str] = Counter()
        bundles = 0
        for number, executed in one.period.blocks.items():
            program = self._programs[number]
            counts.update(slot_counts(program, executed, list(executed)))
            blocks = program.blocks
            bundles += sum(n * (blocks[i].end - blocks[i].start) for i, n in executed.items())
        times = one.repetitions
        details = {
            "repetitions": times,
            **_details(bundles, counts, times),
            "dmas": one.period.dmas * times,
            "hbm_bytes": one.period.hbm_bytes * times,
            "wait_us": self._time(one.period.wait * times),
        }
        matrix = next(iter(self._programs.values())).matrix
        return details, slot_shares(counts, (one.end - one.start) / TICKS / times, matrix)

    def _lines_of(self, program: Program) -> list[str]:
        """By block, the line of the kernel text that most of it comes from, "" where not told."""
        if program.number not in self._lines:
            places = [(block.start, block.end) for block in program.blocks]
            self._lines[program.number] = [
                f"line {lines[0]}" if (lines := one.most()) else ""
                for one in read(program.listing, places)
            ]
        return self._lines[program.number]

    def _loops_of(self, program: Program) -> dict[int, Body]:
        """The loops of a program by header."""
        if program.number not in self._bodies:
            self._bodies[program.number] = {body.header: body for body in bodies(program)}
        return self._bodies[program.number]


class _Iteration:
    """An iteration of a loop that has begun."""

    def __init__(self, body: Body, number: int, start: int) -> None:
        self.body, self.number, self.start = body, number, start

    def holds(self, block: int) -> bool:
        """Whether a block belongs to the loop."""
        return self.body.header <= block <= self.body.latch


def _details(bundles: int, counts: Counter[str], times: int) -> dict[str, Any]:
    return {
        "bundles": bundles * times,
        **{name: counts[name] * times for name in _CLASSES if counts[name]},
    }


def _label(kind: str, process: int, track: int, **args: Any) -> Event:
    return {"ph": "M", "pid": process, "tid": track, "name": kind, "ts": 0, "args": args}
