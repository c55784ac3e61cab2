"""The simulated run: jax's TPU interpreter, listened to, so that faults name a ref and a step.

The interpreter speaks of buffer numbers and vector clocks. Here every buffer gets the name of the
kernel's argument, every copy the grid step at which it was started, and reads of what nobody has
written are noted. All of that is private to jax; where it looks otherwise than expected, the
interpreter's own words remain.
"""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax._src import source_info_util
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic.interpret import race_detection_state, vector_clock
from jax._src.pallas.mosaic.interpret.shared_memory import Semaphore, SharedMemory
from jax.experimental.pallas import tpu as pltpu

MAX_RACES = 20  # texts of more are of no use to anybody
CLOCKS = 128  # so many copies can be told apart; jax's default of two orders all copies
MAX_COPIES = 1024  # with more of them, a second run takes too long
_LINE = re.compile(r"kernel\.py:(\d+)")
_BLOCK = re.compile(
    r'input "([^"]*)" in iteration (\([^)]*\)).*reading \[(.*)\] but input has shape (.*)\.', re.S
)
_ACCESS = re.compile(
    r"(read|write) of \(\d+ \d+ \w+ (\d+)\): \w+ \[(.*)\] but buffer has shape (.*?) ?\.", re.S
)
_REVISIT = re.compile(r"Revisited block .* of output (\d+) in iteration (\([^)]*\))", re.S)
_SLICE = re.compile(r"slice\((\d+), (\d+), \w+\)|(\d+)")


@dataclass
class Found:
    """What a simulated run met, first things first."""

    races: list[str] = field(default_factory=list)
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

    def __str__(self) -> str:
        if self.copy:
            verb = "read" if self.kind == "read" else "written"
            return f"{verb} by the copy that was started at grid step {self.step}{self.line}"
        return f"{self.kind} at grid step {self.step}{self.line}"


class _Listener:
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
        return self.names.get(key, "a scratch buffer")

    # -- races

    def access(self, kind: str, thread: tuple, clock, key, range_, source) -> bool:
        """Notes an access; whether it is a race with an earlier one."""
        copy = thread[0] in self.copies
        step = self.copies[thread[0]] if copy else self.step
        new = _Access(kind, range_, clock, copy, step, _line(source))
        with self.lock:
            reads, writes = self.accesses.setdefault(key, ([], []))
            earlier = list(writes) if kind == "read" else [*writes, *reads]
            (reads if kind == "read" else writes).append(new)
        for old in earlier:
            if _ordered(old.clock, clock):
                continue
            if race_detection_state._ranges_overlap(range_, old.range):
                text = f"{self.name(key[1])}{_rows(range_)} is {new} while it may still be {old}"
                with self.lock:
                    if len(self.found.races) < MAX_RACES and text not in self.found.races:
                        self.found.races.append(text)
                return True
        return False

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
        mask = self.unwritten.get(number)
        if mask is None or self.found.unwritten:
            return
        with contextlib.suppress(IndexError):
            if mask[range_].any():
                self.found.unwritten = (
                    f"{self.name(number)}{_rows(range_)} is read at grid step {self.step} before "
                    "anything was written there"
                )

    def writes(self, number: int, range_, mask=None) -> None:
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
        block = self.blocks.get(name.removeprefix(_BEHIND)) if name.startswith(_BEHIND) else None
        if block is not None and block in self.unwritten:
            self.unwritten[block][...] = True
        return block

    def revisit(self, error: str) -> None:
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
            where = f"{verb} outside at grid step {self.step}: {_outside(place, shape)}"
            return f"{self.name(int(number))} is {where}".replace("is write", "is written")
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


# ---------------------------------------------------------------------------------- listening


_BEHIND = "the output behind "


def _arguments(jaxpr) -> list[str]:
    names = list(jaxpr.debug_info.arg_names or ())
    names += ["?"] * (len(jaxpr.invars) - len(names))
    return [f"`{name}` (argument {i + 1})" for i, name in enumerate(names)]


