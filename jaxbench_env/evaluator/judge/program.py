"""Reads an exported program: what it calls, what it computes, and what reaches its output."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxbench_env.evaluator.judge import mosaic
from jaxbench_env.evaluator.judge.trips import key, trip_count
from jaxbench_env.evaluator.judge.work import Work, bits, shape
from jaxbench_env.evaluator.timing.hlo import kernel_hash


@dataclass(frozen=True)
class PallasCall:
    """One Mosaic program inside an exported program.

    Attributes:
        name: Its kernel name.
        times: How often the program runs it; once where a loop around it could not be read.
        operands: Keys of the arrays that it reads; equal keys are the same array.
        shapes: Shapes of its array operands and then of its results.
        bytes: Bytes of these.
        aliased: Results that share memory with an operand.
        plain_layouts: Whether all its arrays lie row by row.
        kernel: What the Mosaic module does; None if it could not be read.
    """

    name: str
    times: float
    operands: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    bytes: tuple[int, ...]
    aliased: frozenset[int]
    plain_layouts: bool
    kernel: mosaic.Kernel | None

    @property
    def grid(self) -> tuple[int, ...]:
        """Its iteration bounds; empty if it has none."""
        return self.kernel.grid if self.kernel else ()


@dataclass(frozen=True)
class Program:
    """Facts about one exported program.

    Attributes:
        targets: Targets of all custom calls.
        constant_bytes: Bytes of constants that are given element by element.
        annotations: Names of attributes on the arguments and results of the public function.
        calls: The Pallas calls on which the output depends, in program order.
        outside: Work outside Pallas on which the output depends.
        arguments: Positions of the arguments on which the output depends.
        trips: Trip counts of its counted loops, with their number.
        slices: Sizes of all dynamic slices and updates.
    """

    targets: frozenset[str]
    constant_bytes: int
    annotations: frozenset[str]
    calls: tuple[PallasCall, ...]
    outside: Work
    arguments: frozenset[int]
    trips: Counter[int]
    slices: frozenset[tuple[int, ...]]

    @property
    def readable(self) -> bool:
        """Whether all its Mosaic modules could be read."""
        return all(call.kernel is not None for call in self.calls)

    def inside(self, kind: str = "done") -> Work:
        """Work inside Pallas: what is ``"done"``, or the ``"whole"`` if every condition held."""
        total = Work(known=self.readable)
        for call in self.calls:
            if call.kernel is not None:
                total.add(getattr(call.kernel, kind), call.times)
        return total

    def work(self, kind: str = "done") -> Work:
        """Work inside and outside Pallas; see `inside`."""
        total = self.inside(kind)
        total.add(self.outside)
        return total

    @property
    def matmul_flops(self) -> int:
        """Flops of the matrix products inside Pallas, conditions taken as true."""
        return round(self.inside("whole").flops)

    @property
    def outside_flops(self) -> int:
        """Flops of the matrix products outside Pallas."""
        return round(self.outside.flops)


def parse(program: bytes | str) -> ir.Module:
    """A StableHLO module from a portable artifact or from text, in the current context.

    Raises:
        Exception: Of any kind, if it is malformed.
    """
    if isinstance(program, str):
        return ir.Module.parse(program)
    try:
        return stablehlo.deserialize_portable_artifact(None, program)
    except Exception:  # the binding's first parameter differs between versions
        return stablehlo.deserialize_portable_artifact(ir.Context.current, program)


def read(serialized: bytes, values: Sequence[tuple[str, Mapping[int, np.ndarray]]] = ()) -> Program:
    """Reads a StableHLO portable artifact, as `Exported.mlir_module_serialized` holds it.

    Args:
        serialized: The artifact.
        values: For Pallas calls in program order, hashes of their Mosaic modules and what is
            known of their scalar operands: see `feeds.values`.

    Raises:
        Exception: Of any kind, if it cannot be parsed.
    """
    with mlir.make_ir_context():
        return _Reader(parse(serialized), values).program


# ----------------------------------------------------------------------------- the outer module


def walk(operation) -> Iterator:
    """An operation and all that it holds."""
    todo = [operation.operation]
    while todo:
        operation = todo.pop()
        yield operation
        for region in operation.regions:
            for block in region.blocks:
                todo += [inner.operation for inner in block.operations]


def custom_target(operation) -> str | None:
    """The target of a custom call; None for other operations."""
    if operation.name != "stablehlo.custom_call":
        return None
    return ir.StringAttr(operation.attributes["call_target_name"]).value


_SLICES = ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice")


@dataclass
class _Tally:
    """What a function does each time it is called."""

    work: Work = field(default_factory=Work)
    calls: list[tuple[ir.Operation, float]] = field(default_factory=list)


class _Reader:
    """Reads one module."""

    def __init__(self, parsed: ir.Module, values):
        operations = list(walk(parsed.operation))
        self._functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op
            for op in operations
            if op.name == "func.func"
        }
        main = self._functions["main"]
        self._needed, arguments = _needed(operations, self._functions)
        self._trips: Counter[int] = Counter()
        self._tallies: dict[str, _Tally] = {}
        tally = self._function("main")
        decoded: dict[int, mosaic.Kernel | None] = {}
        self._callers: dict[str, list] = {}
        for op in operations:
            if op.name == "func.call":
                name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                self._callers.setdefault(name, []).append(op)
        self._values: dict[str, list] = {}
        bodies = Counter(_hash(op) for op, _ in tally.calls) if values else {}
        for body, known in values:
            self._values.setdefault(body, []).append(known)
        for body, known in self._values.items():
            if len(known) != bodies[body]:
                known.clear()  # which of them is meant cannot be told
        calls = [self._pallas_call(op, times, decoded) for op, times in tally.calls]
        targets = {custom_target(op) for op in operations} - {None}
        self.program = Program(
            targets=frozenset(targets),
            constant_bytes=sum(map(_constant_bytes, operations)),
            annotations=frozenset(_annotations(main)),
            calls=tuple(calls),
            outside=tally.work,
            arguments=frozenset(arguments),
            trips=self._trips,
            slices=frozenset(
                shape(op.results[0].type if op.name == _SLICES[0] else op.operands[1].type)
                for op in operations
                if op.name in _SLICES
            ),
        )

    def _function(self, name: str) -> _Tally:
        """What one call of a function does."""
        if name not in self._tallies:
            tally = self._tallies[name] = _Tally()
            for block in self._functions[name].regions[0].blocks:
                self._block(block, 1, tally)
        return self._tallies[name]

    def _block(self, block, times: float, tally: _Tally) -> None:
        for view in block.operations:
            operation = view.operation
            if key(operation) not in self._needed:
                continue
            name = operation.name
            if name == "func.call":
                callee = self._function(ir.FlatSymbolRefAttr(operation.attributes["callee"]).value)
                tally.work.add(callee.work, times)
                tally.calls += [(op, times * often) for op, often in callee.calls]
            elif custom_target(operation) == "tpu_custom_call":
                tally.calls.append((operation, times))
            elif name == "stablehlo.while":
                trips = trip_count(operation)
                inner = _Tally()
                for region in operation.regions:
                    for body in region.blocks:
                        self._block(body, 1, inner)
                if trips is None:
                    trips, known = 1, not inner.work.total and not inner.calls
                    inner.work.known = inner.work.known and known
                else:
                    self._trips[trips] += 1
                tally.work.add(inner.work, times * trips)
                tally.calls += [(op, often * times * trips) for op, often in inner.calls]
            elif tally.work.count(operation, times):
                continue  # the regions of a reduction say what it does to each element
            else:
                for region in operation.regions:
                    for inner in region.blocks:
                        self._block(inner, times, tally)

    def _pallas_call(self, operation, times: float, decoded: dict) -> PallasCall:
        operands, results = list(operation.operands), list(operation.results)
        place = key(operation)
        given = self._values.get(_hash(operation)) if self._values else None
        known = given.pop(0) if given else {}
        if known or place not in decoded:
            words = [
                known[n].astype(np.int64) if n in known else self._constant(value)
                for n, value in enumerate(operands)
            ]
            try:
                body = mosaic_body(operation)
                decoded[place] = mosaic.read(body, len(operands), len(results), words)
            except Exception:
                decoded[place] = None
        kernel = decoded[place]
        arrays = operands[len(operands) - kernel.operands :] if kernel else operands
        kinds = [value.type for value in (*arrays, *results)]
        name = (
            operation.attributes["kernel_name"] if "kernel_name" in operation.attributes else None
        )
        return PallasCall(
            name=ir.StringAttr(name).value if name else "",
            times=times,
            operands=tuple(map(key, arrays)),
            shapes=tuple(map(shape, kinds)),
            bytes=tuple(math.prod(shape(k)) * bits(k) // 8 for k in kinds),
            aliased=_aliased(operation, len(results)),
            plain_layouts=all(map(_row_by_row, _layouts(operation))),
            kernel=kernel,
        )

    def _constant(self, value) -> np.ndarray | None:
        """The integers that a value always has, if it is a constant; also a function's argument."""
        if isinstance(value.owner, ir.Block):
            function = value.owner.owner.operation
            if function.name != "func.func":
                return None
            callers = self._callers.get(ir.StringAttr(function.attributes["sym_name"]).value, [])
            number = ir.BlockArgument(value).arg_number
            return self._constant(callers[0].operands[number]) if len(callers) == 1 else None
        operation = value.owner.operation
        if operation.name != "stablehlo.constant":
            return None
        attribute = operation.attributes["value"]
        if not isinstance(attribute, ir.DenseIntElementsAttr):
            return None
        return np.array(attribute).astype(np.int64).reshape(shape(value.type))


