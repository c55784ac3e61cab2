"""Cuts the part out of a StableHLO program that given values depend on.

The part is a straight program of its own: functions are inlined, everything else is left out, and
only operations of an allow-list are in it, so that running it runs nothing else. What it costs is
known before it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

KERNEL = "tpu_custom_call"
MAX_STEPS = 100_000  # operations and calls looked at
MAX_WORK = 5 * 10**9  # elements computed, products of matrix products included
MAX_BYTES = 2 << 30  # of all values together, each once

_ALLOWED = frozenset(
    f"stablehlo.{name}"
    for name in """abs add and bitcast_convert broadcast_in_dim case ceil clamp compare concatenate
    constant convert count_leading_zeros divide dot_general dynamic_slice dynamic_update_slice
    exponential exponential_minus_one floor gather if iota is_finite log log_plus_one logistic map
    maximum minimum multiply negate not or pad popcnt power reduce reduce_window remainder reshape
    return reverse round_nearest_afz round_nearest_even rsqrt scatter select shift_left
    shift_right_arithmetic shift_right_logical sign slice sort sqrt subtract tanh transpose while
    xor""".split()
) | {"func.call", "func.return"}


class NoValues(Exception):
    """The values cannot be computed beforehand; says why, as the end of a sentence."""


@dataclass(frozen=True, eq=False, repr=False)
class Frame:
    """One call of a function: what its arguments are, in the frame of the caller."""

    block: ir.Block
    arguments: tuple[Node, ...] = ()


Node = tuple[ir.Value, Frame]


@dataclass(frozen=True, eq=False, repr=False)
class Call:
    """A place at which a kernel is called.

    Attributes:
        operation: The custom call.
        frame: Where it is.
        nested: Whether it is inside a loop or a branch.
    """

    operation: ir.Operation
    frame: Frame
    nested: bool


@dataclass
class Part:
    """A program cut out of another.

    Attributes:
        module: The program: a public function `main`.
        arguments: Indices of the arguments of the other program that are its arguments.
    """

    module: ir.Module
    arguments: tuple[int, ...]


@dataclass
class Slicer:
    """Looks at one module; the context of its bindings must be entered.

    Raises:
        NoValues: From all methods, if the program is too large to be looked at.
    """

    module: ir.Module
    _functions: dict[str, ir.Operation] = field(default_factory=dict)
    _frames: dict[tuple[ir.Operation, Frame], Frame] = field(default_factory=dict)
    _steps: int = 0

    def __post_init__(self) -> None:
        """Finds the functions."""
        for operation in self.module.body.operations:
            if operation.operation.name == "func.func":
                name = ir.StringAttr(operation.attributes["sym_name"]).value
                self._functions[name] = operation.operation
        self.main = Frame(_body(self._functions["main"]))

    # ---- what depends on what

    def results(self) -> list[Node]:
        """The results of the program."""
        return [(value, self.main) for value in _terminator(self.main.block).operands]

    def calls(self) -> list[Call]:
        """The kernel calls on which the results depend, in the order of the program."""
        needed = self._reach(self.results())
        found: list[Call] = []
        self._find_calls(self.main, needed, found)
        return found

    def _find_calls(self, frame: Frame, needed: set, found: list[Call]) -> None:
        for each in frame.block.operations:
            operation = each.operation
            self._step()
            if operation.name == "func.call" or _is_composite(operation):
                inner = self._enter(operation, frame)
                self._find_calls(inner, needed, found)
            elif (operation, frame) not in needed:
                continue
            elif _is_kernel(operation):
                found.append(Call(operation, frame, nested=False))
            elif len(operation.regions):
                found += [Call(one, frame, nested=True) for one in self._kernels_within(operation)]

    def _kernels_within(self, operation: ir.Operation) -> list[ir.Operation]:
        inner = [one for one in self._walk_calls(operation, set())]
        return [one for one in inner if _is_kernel(one)]

    def _walk_calls(self, operation: ir.Operation, seen: set[str]) -> Iterator[ir.Operation]:
        """An operation with all inside it, and inside the functions that it calls."""
        for one in walk(operation):
            self._step()
            yield one
            name = _callee(one)
            if name is not None and name not in seen:
                seen.add(name)
                yield from self._walk_calls(self._function(name), seen)

    def depends_on(self, call: Call) -> set[tuple[ir.Operation, Frame]]:
        """The operations on which the operands of a call depend, in their frames."""
        return self._reach([(value, call.frame) for value in call.operation.operands])

    def _reach(self, nodes: Sequence[Node]) -> set[tuple[ir.Operation, Frame]]:
        seen: set[tuple[ir.Operation, Frame]] = set()
        todo = list(nodes)
        while todo:
            value, frame = self._resolve(*todo.pop())
            if isinstance(value, ir.BlockArgument):
                continue
            operation = value.owner.operation
            if (operation, frame) not in seen:
                self._step()
                seen.add((operation, frame))
                todo += [(one, frame) for one in self._reads(operation)]
        return seen

    def _resolve(self, value: ir.Value, frame: Frame) -> Node:
        """Where a value comes from: through calls and barriers, to an operation or an argument."""
        while True:
            self._step()
            if isinstance(value, ir.BlockArgument):
                if frame is self.main:
                    return value, frame
                value, frame = frame.arguments[value.arg_number]
                continue
            operation = value.owner.operation
            number = ir.OpResult(value).result_number
            if operation.name == "func.call" or _is_composite(operation):
                frame = self._enter(operation, frame)
                value = _terminator(frame.block).operands[number]
            elif operation.name == "stablehlo.optimization_barrier":
                value = operation.operands[number]
            else:
                return value, frame

    def _enter(self, operation: ir.Operation, frame: Frame) -> Frame:
        """The frame of a call."""
        key = (operation, frame)
        if key not in self._frames:
            self._step()
            body = _body(self._function(_callee(operation)))
            arguments = tuple((value, frame) for value in operation.operands)
            self._frames[key] = Frame(body, arguments)
        return self._frames[key]

    def _function(self, name: str | None) -> ir.Operation:
        if name not in self._functions or name == "main":
            raise NoValues(f"they call {name!r}, which is no function of the program")
        return self._functions[name]

    @staticmethod
    def _reads(operation: ir.Operation) -> list[ir.Value]:
        """Values of the same function that an operation reads, also deep inside its regions."""
        if not len(operation.regions):
            return list(operation.operands)
        inside = list(walk(operation))
        own = {one for one in inside[1:]}
        blocks = {block for one in inside for region in one.regions for block in region.blocks}
        found = []
        for one in inside:
            for value in one.operands:
                owner = value.owner
                if isinstance(owner, ir.Block):
                    outside = owner not in blocks
                else:
                    outside = owner.operation not in own
                if outside:
                    found.append(value)
        return found

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise NoValues("the program is too long")

    # ---- cutting out

    def cut(self, nodes: Sequence[Node]) -> Part:
        """The part of the program that computes the given values.

        Raises:
            NoValues: If they depend on a kernel, on an operation that is not allowed, or cost too
                much.
        """
        order, arguments = self._ordered(nodes)
        cost = Cost(self)
        for operation, _ in order:
            cost.add(operation)
        return Part(self._emit(nodes, order, arguments), arguments)

    def _ordered(
        self, nodes: Sequence[Node]
    ) -> tuple[list[tuple[ir.Operation, Frame]], tuple[int, ...]]:
        """What nodes depend on: operations, each after those that it depends on, and arguments."""
        order: list[tuple[ir.Operation, Frame]] = []
        arguments: set[int] = set()
        done: set[tuple[ir.Operation, Frame]] = set()
        todo: list[tuple[Node | tuple[ir.Operation, Frame], bool]] = [(n, False) for n in nodes]
        while todo:
            node, visited = todo.pop()
            if visited:
                if node not in done:
                    done.add(node)
                    order.append(node)
                continue
            value, frame = self._resolve(*node)
            if isinstance(value, ir.BlockArgument):
                arguments.add(value.arg_number)
                continue
            operation = value.owner.operation
            if (operation, frame) not in done:
                self._step()
                self._check(operation)
                todo.append(((operation, frame), True))
                todo += [((one, frame), False) for one in self._reads(operation)]
        return order, tuple(sorted(arguments))

    def _check(self, operation: ir.Operation) -> None:
        for one in self._walk_calls(operation, set()):
            if _is_kernel(one):
                raise NoValues("they depend on the result of a Pallas call")
            if one.name not in _ALLOWED and not (one is not operation and one.name == "func.func"):
                raise NoValues(f"they depend on {one.name}")

    def _emit(
        self,
        nodes: Sequence[Node],
        order: Sequence[tuple[ir.Operation, Frame]],
        arguments: Sequence[int],
    ) -> ir.Module:
        module = ir.Module.create()
        old = self.main.block.arguments
        kinds = [self._resolve(*node)[0].type for node in nodes]
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ([old[i].type for i in arguments], kinds))
        main.attributes["sym_visibility"] = ir.StringAttr.get("public")
        entry = main.add_entry_block()
        new: dict[Node, ir.Value] = {}
        for place, index in enumerate(arguments):
            new[(old[index], self.main)] = entry.arguments[place]
        functions: set[str] = set()
        with ir.InsertionPoint(entry):
            for operation, frame in order:
                clone = operation.clone().operation
                for original, copied in zip(walk(operation), walk(clone), strict=True):
                    _strip(copied)
                    for index, value in enumerate(original.operands):
                        if original is operation or copied.operands[index] == value:
                            found = new.get(self._resolve(value, frame))
                            if found is not None:
                                copied.operands[index] = found
                for before, after in zip(operation.results, clone.results, strict=True):
                    new[(before, frame)] = after
                if len(operation.regions):
                    functions |= {_callee(one) for one in self._walk_calls(operation, set())}
            func.ReturnOp([new[self._resolve(*node)] for node in nodes])
        with ir.InsertionPoint(module.body):
            for name in sorted(filter(None, functions)):
                copied = self._function(name).clone().operation
                for one in walk(copied):
                    _strip(one)
        if not module.operation.verify():
            raise NoValues("the part of the program that computes them is malformed")
        return module


class Cost:
    """Work and bytes of operations, loops included; raises `NoValues` beyond the bounds."""

    def __init__(self, slicer: Slicer) -> None:
        """Starts at nothing."""
        self._slicer = slicer
        self._functions: dict[str, int] = {}
        self.work = self.bytes = 0

    def add(self, operation: ir.Operation) -> None:
        """Adds one operation with all that it holds."""
        self.work += self._work(operation)
        self.bytes += sum(_bytes(value.type) for value in operation.results)
        if self.work > MAX_WORK or self.bytes > MAX_BYTES:
            raise NoValues("computing them takes too long")

    def _work(self, operation: ir.Operation) -> int:
        name = operation.name.removeprefix("stablehlo.")
        size = sum(_elements(value.type) for value in [*operation.results, *operation.operands])
        if name == "dot_general":
            left, right = (_elements(one.type) for one in operation.operands)
            out = _elements(operation.results[0].type)
            return size + math.isqrt(left * right * max(out, 1)) * 2
        if name == "func.call":
            return size + 1 + self._function(_callee(operation))
        inner = sum(
            self._work(one.operation)
            for region in operation.regions
            for block in region.blocks
            for one in block.operations
        )
        if name == "while":
            return size + (1 + inner) * self._trips(operation)
        if name == "sort":
            return size * (1 + inner) * 32
        if name == "reduce_window":
            window = math.prod(ir.DenseI64ArrayAttr(operation.attributes["window_dimensions"]))
            return size * (1 + inner) * window
        return size * (1 + inner) + 1

    def _function(self, name: str) -> int:
        if name not in self._functions:
            self._functions[name] = MAX_WORK + 1  # a recursion is endless
            block = _body(self._slicer._function(name))
            self._functions[name] = sum(self._work(one.operation) for one in block.operations)
        return self._functions[name]

    def _trips(self, loop: ir.Operation) -> int:
        """Repetitions of a loop that counts from a constant to a constant by a constant.

        Raises:
            NoValues: If it does anything else.
        """
        test = _terminator(loop.regions[0].blocks[0]).operands[0]
        compare = _producer(test, "stablehlo.compare")
        if compare is not None and "LT" in str(compare.attributes["comparison_direction"]):
            counter, limit = compare.operands
            stop = self._constant(limit, loop)
            if isinstance(counter, ir.BlockArgument) and stop is not None:
                index = counter.arg_number
                start = self._constant(loop.operands[index], loop)
                body = loop.regions[1].blocks[0]
                add = _producer(_terminator(body).operands[index], "stablehlo.add")
                if add is not None and start is not None:
                    steps = [self._constant(one, loop) for one in add.operands]
                    carried = [one == body.arguments[index] for one in add.operands]
                    step = next(
                        (s for s, c in zip(steps, carried[::-1], strict=True) if s and c), 0
                    )
                    if step > 0:
                        return max(0, -(-(stop - start) // step))
        raise NoValues("they come out of a loop whose length is not a constant")

    @staticmethod
    def _constant(value: ir.Value, loop: ir.Operation) -> int | None:
        """The integer that a value always has, also one that a loop carries unchanged."""
        if isinstance(value, ir.BlockArgument):
            return None
        operation = value.owner.operation
        if operation.name in ("stablehlo.convert", "stablehlo.reshape"):
            return Cost._constant(operation.operands[0], loop)
        if operation.name != "stablehlo.constant" or _elements(value.type) != 1:
            return None
        try:
            return int(ir.DenseIntElementsAttr(operation.attributes["value"])[0])
        except (ValueError, TypeError):
            return None


def walk(operation: ir.Operation) -> Iterator[ir.Operation]:
    """An operation and all inside it, in order."""
    yield operation.operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from walk(inner.operation)


def _body(function: ir.Operation) -> ir.Block:
    blocks = list(function.regions[0].blocks)
    if len(blocks) != 1:
        raise NoValues("a function of the program has no body")
    return blocks[0]


def _terminator(block: ir.Block) -> ir.Operation:
    return list(block.operations)[-1].operation


def _producer(value: ir.Value, name: str) -> ir.Operation | None:
    if isinstance(value, ir.BlockArgument) or value.owner.operation.name != name:
        return None
    return value.owner.operation


def _is_kernel(operation: ir.Operation) -> bool:
    if operation.name != "stablehlo.custom_call":
        return False
    return ir.StringAttr(operation.attributes["call_target_name"]).value == KERNEL


def _is_composite(operation: ir.Operation) -> bool:
    return operation.name == "stablehlo.composite"


def _callee(operation: ir.Operation) -> str | None:
    attribute = {"func.call": "callee", "stablehlo.composite": "decomposition"}.get(operation.name)
    return ir.FlatSymbolRefAttr(operation.attributes[attribute]).value if attribute else None


def _strip(operation: ir.Operation) -> None:
    """Removes what only says how to place an operation on several chips."""
    for name in [str(one) for one in operation.attributes]:
        if name.startswith(("mhlo.", "sdy.", "xla.")):
            del operation.attributes[name]


def _elements(kind: ir.Type) -> int:
    """Elements of a type; scalars, tokens and the like count one."""
    try:
        shaped = ir.ShapedType(kind)
    except ValueError:
        return 1
    if not shaped.has_static_shape:
        raise NoValues("the program has shapes that are not known")
    return math.prod(shaped.shape)


def _bytes(kind: ir.Type) -> int:
    try:
        element = str(ir.ShapedType(kind).element_type)
    except ValueError:
        return 8
    bits = int("".join(c for c in element if c.isdigit())[:3] or 8)
    return _elements(kind) * max(bits, 8) // 8