def _outputs(jaxpr, grid_mapping) -> list[str]:
    first = grid_mapping.num_index_operands + grid_mapping.num_inputs
    return _arguments(jaxpr)[first : first + grid_mapping.num_outputs]


def _labels(jaxpr, grid_mapping, aliases) -> Iterator[tuple[str, bool]]:
    """Names of buffers in the order in which a Pallas call allocates them, and which are empty."""
    names = _arguments(jaxpr)
    scalars, inputs = grid_mapping.num_index_operands, grid_mapping.num_inputs
    outputs = grid_mapping.num_outputs
    aliased = {out for _, out in aliases}

    for i in range(inputs):
        yield "the array behind " + names[scalars + i], False
    for i in range(outputs):
        if i not in aliased:
            yield _BEHIND + names[scalars + inputs + i], True
    for i in range(scalars):
        yield names[i], False
    for i, variable in enumerate(jaxpr.invars[scalars:]):
        if i < inputs + outputs:
            space = grid_mapping.block_mappings[i].transformed_block_aval.memory_space
        else:
            space = variable.aval.memory_space
        space = interpreter._forward_any_to_hbm(space)
        if space not in (interpreter._HBM, interpreter._SEMAPHORE):
            kind = "scratch " if i >= inputs + outputs else ""
            yield kind + names[scalars + i], True


class _Callbacks:
    """Stands in for jax's module of callbacks: allocations are told by their names."""

    def __init__(self, module, listener: _Listener):
        self._module, self._listener = module, listener
        self.labels: Iterator[tuple[str, bool]] = iter(())

    def __getattr__(self, name: str):
        return getattr(self._module, name)

    def io_callback(self, function, *args, **kwargs):
        called = getattr(function, "func", function)
        if called is interpreter._allocate_buffer:
            label = next(self.labels, ("scratch of run_scoped", True))
            inner, listener = function, self._listener

            def function(*values):
                return listener.allocated(label, inner(*values))

        return self._module.io_callback(function, *args, **kwargs)


