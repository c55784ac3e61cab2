"""Integer arithmetic of a Mosaic module, for all grid steps at once.

Every value is a numpy array over the axes of the iteration space: one axis for each dimension of
the grid and one for each counted loop around. A value that does not depend on an axis has length 1
there, so a program with millions of steps costs what its index maps depend on. What cannot be
known (vectors, memory without values) is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

MAX_ELEMENTS = 1 << 22  # of one value; beyond that it counts as not known

Value = np.ndarray | None


def along(axis: int, length: int) -> np.ndarray:
    """0, 1, ..., length - 1 along an axis."""
    return np.arange(length, dtype=np.int64).reshape((1,) * axis + (length,))


def aligned(*values: np.ndarray) -> list[np.ndarray]:
    """The values with trailing axes of length 1, so that all have the same number of axes."""
    rank = max(v.ndim for v in values)
    return [v.reshape(v.shape + (1,) * (rank - v.ndim)) for v in values]


def affordable(*values: np.ndarray) -> bool:
    """Whether the values can be broadcast against each other within `MAX_ELEMENTS`."""
    return _size(np.broadcast_shapes(*(v.shape for v in aligned(*values)))) <= MAX_ELEMENTS


def _size(shape: Sequence[int]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _divide(a, b):
    """Division that rounds towards zero, as the machine's does."""
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _unsigned(a):
    return a & 0xFFFFFFFF


_BINARY: dict[str, Callable] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": _divide,
    "arith.divui": lambda a, b: _unsigned(a) // _unsigned(b),
    "arith.remsi": lambda a, b: a - b * _divide(a, b),
    "arith.remui": lambda a, b: _unsigned(a) % _unsigned(b),
    "arith.floordivsi": lambda a, b: a // b,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": lambda a, b: np.maximum(_unsigned(a), _unsigned(b)),
    "arith.minui": lambda a, b: np.minimum(_unsigned(a), _unsigned(b)),
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.shli": lambda a, b: a << (b & 31),
    "arith.shrsi": lambda a, b: a >> (b & 31),
    "arith.shrui": lambda a, b: _unsigned(a) >> (b & 31),
}
_DIVIDES = {name for name in _BINARY if "div" in name or "rem" in name}
# arith.cmpi's predicates by number: eq ne slt sle sgt sge ult ule ugt uge
_COMPARE = (
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
    lambda a, b: _unsigned(a) < _unsigned(b), lambda a, b: _unsigned(a) <= _unsigned(b),
    lambda a, b: _unsigned(a) > _unsigned(b), lambda a, b: _unsigned(a) >= _unsigned(b),
)  # fmt: skip
_SAME = {"arith.index_cast", "arith.extsi", "arith.index_castui", "tpu.assume_multiple"}


class Scalars:
    """Values of the scalars of one kernel or index map.

    Args:
        memory: Words of scalar-memory arguments, by the argument's key; row-major, as integers,
            with the argument's shape.
    """

    def __init__(self, memory: Mapping[int, np.ndarray] | None = None):
        """Knows nothing yet."""
        self._known: dict[int, Value] = {}
        self._memory = dict(memory or {})

    def __getitem__(self, value: ir.Value) -> Value:
        """What is known of an SSA value."""
        return self._known.get(hash(value))

    def __setitem__(self, value: ir.Value, known: Value) -> None:
        """Sets what is known of an SSA value."""
        self._known[hash(value)] = known

    def constant(self, value: ir.Value) -> int | None:
        """The integer that a value always is, if it is known to be one."""
        known = self[value]
        return int(known.reshape(-1)[0]) if known is not None and known.size == 1 else None

    def remember(self, argument: ir.Value, words: np.ndarray) -> None:
        """Gives a scalar-memory argument its words."""
        self._memory[hash(argument)] = words

    def run(self, operation) -> None:
        """Evaluates one operation without regions, as far as it is integer arithmetic."""
        results = list(operation.results)
        if len(results) != 1 or not _is_integer(results[0].type):
            return
        value = self._evaluate(operation)
        if value is not None:
            self[results[0]] = _wrapped(value, results[0].type)

    def _evaluate(self, operation) -> Value:
        name, operands = operation.name, list(operation.operands)
        if name == "arith.constant":
            return np.array(_constant(operation.attributes["value"]), np.int64).reshape(())
        if name == "memref.load":
            return self._load(operands)
        known = [self[operand] for operand in operands]
        if any(k is None for k in known):
            return None
        if not affordable(*known):
            return None
        known = aligned(*known)
        if name in _BINARY:
            if name in _DIVIDES and not known[1].all():
                return None
            return _BINARY[name](*known)
        if name == "arith.cmpi":
            predicate = ir.IntegerAttr(operation.attributes["predicate"]).value
            return _COMPARE[predicate](*known).astype(np.int64)
        if name == "arith.select":
            return np.where(known[0] != 0, known[1], known[2])
        if name == "arith.extui":
            width = operands[0].type.width
            return known[0] & ((1 << width) - 1)
        if name == "arith.trunci" or name in _SAME:
            return known[0]
        if name == "math.absi":
            return np.abs(known[0])
        return None

    def _load(self, operands) -> Value:
        words = self._memory.get(hash(operands[0]))
        places = [self[operand] for operand in operands[1:]]
        if words is None or any(p is None for p in places):
            return None
        if not places:
            return words.reshape(())
        if not affordable(*places):
            return None
        places = aligned(*places)
        inside = [
            (0 <= p).all() and (p < n).all() for p, n in zip(places, words.shape, strict=True)
        ]
        return words[tuple(places)] if all(inside) else None


def _is_integer(kind) -> bool:
    return isinstance(kind, (ir.IntegerType, ir.IndexType))


def _constant(attribute) -> int:
    if isinstance(attribute, ir.BoolAttr):
        return int(ir.BoolAttr(attribute).value)
    return ir.IntegerAttr(attribute).value


def _wrapped(value: np.ndarray, kind) -> np.ndarray:
    """The value as so many bits hold it: signed, booleans as 0 and 1."""
    width = kind.width if isinstance(kind, ir.IntegerType) else 32
    if width == 1:
        return value & 1
    half = 1 << (width - 1)
    return ((value + half) & ((1 << width) - 1)) - half if width < 64 else value