def _needed(operations, functions) -> tuple[set[int], set[int]]:
    """Operations and arguments on which the public function's results depend.

    A function that is called and an operation with regions count as needed with all that they
    hold: coarser than the truth, but never blind to a dependency.
    """
    main = functions["main"].regions[0].blocks[0]
    arguments = {key(argument): number for number, argument in enumerate(main.arguments)}
    needed: set[int] = set()
    used: set[int] = set()
    todo = [op.operation for op in main.operations if op.operation.name == "func.return"]
    while todo:
        operation = todo.pop()
        if key(operation) in needed:
            continue
        needed.add(key(operation))
        for operand in operation.operands:
            if not isinstance(operand.owner, ir.Block):
                todo.append(operand.owner.operation)
            elif key(operand) in arguments:
                used.add(arguments[key(operand)])
        if operation.name == "func.call":
            callee = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
            for block in functions[callee].regions[0].blocks:
                todo += [o.operation for o in block.operations if o.name == "func.return"]
        else:
            for region in operation.regions:
                todo += [inner.operation for block in region.blocks for inner in block.operations]
    return needed, used


def _constant_bytes(operation) -> int:
    if operation.name != "stablehlo.constant":
        return 0
    try:
        if ir.DenseElementsAttr(operation.attributes["value"]).is_splat:
            return 0
    except ValueError:
        pass  # a resource: never a splat
    kind = operation.results[0].type
    return math.prod(shape(kind)) * bits(kind) // 8


