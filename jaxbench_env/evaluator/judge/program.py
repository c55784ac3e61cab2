"""Reads an exported program: what it calls, what it multiplies, and what reaches its output."""

from __future__ import annotations

import base64
import json
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass

from jax._src.interpreters import mlir
from jax._src.lib import tpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

DYNAMIC = -(1 << 63)  # a bound of the grid that is an operand
_INTEGERS = {f"{sign}{bits}" for sign in ("i", "ui") for bits in (1, 8, 16, 32)}


@dataclass(frozen=True)
class PallasCall:
    """One Mosaic program inside an exported program.

    Attributes:
        grid: Its iteration bounds; empty if it has none.
        matmul_flops: Flops of its matrix products over the whole grid, multiply and add counted
            as two, counted loops included. Both branches of a condition count, so it is an upper
            bound.
        vmem_bytes: Its blocks and scratch in VMEM, each counted once: a lower bound, since the
            compiler holds blocks that move with the grid twice.
        readable: Whether the module could be decoded.
        scalar_operands: Number of its operands that may steer it: integers in SMEM, grid bounds.
    """

    grid: tuple[int, ...]
    matmul_flops: int
    vmem_bytes: int = 0
    readable: bool = True
    scalar_operands: int = 0


@dataclass(frozen=True)
class Program:
    """Facts about one exported program.

    Attributes:
        targets: Targets of all custom calls.
        constant_bytes: Bytes of constants that are given element by element.
        calls: The Pallas calls on which the output depends, in program order.
        outside_flops: Flops of the matrix products and convolutions outside Pallas on which the
            output depends.
    """

    targets: frozenset[str]
    constant_bytes: int
    calls: tuple[PallasCall, ...]
    outside_flops: int

    @property
    def matmul_flops(self) -> int:
        """Flops of the matrix products inside Pallas."""
        return sum(call.matmul_flops for call in self.calls)


def read(serialized: bytes) -> Program:
    """Reads a StableHLO portable artifact, as `Exported.mlir_module_serialized` holds it.

    Raises:
        ValueError: If it cannot be parsed.
    """
    with mlir.make_ir_context():
        module = parse(serialized)
        operations = list(_walk(module.operation))
        needed = _needed(operations)
        calls, outside, constants = [], 0, 0
        targets = set()
        for operation in operations:
            name = operation.name
            if name == "stablehlo.custom_call":
                target = ir.StringAttr(operation.attributes["call_target_name"]).value
                targets.add(target)
                if target == "tpu_custom_call" and _key(operation) in needed:
                    calls.append(_pallas_call(operation))
            elif name == "stablehlo.constant":
                constants += _constant_bytes(operation)
            elif name in ("stablehlo.dot_general", "stablehlo.convolution"):
                if _key(operation) in needed:
                    outside += _product_flops(operation)
        return Program(frozenset(targets), constants, tuple(calls), outside)


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


# ----------------------------------------------------------------------------- the outer module


def _key(operation) -> int:
    """A key for an operation: the bindings make a new Python object at every access."""
    return hash(operation.operation)


def _walk(operation) -> Iterator:
    yield operation.operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _walk(inner)


def _needed(operations) -> set[int]:
    """Operations on which the public function's results depend.

    A function that is called and an operation with regions count as needed with all that they
    hold: coarser than the truth, but never blind to a dependency.
    """
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in operations
        if op.name == "func.func"
    }
    needed: set[int] = set()
    todo = []
    for block in functions["main"].regions[0].blocks:
        todo += [inner.operation for inner in block.operations if inner.name == "func.return"]
    while todo:
        operation = todo.pop()
        if _key(operation) in needed:
            continue
        needed.add(_key(operation))
        for operand in operation.operands:
            if isinstance(operand.owner, ir.Block):
                continue
            todo.append(operand.owner.operation)
        if operation.name == "func.call":
            callee = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
            for block in functions[callee].regions[0].blocks:
                returns = [o.operation for o in block.operations if o.name == "func.return"]
                todo += returns
        else:
            todo += list(_walk(operation))[1:]
    return needed


def _shape(value_type) -> tuple[int, ...]:
    return tuple(ir.ShapedType(value_type).shape)


def _product_flops(operation) -> int:
    """Flops of a dot_general or a convolution: twice the multiply-adds."""
    output = math.prod(_shape(operation.results[0].type))
    left, right = (_shape(o.type) for o in list(operation.operands)[:2])
    if operation.name == "stablehlo.convolution":
        numbers = str(operation.attributes["dimension_numbers"])
        kernel = numbers.split("x[")[1].split("]")[0].split(",")
        features = right[[k.strip() for k in kernel].index("o")]
        return 2 * output * math.prod(right) // features
    numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    return 2 * output * math.prod(left[i] for i in numbers.lhs_contracting_dimensions)