@contextlib.contextmanager
def _listening(listener: _Listener) -> Iterator[None]:
    """Puts the listener between the interpreter and its memory."""
    callbacks = _Callbacks(interpreter.callback, listener)
    call, copy, revisiting = (
        interpreter.interpret_pallas_call,
        interpreter.DMA,
        interpreter._check_for_revisiting,
    )
    methods = {
        name: getattr(SharedMemory, name)
        for name in (
            "allocate_buffer",
            "get_buffer_content",
            "store_buffer_content",
            "swap_buffer_content",
        )
    }

    def interpret_pallas_call(*args, **kwargs):
        mapping, aliases = kwargs["grid_mapping"], kwargs["input_output_aliases"]
        callbacks.labels = _labels(kwargs["jaxpr"], mapping, aliases)
        listener.outputs = _outputs(kwargs["jaxpr"], mapping)
        return call(*args, **kwargs)

    def start_copy(number, *args, **kwargs):
        # By turns, not at random, as jax does it: a verdict must not change from run to run.
        kwargs["virtual_device_id"] = 1 + listener.started % (CLOCKS - 1)
        listener.started += 1
        listener.copies[number] = listener.step
        return copy(number, *args, **kwargs)

    def check_for_revisiting(token, *args):
        try:
            return revisiting.__wrapped__(token, *args)
        except RuntimeError as error:
            listener.revisit(str(error))
            return token

    class Races(race_detection_state.RaceDetectionState):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            listener.forget()

        def check_read(self, *args, source_info=None):
            *thread, clock, key, range_ = args
            self._note("read", thread, clock, key, range_, source_info)

        def check_write(self, *args, source_info=None):
            *thread, clock, key, range_ = args
            self._note("written", thread, clock, key, range_, source_info)

        def _note(self, kind, thread, clock, key, range_, source):
            thread = tuple(thread[0]) if len(thread) == 1 else tuple(thread)
            if listener.access(kind, thread, clock, key, range_, source):
                self.races_found = True

    def allocate_buffer(self, key, ref_count, value, *args, **kwargs):
        listener.shapes[key[1]] = np.shape(value)
        return methods["allocate_buffer"](self, key, ref_count, value, *args, **kwargs)

    def get_buffer_content(self, key, rnge, *args, **kwargs):
        listener.reads(key[1], rnge)
        return methods["get_buffer_content"](self, key, rnge, *args, **kwargs)

    def store_buffer_content(self, key, rnge, *args, **kwargs):
        listener.writes(key[1], rnge)
        answer = methods["store_buffer_content"](self, key, rnge, *args, **kwargs)
        block = listener.written_back(key[1])
        for other, buffer in self.mem.items() if block is not None else ():
            if other[1] == block and hasattr(buffer, "content"):
                poison = interpreter.interpret_utils.get_uninitialized_value
                buffer.content[...] = poison(buffer.content.dtype, "nan")
        return answer

    def swap_buffer_content(self, key, rnge, value, mask, *args, **kwargs):
        listener.writes(key[1], rnge, mask)
        return methods["swap_buffer_content"](self, key, rnge, value, mask, *args, **kwargs)

    wait = Semaphore.wait

    def wait_for(self, value, core, *args, logging_info=None, **kwargs):
        source = getattr(logging_info, "source_info", None)
        listener.waits(self, int(value), int(core), source)
        return wait(self, value, core, *args, logging_info=logging_info, **kwargs)

    changes = [
        (Semaphore, "wait", wait_for),
        (interpreter, "callback", callbacks),
        (interpreter, "interpret_pallas_call", interpret_pallas_call),
        (interpreter, "DMA", start_copy),
        (interpreter, "_check_for_revisiting", check_for_revisiting),
        (interpreter, "RaceDetectionState", Races),
        (SharedMemory, "allocate_buffer", allocate_buffer),
        (SharedMemory, "get_buffer_content", get_buffer_content),
        (SharedMemory, "store_buffer_content", store_buffer_content),
        (SharedMemory, "swap_buffer_content", swap_buffer_content),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def simulate(build: Callable, inputs) -> tuple[np.ndarray | None, dict[str, str]]:
    """Runs a kernel with poisoned memory, bounds checks and race detection.

    Args:
        build: Interpret parameters -> the kernel as a function of the inputs.
        inputs: Arrays.

    Returns:
        The result, None where there is none, and ``outcome`` (``clean``, ``race``,
        ``out_of_bounds``, ``stuck``, ``failed``) with its ``reason``, and ``hint``: what would
        explain wrong numbers.
    """
    result, listener, error = _run(build, inputs, "on_wait")
    if error is not None and listener.found.stuck:
        return None, {"outcome": "stuck", "reason": listener.found.stuck}
    if error is not None:
        text = "".join(map(str, error.args)) or type(error).__name__
        if "out-of-bounds" in text.lower():
            return None, {"outcome": "out_of_bounds", "reason": listener.explain(text)}
        return None, {"outcome": "failed", "reason": text, "error": error}
    races = listener.found.races
    if not races and 0 < listener.started <= MAX_COPIES:
        # Done when waited for, a copy that nobody waits for is never done, and races with nothing.
        races = _run(build, inputs, "eager")[1].found.races
    hint = listener.found.revisited or listener.found.unwritten
    outcome = "race" if races else "clean"
    return result, {"outcome": outcome, "reason": "\n".join(races), "hint": hint}


def _run(build: Callable, inputs, copies: str):
    """One run with copies done at once or as late as possible: result, what it met, error."""
    listener = _Listener()
    params = pltpu.InterpretParams(
        detect_races=True,
        out_of_bounds_reads="raise",
        uninitialized_memory="nan",
        dma_execution_mode=copies,
        vector_clock_size=CLOCKS,
        grid_point_recorder=listener.record_step,
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()), _listening(listener):
            return np.asarray(build(params)(*inputs)), listener, None
    except BaseException as error:
        return None, listener, error
