"""The values of a kernel's scalar operands at full size, on secret inputs.

The predictor needs them wherever control flow depends on them. They are computed from the program
that is compiled: the part of it that they depend on (`slicing`) runs on the CPU, on inputs of the
workload's own distribution. The inputs are secret, lest a kernel know the numbers on which it is
timed; nothing of them goes to the process that compiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from jax import export
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxbench_env.evaluator import timing
from jaxbench_env.evaluator.judge import mosaic, program, slicing
from jaxbench_env.evaluator.judge.slicing import NoValues
from jaxbench_env.evaluator.timing.feeds import MAX_WORDS, Feeds, Kernel
from workloads import DRAWS, Workload

MAX_TEMPORARY_BYTES = 2 << 30
_NUMPY = {"i1": "bool", "bf16": "bfloat16"}


def kernels(
    text: bytes | str,
    workload: Workload,
    seed: int,
    *,
    kept: Sequence[int] | None = None,
    given: Mapping[str, np.ndarray] | None = None,
) -> list[Kernel]:
    """Computes the scalar operands of all kernel calls of a program.

    Args:
        text: StableHLO at the workload's full size: a portable artifact, or text.
        workload: What the program computes; its arguments are the workload's.
        seed: Of the inputs.
        kept: Which of the workload's arguments the program has; found by their types if not given.
        given: Inputs by name, instead of drawn ones.

    Raises:
        NoValues: If the program is too long, or has other arguments than the workload.
        Exception: Of any kind, if it cannot be read at all.
    """
    with mlir.make_ir_context(), ir.Location.unknown():
        slicer = slicing.Slicer(program.parse(text))
        if kept is None:
            kept = _kept(slicer, workload)
        found = [(call, *_scalars(call.operation)) for call in slicer.calls()]

        def inputs(arguments: Sequence[int]) -> tuple[np.ndarray, ...]:
            names = list(workload.presets["v6e"].args)
            wanted = [names[kept[i]] for i in arguments]
            if given is not None and set(wanted) <= given.keys():
                return tuple(given[name] for name in wanted)
            return workload.steering_inputs("v6e", wanted, DRAWS[0], seed)

        values, missing = _evaluate(slicer, found, inputs)
        names = [(call.operation, call.frame) for call, _, _ in found]
        result = []
        for index, (call, body, operands) in enumerate(found):
            after = frozenset()
            if operands:
                try:
                    before = slicer.depends_on(call)
                    after = frozenset(i for i, name in enumerate(names) if name in before)
                except NoValues:
                    pass
            result.append(
                Kernel(
                    body,
                    {i: values[(index, i)] for i in operands if (index, i) in values},
                    {i: missing[(index, i)] for i in operands if (index, i) in missing},
                    after,
                )
            )
        return result


def values(
    text: bytes, workload: Workload, preset: str, seed: int, kept: Sequence[int]
) -> list[tuple[str, dict[int, np.ndarray]]]:
    """Values of the scalar operands of all kernel calls of a program at any size.

    Args:
        text: StableHLO as a portable artifact.
        workload: What it computes.
        preset: The size.
        seed: Of the inputs.
        kept: Which of the workload's arguments the program has.

    Returns:
        In program order, the hash of each call's Mosaic module and its operands' values by
        their position, as far as they can be computed.

    Raises:
        NoValues: If the program is too long.
        Exception: Of any kind, if it cannot be read at all.
    """
    with mlir.make_ir_context(), ir.Location.unknown():
        slicer = slicing.Slicer(program.parse(text))
        found = [(call, *_scalars(call.operation)) for call in slicer.calls()]

        def inputs(arguments: Sequence[int]) -> tuple[np.ndarray, ...]:
            names = list(workload.presets[preset].args)
            wanted = [names[kept[i]] for i in arguments]
            return workload.steering_inputs(preset, wanted, DRAWS[0], seed)

        known, _ = _evaluate(slicer, found, inputs)
        return [
            (body, {i: known[(index, i)] for i in operands if (index, i) in known})
            for index, (_, body, operands) in enumerate(found)
        ]


def for_dump(
    text: bytes | str,
    workload: Workload,
    seed: int,
    dump: Path,
    *,
    given: Mapping[str, np.ndarray] | None = None,
) -> tuple[Feeds, list[str]]:
    """Feeds of `timing.predict` for a program whose compiler's dump lies in a folder.

    Args:
        text: The program before it was compiled, see `kernels`.
        workload: What it computes.
        seed: Of the inputs.
        dump: The folder, as for `timing.predict`.
        given: Inputs by name, instead of drawn ones: what a published time was measured on.

    Returns:
        The feeds, and why operands have none, as sentences.

    Raises:
        TimingError: If there is no dump.
        NoValues: See `kernels`.
        Exception: Of any kind, if the program cannot be read at all.
    """
    found = kernels(text, workload, seed, given=given)
    return timing.match(found, timing.read_module(Path(dump)))


def _kept(slicer: slicing.Slicer, workload: Workload) -> tuple[int, ...]:
    """Which of the workload's arguments a program has that has dropped those it does not use.

    Raises:
        NoValues: If it cannot be told.
    """
    have = [_described(value.type) for value in slicer.main.block.arguments]
    want = [(s.shape, s.dtype) for s in workload.presets["v6e"].args.values()]
    ways: list[tuple[int, ...]] = [()]
    for one in have:
        ways = [
            (*way, index)
            for way in ways
            for index in range(way[-1] + 1 if way else 0, len(want))
            if want[index] == one
        ]
        if len(ways) > 1000:
            break
    if len(ways) != 1:
        raise NoValues("the program's arguments are not the workload's")
    return ways[0]


def _described(kind: ir.Type) -> tuple[tuple[int, ...], str]:
    """Shape and numpy name of a type."""
    shaped = ir.ShapedType(kind)
    element = str(shaped.element_type)
    for start, name in (("ui", "uint"), ("i", "int"), ("f", "float")):
        if element not in _NUMPY and element.startswith(start):
            return tuple(shaped.shape), name + element[len(start) :]
    return tuple(shaped.shape), _NUMPY.get(element, element)


def _scalars(operation: ir.Operation) -> tuple[str, list[int]]:
    """Hash of a kernel's code, and which of its operands are scalars that may steer it."""
    body = program.mosaic_body(operation)
    name = timing.kernel_hash(body)
    try:
        module = mosaic.parse(body)
        with module.context:
            kernel = module.body.operations[0].operation
            return name, mosaic.scalar_operands(operation, kernel)
    except Exception:  # the module is hostile; a kernel that cannot be read gets nothing
        return name, []


