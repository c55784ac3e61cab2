"""How often a StableHLO loop runs, where that follows from constants."""

from __future__ import annotations

import operator

from jaxlib.mlir import ir

from jaxbench_env.evaluator.judge.work import shape


def key(operation) -> int:
    """A key for an operation or value: the bindings make a new Python object at every access."""
    return hash(operation.operation if hasattr(operation, "operation") else operation)


_FOLDED = {
    "stablehlo.add": operator.add,
    "stablehlo.subtract": operator.sub,
    "stablehlo.multiply": operator.mul,
    "stablehlo.maximum": max,
    "stablehlo.minimum": min,
}


def _integer(value) -> int | None:
    """The integer that a scalar always is, if that follows from constants by simple sums."""
    if isinstance(value.owner, ir.Block) or shape(value.type):
        return None
    operation = value.owner.operation
    if operation.name == "stablehlo.constant":
        attribute = operation.attributes["value"]
        if isinstance(attribute, ir.DenseIntElementsAttr):
            return int(attribute[0])
    elif operation.name == "stablehlo.convert":
        return _integer(operation.operands[0])
    elif operation.name in _FOLDED:
        left, right = (_integer(operand) for operand in operation.operands)
        if left is not None and right is not None:
            return _FOLDED[operation.name](left, right)
    return None


def trip_count(loop) -> int | None:
    """Trips of a loop that counts from a constant to a constant by a constant."""
    condition, body = (region.blocks[0] for region in loop.regions)
    carried = [key(argument) for argument in condition.arguments]

    def returned(block):
        return list(list(block.operations)[-1].operation.operands)

    def origin(value):
        """The value before conversions."""
        while not isinstance(value.owner, ir.Block):
            if value.owner.operation.name != "stablehlo.convert":
                break
            value = value.owner.operation.operands[0]
        return value

    after = returned(body)
    before = list(loop.operands)

    def fixed(value) -> int | None:
        """The integer that a value of the condition is at every trip."""
        value = origin(value)
        if key(value) not in carried:
            return _integer(value)
        place = carried.index(key(value))
        if key(after[place]) != key(body.arguments[place]):
            return None
        return _integer(before[place])

    test = returned(condition)[0].owner
    if isinstance(test, ir.Block) or test.operation.name != "stablehlo.compare":
        return None
    if "LT" not in str(test.operation.attributes["comparison_direction"]):
        return None
    counter, limit = test.operation.operands
    counter = origin(counter)
    if key(counter) not in carried:
        return None
    place = carried.index(key(counter))
    step = after[place].owner
    if isinstance(step, ir.Block) or step.operation.name != "stablehlo.add":
        return None
    left, right = step.operation.operands
    if key(left) != key(body.arguments[place]):
        left, right = right, left
    if key(left) != key(body.arguments[place]):
        return None
    start, stop, by = _integer(before[place]), fixed(limit), _integer(right)
    if start is None or stop is None or not by or by < 0:
        return None
    return max(0, -(-(stop - start) // by))