def _annotations(main) -> set[str]:
    """Names of the attributes on a function's arguments and results."""
    names = set()
    for group in ("arg_attrs", "res_attrs"):
        if group in main.attributes:
            for entry in ir.ArrayAttr(main.attributes[group]):
                names |= {named.name for named in ir.DictAttr(entry)}
    return names


# ------------------------------------------------------------------------------- Pallas calls


def mosaic_body(operation) -> str:
    """The Mosaic module of a `tpu_custom_call`, as the text that is in it."""
    config = json.loads(ir.StringAttr(operation.attributes["backend_config"]).value)
    return config["custom_call_config"]["body"]


def _hash(operation) -> str:
    return kernel_hash(mosaic_body(operation))


def _layouts(operation) -> Iterator[list[int]]:
    for name in ("operand_layouts", "result_layouts"):
        if name in operation.attributes:
            for layout in ir.ArrayAttr(operation.attributes[name]):
                yield [int(axis) for axis in ir.DenseIntElementsAttr(layout)]


def _row_by_row(layout: list[int]) -> bool:
    return layout == list(range(len(layout)))[::-1]


def _aliased(operation, results: int) -> frozenset[int]:
    """Results that share memory with an operand."""
    if "output_operand_aliases" not in operation.attributes:
        return frozenset()
    found = set()
    for alias in ir.ArrayAttr(operation.attributes["output_operand_aliases"]):
        inside = str(alias).partition("output_tuple_indices = [")[2].partition("]")[0]
        found.add(int(inside) if inside.strip() else 0)
    return frozenset(found)
