"""Reads a Mosaic module: its grid, its work, and which parts of its arrays it reads and writes."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jax._src.lib import tpu
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from jaxbench_env.evaluator.judge import scalars, synchronisation
from jaxbench_env.evaluator.judge.synchronisation import VIEWS
from jaxbench_env.evaluator.judge.trips import key
from jaxbench_env.evaluator.judge.work import Work, bits, shape

_MEMORY = ("any", "hbm")  # arguments that a kernel reaches only by copies of its own
DYNAMIC = -(1 << 63)  # a bound of the grid that is an operand
_INTEGERS = {f"{sign}{bits}" for sign in ("i", "ui") for bits in (1, 8, 16, 32)}


@dataclass(frozen=True)
class Access:
    """Boxes of one array that a kernel reads or writes.

    Attributes:
        argument: Position among the arrays: operands after the scalar ones, then results.
        write: Whether it writes.
        starts: First element of each box by axis, arrays over the iteration space; or None where
            that could not be read.
        sizes: Extents of each box.
        mask: 0 for steps that do not make the access; None if all do.
    """

    argument: int
    write: bool
    starts: tuple[np.ndarray, ...] | None
    sizes: tuple[int, ...]
    mask: np.ndarray | None = None


@dataclass
class Kernel:
    """What a Mosaic module does.

    Attributes:
        grid: Its iteration bounds; empty if it has none. A dynamic bound counts as 1.
        dynamic: Whether a bound of the grid is dynamic.
        scalars: Number of scalar operands that come before the arrays.
        operands: Number of array operands.
        steering: Number of operands that may steer it: see `scalar_operands`.
        whole: Work if every condition were true: comparable between two lowerings.
        done: Work that is done: conditions and loops evaluated over the grid.
        vmem_bytes: Blocks and scratch in VMEM, each counted once.
        accesses: What it reads and writes.
        blocks: Shapes of the blocks that move with the grid.
        operations: Names of the operations in it.
        synchronises: In which order it copies and waits by itself; None if it does not.
    """

    grid: tuple[int, ...] = ()
    dynamic: bool = False
    scalars: int = 0
    operands: int = 0
    steering: int = 0
    whole: Work = field(default_factory=Work)
    done: Work = field(default_factory=Work)
    vmem_bytes: int = 0
    accesses: list[Access] = field(default_factory=list)
    blocks: set[tuple[int, ...]] = field(default_factory=set)
    operations: set[str] = field(default_factory=set)
    synchronises: synchronisation.Outline | None = None


def parse(body: str) -> ir.Module:
    """Decodes the text that a custom call holds, in a context of its own.

    Raises:
        Exception: Of any kind, if it is malformed.
    """
    context = ir.Context()
    context.allow_unregistered_dialects = True
    tpu.register_dialect(context)
    with context, ir.Location.unknown(context):
        module = ir.Module.parse(base64.b64decode(body))
        PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
    return module


def read(body: str, operands: int, results: int, words: Sequence[np.ndarray | None] = ()) -> Kernel:
    """Reads a module.

    Args:
        body: The text of the module in its custom call.
        operands: Number of its operands, scalar ones included.
        results: Number of its results.
        words: Values of its operands, in order, where they are known; used for scalar memory.

    Raises:
        Exception: Of any kind, if it is malformed, or its arguments are not those of the call.
    """
    module = parse(body)
    with module.context, ir.Location.unknown(module.context):
        functions = {
            ir.StringAttr(f.attributes["sym_name"]).value: f.operation
            for f in module.body.operations
            if f.operation.name == "func.func"
        }
        return _Reader(next(iter(functions.values())), functions, operands, results, words).kernel


class _Reader:
    """Walks a kernel with the values of its scalars at hand."""

    def __init__(self, function, functions, operands, results, words):
        self._functions = functions
        self._values = scalars.Scalars()
        self.kernel = kernel = Kernel()
        block = function.regions[0].blocks[0]
        arguments = list(block.arguments)
        bounds = []
        if "iteration_bounds" in function.attributes:
            bounds = list(ir.DenseI64ArrayAttr(function.attributes["iteration_bounds"]))
        dynamic = sum(b < 0 for b in bounds)
        words = [*words, *[None] * operands][:operands]
        bounds = _known_bounds(bounds, words[:dynamic])
        kernel.dynamic = any(b < 0 for b in bounds)
        kernel.grid = tuple(max(1, b) for b in bounds)
        kernel.scalars = ir.IntegerAttr(function.attributes["scalar_prefetch"]).value
        kernel.vmem_bytes = sum(map(_vmem_bytes, arguments))
        # Dynamic bounds are operands of the call and not of the kernel.
        self._operands = operands - kernel.scalars - dynamic
        first, arrays = len(bounds) + kernel.scalars, self._operands + results
        if self._operands < 0 or len(arguments) < first + arrays:
            raise ValueError("the kernel's arguments are not those of the call")
        kernel.operands = self._operands
        inputs = arguments[len(bounds) : first + self._operands]
        kernel.steering = dynamic + sum(_memory_space(argument) == "smem" for argument in inputs)
        self._steps = [scalars.along(axis, b) for axis, b in enumerate(kernel.grid)]
        for argument, step in zip(arguments, self._steps, strict=False):
            # the step of a dynamic axis is not known
            self._values[argument] = step if bounds[step.ndim - 1] > 0 else None
        words = [
            known if _only_read(argument) else None
            for argument, known in zip(inputs, words[dynamic:], strict=True)
        ]
        self._words = words[: kernel.scalars]
        for argument, known in zip(inputs, words, strict=True):
            if known is not None and known.shape == shape(argument.type):
                self._values.remember(argument, known)
        self._arrays = {
            hash(argument): number for number, argument in enumerate(arguments[first:][:arrays])
        }
        self._blocks: dict[int, tuple] = {}  # array -> starts and sizes of its window
        self._noted: set[tuple] = set()
        self._decided: dict[int, object] = {}  # conditions and trip counts, for the outline
        self._windows(function, arguments[first:][:arrays])
        self._axes = list(kernel.grid)
        self._walk(block, None, sure=not kernel.dynamic, constant=not kernel.dynamic)
        kernel.synchronises = synchronisation.outline(function, kernel.grid, self._decided)

    # ---- windows

    def _windows(self, function, arguments) -> None:
        windows = [None] * len(arguments)
        if "window_params" in function.attributes:
            windows = list(ir.ArrayAttr(function.attributes["window_params"]))[: len(arguments)]
        for number, (argument, window) in enumerate(zip(arguments, windows, strict=True)):
            extent = shape(argument.type)
            if window is None or "transform_indices" not in (window := ir.DictAttr(window)):
                if _memory_space(argument) not in _MEMORY:  # whole, once
                    starts = tuple(np.zeros((), np.int64) for _ in extent)
                    self._blocks[number] = starts, extent
                continue
            sizes = tuple(ir.DenseI64ArrayAttr(window["window_bounds"]))
            name = ir.FlatSymbolRefAttr(window["transform_indices"]).value
            indices = self._transform(self._functions[name])
            if _memory_space(argument) in _MEMORY:
                continue  # a window of the whole array: the kernel copies by itself
            self.kernel.blocks.add(sizes)
            starts = None
            if all(i is not None for i in indices):
                starts = tuple(i * size for i, size in zip(indices, sizes, strict=True))
                if "window_kind" in window:
                    low = _padding(str(window["window_kind"]))
                    starts = tuple(i - pad for i, pad in zip(indices, low, strict=True))
            self._blocks[number] = starts, sizes

    def _access(self, number, write, starts, sizes, mask, sure) -> None:
        starts = starts if sure else None
        key = number, write, id(starts), id(mask)  # the list below keeps both alive
        if key not in self._noted:
            self._noted.add(key)
            self.kernel.accesses.append(Access(number, write, starts, tuple(sizes), mask))

    def _transform(self, function) -> list[scalars.Value]:
        """Values of an index map over the grid."""
        values = scalars.Scalars()
        block = function.regions[0].blocks[0]
        arguments = list(block.arguments)
        for argument, step in zip(arguments, self._steps, strict=False):
            values[argument] = None if self.kernel.dynamic else step
        for argument, words in zip(arguments[len(self._steps) :], self._words, strict=False):
            if words is not None:
                values.remember(argument, words)
        outer, self._values = self._values, values
        try:
            returned = self._walk(block, None, sure=True, constant=True, tally=False)
        finally:
            self._values = outer
        return [values[value] for value in returned]

    # ---- the body

    def _walk(self, block, mask, *, sure: bool, constant: bool, tally: bool = True) -> list:
        """Walks a block; returns the operands of its terminator.

        Args:
            block: The block.
            mask: Which points of the iteration space reach it; None if all do.
            sure: Whether that, and the number of points, is known.
            constant: Whether all loops around it have constant trip counts.
            tally: Whether to count work and copies.
        """
        returned = []
        for view in block.operations:
            operation = view.operation
            name = operation.name
            if tally:
                self.kernel.operations.add(name)
                self._count(operation, mask, sure, constant)
            if name in ("scf.yield", "func.return", "tpu.yield"):
                returned = list(operation.operands)
            elif name == "scf.if":
                self._if(operation, mask, sure, constant, tally)
            elif name == "scf.for":
                self._for(operation, mask, sure, constant, tally)
            elif len(operation.regions):
                loop = name == "scf.while"
                for region in operation.regions:
                    for inner in region.blocks:
                        self._walk(
                            inner,
                            mask,
                            sure=sure and not loop,
                            constant=constant and not loop,
                            tally=tally and name != "vector.multi_reduction",
                        )
            else:
                self._values.run(operation)
        return returned

    def _if(self, operation, mask, sure, constant, tally) -> None:
        condition = self._decided[key(operation)] = self._values[operation.operands[0]]
        branches = []
        for number, region in enumerate(operation.regions):
            chosen, known = mask, sure and condition is not None
            if condition is not None:
                wanted = condition if number == 0 else 1 - condition
                chosen = _both(mask, wanted)
                if chosen is None:
                    chosen, known = mask, False
            for inner in region.blocks:
                branches.append(
                    self._walk(inner, chosen, sure=known, constant=constant, tally=tally)
                )
        if condition is None or len(branches) < 2:
            return
        for result, yes, no in zip(operation.results, *branches[:2], strict=True):
            yes, no = self._values[yes], self._values[no]
            if yes is not None and no is not None and scalars.affordable(condition, yes, no):
                self._values[result] = np.where(*scalars.aligned(condition != 0, yes, no))

    def _for(self, operation, mask, sure, constant, tally) -> None:
        start, stop, step = (self._values[o] for o in list(operation.operands)[:3])
        block = operation.regions[0].blocks[0]
        known = all(v is not None for v in (start, stop, step)) and (step > 0).all()
        if known:
            known = scalars.affordable(start, stop, step)
        if not known:
            self._walk(block, mask, sure=False, constant=False, tally=tally)
            return
        start, stop, step = scalars.aligned(start, stop, step)
        trips = np.maximum(0, -(-(stop - start) // step))
        most = self._decided[key(operation)] = int(trips.max(initial=0))
        if most == 0:
            return
        axis = len(self._axes)
        self._axes.append(most)
        try:
            if trips.size == 1:
                chosen, fixed = mask, True
            else:
                fixed = False
                if math.prod(trips.shape) * most > scalars.MAX_ELEMENTS:
                    chosen = None
                else:
                    within, trips = scalars.aligned(scalars.along(axis, most), trips)
                    chosen = _both(mask, (within < trips).astype(np.int64))
                sure, chosen = sure and chosen is not None, mask if chosen is None else chosen
            counter = scalars.aligned(start, scalars.along(axis, most), step)
            if scalars.affordable(*counter):
                self._values[block.arguments[0]] = counter[0] + counter[1] * counter[2]
            self._walk(block, chosen, sure=sure, constant=constant and fixed, tally=tally)
        finally:
            self._axes.pop()

    def _count(self, operation, mask, sure, constant) -> None:
        points = math.prod(self._axes)
        times = points if mask is None else points * float(mask.mean())
        if self.kernel.whole.count(operation, points):
            self.kernel.whole.known = self.kernel.whole.known and constant
            self.kernel.done.count(operation, times)
            self.kernel.done.known = self.kernel.done.known and sure
            return
        memrefs = [o for o in operation.operands if str(o.type).startswith("memref")]
        if not memrefs or operation.name.startswith(VIEWS) or "wait" in operation.name:
            return
        if operation.name == "tpu.enqueue_dma":
            memrefs = [o for o in memrefs if "semaphore" not in str(o.type)]
            for write, memref in zip((False, True), memrefs, strict=False):
                self._touch(memref, write, mask, sure)
            return
        for memref in memrefs:
            self._touch(memref, "store" in operation.name, mask, sure)

    def _touch(self, memref, write, mask, sure) -> None:
        """Notes that a block, or a part of an array in HBM, is read or written."""
        place = self._box(memref)
        if place is not None:
            number, starts, sizes = place
            self._access(number, write, starts, sizes, mask, sure)

    def _box(self, memref):
        """(array, starts, sizes) of a block or of a slice in HBM; None for other memory."""
        if isinstance(memref.owner, ir.Block):
            number = self._arrays.get(hash(memref))
            if number in self._blocks:
                return number, *self._blocks[number]
            if number is None:
                return None
            extent = shape(memref.type)
            return number, tuple(np.zeros((), np.int64) for _ in extent), extent
        operation = memref.owner.operation
        if not operation.name.startswith(VIEWS) or not operation.operands:
            return None
        base = self._box(operation.operands[0])
        if base is None:
            return None
        number, starts, sizes = base
        if number in self._blocks:
            return base  # a part of a block counts as the block
        if operation.name != "tpu.memref_slice":
            # a squeeze leaves the box as it is; another view of it cannot be followed
            return (number, starts if "squeeze" in operation.name else None, sizes)
        offsets = [self._values[o] for o in list(operation.operands)[1:]]
        extent = shape(operation.results[0].type)
        if starts is None or len(extent) != len(sizes) or len(offsets) != len(sizes):
            return number, None, sizes  # a slice of a squeezed box
        pairs = list(zip(starts, offsets, strict=True))
        if any(o is None or not scalars.affordable(s, o) for s, o in pairs):
            return number, None, extent
        pairs = [scalars.aligned(s, o) for s, o in pairs]
        return number, tuple(s + o for s, o in pairs), extent


def _only_read(memref) -> bool:
    """Whether a kernel does nothing with scalar memory but read it: else its words may change."""
    for use in memref.uses:
        operation = use.owner.operation
        if operation.name.startswith(VIEWS):
            if not all(_only_read(result) for result in operation.results):
                return False
        elif operation.name != "memref.load":
            return False
    return True


def _known_bounds(bounds: list[int], words: Sequence[np.ndarray | None]) -> list[int]:
    """Bounds of a grid with the values of those that are operands, where these are known."""
    operands = iter(words)
    found = []
    for bound in bounds:
        value = next(operands) if bound < 0 else None
        found.append(int(value.reshape(-1)[0]) if value is not None and value.size == 1 else bound)
    return found


def scalar_operands(operation, kernel) -> list[int]:
    """Indices of a kernel's operands that may steer it.

    These are dynamic bounds of the grid, which come first, and whole arrays of integers that the
    kernel has in SMEM.

    Args:
        operation: The `tpu_custom_call`.
        kernel: The function in its Mosaic module, whose context must be entered.
    """
    bounds: list[int] = []
    if "iteration_bounds" in kernel.attributes:
        bounds = list(ir.DenseI64ArrayAttr(kernel.attributes["iteration_bounds"]))
    dynamic = sum(bound == DYNAMIC for bound in bounds)
    chosen = list(range(dynamic))
    arguments = list(kernel.regions[0].blocks[0].arguments)[len(bounds) :]
    operands = enumerate(list(operation.operands)[dynamic:], start=dynamic)
    for (index, operand), argument in zip(operands, arguments, strict=False):
        kind = str(argument.type)
        if (
            kind.startswith("memref")
            and "memory_space<smem>" in kind
            and shape(argument.type) == shape(operand.type)
            and str(ir.ShapedType(operand.type).element_type) in _INTEGERS
        ):
            chosen.append(index)
    return chosen


def _both(mask, condition):
    """Points at which both hold; None if that would be too large a table."""
    if mask is None:
        return condition
    if not scalars.affordable(mask, condition):
        return None
    mask, condition = scalars.aligned(mask, condition)
    return mask & condition


def _memory_space(value) -> str:
    text = str(value.type)
    return text.rpartition("memory_space<")[2].partition(">")[0] if "memory_space<" in text else ""


def _vmem_bytes(argument) -> int:
    """Bytes of a kernel's argument that lies in VMEM; 0 for scalars and other memories."""
    if not str(argument.type).startswith("memref") or _memory_space(argument) != "vmem":
        return 0
    return math.prod(shape(argument.type)) * bits(argument.type) // 8


def _padding(kind: str) -> list[int]:
    """The low padding of ``#tpu.element_window<[lows], [highs]>``."""
    inside = kind.partition("<[")[2].partition("]")[0]
    return [int(part) for part in inside.split(",") if part.strip()]
