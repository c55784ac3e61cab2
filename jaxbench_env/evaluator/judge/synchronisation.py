"""The order in which a kernel starts copies, waits, signals and touches its memory.

A race is looked for in a simulated run at a small size. It says something about the full size if
the kernel does there what it did in that run: the same copies, waits and signals on the same
buffers and slots, in the same order between the same loads and stores, under the same conditions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

from jaxbench_env.evaluator.judge.trips import key

# Distance of a constant from a trip count, and of a step from its neighbours in double buffering.
NEAR = 2
VIEWS = ("tpu.memref_", "memref.subview", "memref.cast", "memref.reshape", "tpu.reinterpret")
# A constant that is the same at both sizes decides nothing here: a slot, a stride, a place.
_FIXED = (*VIEWS, "memref.load", "arith.muli")


@dataclass(frozen=True)
class Outline:
    """What a kernel does to synchronise.

    Attributes:
        steps: Nested tuples: loops, conditions, synchronisation, and what is read and written
            between.
        extents: Trip counts of its grid and of its counted loops.
    """

    steps: tuple
    extents: frozenset[int]


def outline(function, grid: Sequence[int], known: Mapping[int, object]) -> Outline | None:
    """The outline of a kernel; None if it neither copies nor signals by itself.

    Args:
        function: The kernel, whose context must be entered.
        grid: Its iteration bounds.
        known: By key of an ``scf.if``, the values of its condition over the iteration space; by
            key of an ``scf.for``, its trip count. None or missing where that is not known.
    """
    writer = _Writer(known)
    block = function.regions[0].blocks[0]
    for number, argument in enumerate(block.arguments):
        writer.nodes[hash(argument)] = ("argument", number)
    steps, own = writer.block(block)
    trips = {n for n in known.values() if isinstance(n, int)}
    return Outline(steps, frozenset({*grid, math.prod(grid), *trips})) if own else None


def differ(full: Outline, checked: Outline) -> str:
    """How the outline at full size differs from one that was simulated; empty if it does not."""
    return _Comparison(full.extents, checked.extents).steps(full.steps, checked.steps)


def _synchronises(name: str) -> bool:
    return name.startswith("tpu.") and any(w in name for w in ("enqueue", "wait", "sem_", "barr"))


class _Writer:
    """Writes blocks as nested tuples; integers as the expressions that they come from."""

    def __init__(self, known):
        self.nodes: dict[int, tuple] = {}
        self._known = known
        self._made = 0

    def block(self, block) -> tuple[tuple, bool]:
        """Its steps, and whether it synchronises."""
        steps, touched, own = [], set(), False

        def flush():
            if touched:
                steps.append(("touches", *sorted(touched, key=str)))
                touched.clear()

        for view in block.operations:
            operation = view.operation
            name = operation.name
            if len(operation.regions):
                step, inner, inside = self._region(operation)
                if inside:
                    flush()
                    steps.append(step)
                    own = True
                else:
                    touched |= inner
            elif name in ("scf.yield", "tpu.yield", "scf.condition"):
                flush()
                steps.append(("yields", *map(self.node, _integers(operation.operands))))
            elif _synchronises(name) and name != "tpu.sem_alloc":
                flush()
                steps.append((name, *map(self.node, operation.operands)))
                own = True
            else:
                touched |= self._touches(operation)
        flush()
        return tuple(_in_any_order(steps)), own

    def _region(self, operation) -> tuple[tuple, set, bool]:
        """An operation with regions: as a step, what it touches, whether it synchronises."""
        name, known = operation.name, self._known.get(key(operation))
        self._made += 1
        number, parts, inside = self._made, [], False
        for region in operation.regions:
            for block in region.blocks:
                for place, argument in enumerate(block.arguments):
                    self.nodes[hash(argument)] = ("carried", number, place)
                steps, own = self.block(block)
                parts.append(steps)
                inside = inside or own
        for place, result in enumerate(operation.results):
            self.nodes[hash(result)] = ("result", number, place)
        touched = set(_touched(parts))
        if not inside:
            self._made = number - 1  # what does not synchronise is not numbered
            return (), touched, False
        when = _share(known) if name == "scf.if" else known if name == "scf.for" else None
        operands = tuple(map(self.node, _integers(operation.operands)))
        return (name, when, operands, *parts), touched, True

    def _touches(self, operation) -> set:
        name = operation.name
        if name.startswith(VIEWS) or name in ("memref.alloca", "tpu.sem_alloc"):
            return set()
        kind = "write" if "store" in name else "read"
        return {
            (kind, self._root(o)) for o in operation.operands if str(o.type).startswith("memref")
        }

    def _root(self, memref) -> tuple:
        """The buffer of which a value is a view."""
        while not isinstance(memref.owner, ir.Block):
            operation = memref.owner.operation
            if not operation.name.startswith(VIEWS):
                break
            memref = operation.operands[0]
        return self.node(memref)

    def node(self, value) -> tuple:
        """What a value comes from."""
        found = self.nodes.get(hash(value))
        if found is None:
            found = self.nodes[hash(value)] = self._node(value)
        return found

    def _node(self, value) -> tuple:
        if isinstance(value.owner, ir.Block):
            return ("unknown",)
        operation = value.owner.operation
        name = operation.name
        if name == "arith.constant":
            attribute = operation.attributes["value"]
            if isinstance(attribute, ir.BoolAttr):
                return ("constant", int(attribute.value))
            if isinstance(attribute, ir.IntegerAttr):
                return ("constant", attribute.value)
            return ("unknown",)
        if name in ("memref.alloca", "tpu.sem_alloc"):
            self._made += 1
            return ("buffer", self._made)
        if name.startswith(VIEWS):
            root = self._root(value)
            if "any>" in str(value.type) or "hbm>" in str(value.type):
                return root  # which part of an array in HBM is a question of the numbers
            return (name, *map(self.node, operation.operands))
        predicate = operation.attributes["predicate"] if "predicate" in operation.attributes else ""
        return (name, str(predicate), *map(self.node, operation.operands))


def _integers(values) -> list:
    return [v for v in values if isinstance(v.type, (ir.IntegerType, ir.IndexType))]


def _in_any_order(steps: list[tuple]) -> list[tuple]:
    """Steps with the waits, and the starts, that follow each other sorted by their slots."""
    sorted_steps: list[tuple] = []
    for name, run in itertools.groupby(steps, key=lambda step: step[0]):
        run = list(run)
        if "wait" in name or "enqueue" in name:
            run.sort(key=lambda step: [_slots(operand) for operand in step[1:]])
        sorted_steps += run
    return sorted_steps


def _slots(node: tuple, depth: int = 4) -> list[int]:
    """Constants among the indices of a view."""
    if node[:1] == ("constant",):
        return [node[1]]
    if not depth or not node or not str(node[0]).startswith(VIEWS):
        return []
    return [slot for child in node[1:] for slot in _slots(child, depth - 1)]


def _is_fixed(node: tuple) -> bool:
    """Whether constants among a node's operands decide nothing if they are the same."""
    if not node or node[0] != "arith.addi":
        return bool(node) and str(node[0]).startswith(_FIXED)
    _, _, *terms = node  # the end of a block: i * size + size
    return any(term[0] == "arith.muli" and set(term[2:]) & set(terms) for term in terms)