def _evaluate(slicer, found, inputs):
    """Values of operands, or why there are none, by (place in `found`, operand index)."""
    values: dict[tuple[int, int], np.ndarray] = {}
    missing: dict[tuple[int, int], str] = {}
    nodes: dict[tuple[int, int], slicing.Node] = {}
    for index, (call, _, operands) in enumerate(found):
        for operand in operands:
            key, node = (index, operand), (call.operation.operands[operand], call.frame)
            try:
                if call.nested:
                    raise NoValues("the kernel is called in a loop or a branch")
                if math.prod(ir.ShapedType(node[0].type).shape) > MAX_WORDS:
                    raise NoValues("they are too many")
                slicer.cut([node])
                nodes[key] = node
            except NoValues as why:
                missing[key] = str(why)
    if nodes:
        try:
            part = slicer.cut(list(nodes.values()))
            results = run(part, inputs)
            values = dict(zip(nodes, results, strict=True))
        except NoValues as why:
            missing |= dict.fromkeys(nodes, str(why))
    return values, missing


def run(
    part: slicing.Part, inputs: Callable[[Sequence[int]], Sequence[np.ndarray]]
) -> list[np.ndarray]:
    """Runs a part of a program on the CPU.

    Args:
        part: The part.
        inputs: Arrays for arguments of the whole program, by their indices.

    Raises:
        NoValues: If it does not compile, takes too much memory, or there are no such inputs.
    """
    main = part.module.body.operations[0].regions[0].blocks[0]
    outs = [_described(value.type) for value in list(main.operations)[-1].operands]
    ins = [jax.ShapeDtypeStruct(*_described(value.type)) for value in main.arguments]
    try:
        arrays = inputs(part.arguments)
    except ValueError as error:
        raise NoValues(str(error)) from None

    def same_types(*_: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(jax.numpy.zeros(*out) for out in outs)

    shell = export.export(jax.jit(same_types, keep_unused=True), platforms=["cpu"])(*ins)
    try:
        version = stablehlo.get_current_version()
        blob = stablehlo.serialize_portable_artifact(part.module, version)
        exported = replace(shell, mlir_module_serialized=blob)
        compiled = jax.jit(exported.call).lower(*ins).compile()
    except Exception as error:
        raise NoValues(f"computing them does not compile for the CPU ({error})"[:300]) from None
    if compiled.memory_analysis().temp_size_in_bytes > MAX_TEMPORARY_BYTES:
        raise NoValues("computing them takes too much memory")
    return [np.asarray(one) for one in compiled(*arrays)]
