"""The simulated run: jax's TPU interpreter, listened to, so that faults name a ref and a step.

All that is listened to is private to jax; where it looks otherwise than expected, the interpreter's
own words remain.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic.interpret import race_detection_state
from jax._src.pallas.mosaic.interpret import utils as interpret_utils
from jax._src.pallas.mosaic.interpret.shared_memory import Semaphore, SharedMemory
from jax._src.state import types as state
from jax._src.state.indexing import NDIndexer
from jax.experimental.pallas import tpu as pltpu

from .listener import BEHIND, Listener

CLOCKS = 128  # so many copies can be told apart; jax's default of two orders all copies
MAX_COPIES = 1024  # with more of them, a second run takes too long


# -------------------------------------------------------------------------------------- views


def _bitcast(value: np.ndarray, dtype) -> np.ndarray:
    """A ref's bitcast, which packs neighbours of the second-minor axis, or takes them apart."""
    old, new = value.dtype.itemsize, np.dtype(dtype).itemsize
    *leading, rows, lanes = value.shape
    if old < new:
        packed = value.reshape(*leading, rows * old // new, new // old, lanes).swapaxes(-1, -2)
        return np.ascontiguousarray(packed).view(dtype)[..., 0]
    apart = np.ascontiguousarray(value)[..., None].view(dtype).swapaxes(-1, -2)
    return apart.reshape(*leading, rows * old // new, lanes)


def _range(transform, shape: tuple[int, ...], place: str) -> tuple:
    """An indexer as slices and numbers.

    Raises:
        IndexError: If it reaches outside of the shape; `place` says of what, in the interpreter's
            form.
    """
    found = interpret_utils.to_range((jax.tree.map(int, transform),))
    if interpret_utils.is_range_out_of_bounds_for_shape(found, shape):
        shape = f"but buffer has shape {shape}."
        raise IndexError(f"Out-of-bounds access of ({place}): reading [{found}] {shape}")
    return found


def _views(value: np.ndarray, transforms, place: str) -> list[np.ndarray]:
    """What a ref holds, and what is left of it after each of the transforms.

    Raises:
        IndexError: If an index is outside; see `_range`.
        NotImplementedError: For a view of another kind.
    """
    held = [value]
    for transform in transforms:
        if isinstance(transform, NDIndexer):
            held.append(held[-1][_range(transform, held[-1].shape, place)])
        elif isinstance(transform, state.ReshapeTransform):
            held.append(held[-1].reshape(transform.shape))
        elif isinstance(transform, state.BitcastTransform):
            held.append(_bitcast(held[-1], transform.dtype))
        else:
            raise NotImplementedError(f"access through {type(transform).__name__}")
    return held


def _stored(held: list[np.ndarray], transforms, value: np.ndarray, place: str) -> np.ndarray:
    """What a ref holds after a store through a view; `held` is what `_views` said before."""
    for before, transform in zip(reversed(held[:-1]), reversed(transforms), strict=True):
        if isinstance(transform, NDIndexer):
            whole = before.copy()
            whole[_range(transform, before.shape, place)] = value
            value = whole
        elif isinstance(transform, state.ReshapeTransform):
            value = value.reshape(before.shape)
        else:
            value = _bitcast(value, before.dtype)
    return value


# ---------------------------------------------------------------------------------- listening


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
            yield BEHIND + names[scalars + inputs + i], True
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

    def __init__(self, module, listener: Listener):
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
def _listening(listener: Listener) -> Iterator[None]:
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

    read, swapped = interpreter.get.__wrapped__, interpreter.swap.__wrapped__

    def split(transforms):
        # The interpreter's memory knows ranges alone; it gives that of which the rest is a view.
        ranges = tuple(itertools.takewhile(lambda t: isinstance(t, NDIndexer), transforms))
        return ranges, tuple(transforms[len(ranges) :])

    @interpreter.fail_on_exception
    def get(token, device, core, space, buffer, transforms, *args, **kwargs):
        ranges, views = split(transforms)
        with listener.through(views):
            token, value = read(token, device, core, space, buffer, ranges, *args, **kwargs)
        return token, _views(value, views, f"0 0 view {int(buffer)}")[-1]

    @interpreter.fail_on_exception
    def swap(token, device, core, space, buffer, transforms, value, mask, **kwargs):
        ranges, views = split(transforms)
        at = (device, core, space, buffer, ranges)
        if not views:
            return swapped(token, *at, value, mask, **kwargs)
        place, value = f"0 0 view {int(buffer)}", np.asarray(value)
        with listener.through(views, storing=True):
            token, whole = read(token, *at, **kwargs)
            held = _views(whole, views, place)
            value = value if mask is None else np.where(mask, value, held[-1])
            token, _ = swapped(token, *at, _stored(held, views, value, place), None, **kwargs)
        return token, held[-1]

    wait = Semaphore.wait

    def wait_for(self, value, core, *args, logging_info=None, **kwargs):
        source = getattr(logging_info, "source_info", None)
        listener.waits(self, int(value), int(core), source)
        return wait(self, value, core, *args, logging_info=logging_info, **kwargs)

    changes = [
        (Semaphore, "wait", wait_for),
        (interpreter, "get", get),
        (interpreter, "swap", swap),
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
    races, doubts = listener.found.races, listener.found.doubts
    if not races and 0 < listener.started <= MAX_COPIES:
        # Done when waited for, a copy that nobody waits for is never done, and races with nothing.
        eager = _run(build, inputs, "eager")[1].found
        races, doubts = eager.races, doubts + eager.doubts
    hint = listener.found.revisited or listener.found.unwritten
    if doubts and not races:
        reason = f"of a reshaped or bitcast ref all counts as accessed, and {doubts[0]}"
        return None, {"outcome": "failed", "reason": reason}
    outcome = "race" if races else "clean"
    return result, {"outcome": outcome, "reason": "\n".join(races), "hint": hint}


def _run(build: Callable, inputs, copies: str):
    """One run with copies done at once or as late as possible: result, what it met, error."""
    listener = Listener()
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