def _constant_bytes(operation) -> int:
    value = operation.attributes["value"]
    try:
        if ir.DenseElementsAttr(value).is_splat:
            return 0
    except ValueError:
        pass  # a resource: never a splat
    kind = operation.results[0].type
    return math.prod(_shape(kind)) * _element_bits(kind) // 8


# ---------------------------------------------------------------------------- Mosaic modules


def _pallas_call(operation) -> PallasCall:
    """Decodes the Mosaic module of a `tpu_custom_call` and counts its matrix products."""
    try:
        module = mosaic_module(mosaic_body(operation))
        with module.context:
            kernel = module.body.operations[0].operation
            bounds = _bounds(kernel)
            flops = sum(_kernel_flops(block, 1) for block in kernel.regions[0].blocks)
            vmem = sum(map(_vmem_bytes, kernel.regions[0].blocks[0].arguments))
            scalars = len(scalar_operands(operation, kernel))
            return PallasCall(bounds, flops * math.prod(bounds), vmem, scalar_operands=scalars)
    except Exception:
        return PallasCall((), 0, readable=False)


def mosaic_body(operation) -> str:
    """The Mosaic module of a `tpu_custom_call`, as the text that is in it."""
    config = json.loads(ir.StringAttr(operation.attributes["backend_config"]).value)
    return config["custom_call_config"]["body"]


def mosaic_module(body: str) -> ir.Module:
    """Decodes a Mosaic module, in a context of its own. Raises any exception if it is malformed."""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    tpu.register_dialect(context)
    with context, ir.Location.unknown(context):
        module = ir.Module.parse(base64.b64decode(body))
        passes = PassManager.parse("builtin.module(mosaic-serde{serialize=false})")
        passes.run(module.operation)
    return module


def _vmem_bytes(argument) -> int:
    """Bytes of a kernel's argument that lies in VMEM; 0 for scalars and other memories."""
    kind = str(argument.type)
    if not kind.startswith("memref") or "vmem" not in kind:
        return 0
    return math.prod(_shape(argument.type)) * _element_bits(argument.type) // 8


def _element_bits(kind) -> int:
    """Bits of a shaped type's elements."""
    element = str(ir.ShapedType(kind).element_type)
    return int("".join(c for c in element if c.isdigit()) or 8)


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
            and _shape(argument.type) == _shape(operand.type)
            and str(ir.ShapedType(operand.type).element_type) in _INTEGERS
        ):
            chosen.append(index)
    return chosen


def _bounds(kernel) -> tuple[int, ...]:
    if "iteration_bounds" not in kernel.attributes:
        return ()
    bounds = ir.DenseI64ArrayAttr(kernel.attributes["iteration_bounds"])
    # A dynamic bound is the smallest integer there is; once is all that is sure of it.
    return tuple(max(1, b) for b in bounds)


def _kernel_flops(block, times: int) -> int:
    total = 0
    for inner in block.operations:
        operation = inner.operation
        repeat = times
        if operation.name == "tpu.matmul":
            total += times * _matmul_flops(operation)
        elif operation.name == "scf.for":
            repeat = times * _trips(operation)
        for region in operation.regions:
            total += sum(_kernel_flops(b, repeat) for b in region.blocks)
    return total


def _matmul_flops(operation) -> int:
    left, right = (_shape(o.type) for o in list(operation.operands)[:2])
    output = _shape(operation.results[0].type)
    batch = output[0] if len(output) == 3 else 1
    # (b m k)(b k n)(b m n) = b^3 (m k n)^2
    product = math.prod(left) * math.prod(right) * math.prod(output)
    return 2 * batch * math.isqrt(product // batch**3)


def _trips(loop) -> int:
    """Trip count of a counted loop whose bounds are constants, else 1."""
    start, stop, step = (_constant(operand) for operand in list(loop.operands)[:3])
    if None in (start, stop, step) or step <= 0:
        return 1
    return max(0, -(-(stop - start) // step))


_ARITHMETIC = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
}


def _constant(value) -> int | None:
    """The integer that a value always has, if that follows from constants by simple sums."""
    if isinstance(value.owner, ir.Block):
        return None
    operation = value.owner.operation
    if operation.name == "arith.constant":
        return ir.IntegerAttr(operation.attributes["value"]).value
    if operation.name == "arith.index_cast":
        return _constant(operation.operands[0])
    if operation.name in _ARITHMETIC:
        left, right = (_constant(operand) for operand in operation.operands)
        if left is not None and right is not None:
            return _ARITHMETIC[operation.name](left, right)
    return None