def _touched(parts):
    """All reads and writes in steps."""
    for part in parts:
        if isinstance(part, tuple):
            if part and part[0] == "touches":
                yield from part[1:]
            else:
                yield from _touched(part)


def _share(condition: np.ndarray | None) -> str | None:
    """How often a condition holds."""
    if condition is None:
        return None
    return "always" if condition.all() else "sometimes" if condition.any() else "never"


class _Comparison:
    """Compares steps; remembers pairs of expressions that are the same."""

    def __init__(self, full: frozenset[int], checked: frozenset[int]):
        self._full, self._checked = full, checked
        self._same: dict[tuple[int, int], bool] = {}

    def steps(self, full: tuple, checked: tuple) -> str:
        """How two lists of steps differ; empty if they do not."""
        for one, other in zip(full, checked, strict=False):
            if one[0] != other[0]:
                return f"{_named(one)} stands where {_named(other)} stood"
            found = (
                self._region(one, other)
                if one[0].startswith(("scf.", "tpu.region"))
                else ("" if self._alike(one, other) else f"{_named(one)} is another one")
            )
            if found:
                return found
        if len(full) != len(checked):
            longer = max(full, checked, key=len)
            return f"{_named(longer[min(len(full), len(checked))])} is there at one size alone"
        return ""

    def _region(self, one: tuple, other: tuple) -> str:
        (name, when, operands, *parts), (_, its, others, *other_parts) = one, other
        if name == "scf.if":
            if when != its:
                words = [w or "depending on data" for w in (when, its)]
                return f"what a condition guards is done {words[0]}, and was {words[1]}"
            if when in (None, "sometimes") and not self._alike(operands, others):
                return "a condition is another one"
        elif name == "scf.for":
            if (when == 0) != (its == 0):
                return "a loop runs at one size alone"
            # a trip count is the size's, and what is carried into a loop is not
            if not self._alike(operands[3:], others[3:]):
                return "a loop starts with another state"
        elif not self._alike(operands, others):
            return "a loop starts with another state"
        if len(parts) != len(other_parts):
            return "a condition has a branch at one size alone"
        for part, other_part in zip(parts, other_parts, strict=True):
            found = self.steps(part, other_part)
            if found:
                return found
        return ""

    def _alike(self, one, other) -> bool:
        if not isinstance(one, tuple) or not isinstance(other, tuple):
            return one == other
        pair = id(one), id(other)
        if pair not in self._same:
            if one[:1] == other[:1] == ("constant",):
                return self._constants(one[1], other[1])
            fixed = _is_fixed(one)
            self._same[pair] = len(one) == len(other) and all(
                (fixed and a == b and a[:1] == ("constant",)) or self._alike(a, b)
                for a, b in zip(one, other, strict=True)
            )
        return self._same[pair]

    def _constants(self, one: int, other: int) -> bool:
        """Whether two constants mean the same.

        They do if both are a number that the simulated run has passed, or are as far from a trip
        count.
        """
        if one == other and abs(one) <= max(NEAR, *self._checked):
            return True
        near = range(-NEAR, NEAR + 1)
        return any(one + d in self._full and other + d in self._checked for d in near)


def _named(step: tuple) -> str:
    names = {
        "touches": "a load or store",
        "scf.if": "a condition",
        "scf.for": "a loop",
        "scf.while": "a loop",
        "yields": "a loop's end",
    }
    return names.get(step[0], step[0].removeprefix("tpu.").replace("_", " "))
