"""Whether what Pallas computes decides the output: without it, the output must be wrong.

The program for the TPU is run on the CPU with every Pallas call replaced by a constant. A result
that is multiplied by zero, subtracted from itself, chosen by a condition that is never true, or
that adds nothing or multiplies by one, leaves the output as it is.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
from jax import export
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxbench_env.evaluator.judge import program
from jaxbench_env.evaluator.judge.evidence import Finding
from jaxbench_env.evaluator.result import Status

MAX_TEMPORARY_BYTES = 4 << 30
# What adds nothing, and what multiplies by one.
CONSTANTS = (0, 1)
# Rows behind a ragged input's end and clipped values stay right by themselves, rarely this many.
MOST_RIGHT = 0.9


def replaced(exported: export.Exported, constant: int) -> export.Exported:
    """A TPU program with a constant in place of each Pallas call, as a CPU program."""
    with mlir.make_ir_context():
        module = program.parse(exported.mlir_module_serialized)
        for operation in list(program.walk(module.operation)):
            if program.custom_target(operation) == "tpu_custom_call":
                with ir.InsertionPoint(operation), ir.Location.unknown():
                    for result in operation.results:
                        result.replace_all_uses_with(_splat(result.type, constant))
                operation.erase()
        blob = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    return replace(exported, mlir_module_serialized=blob, platforms=("cpu",))


def _splat(kind: ir.Type, constant: int) -> ir.Value:
    element = str(ir.ShapedType(kind).element_type)
    value = str(bool(constant)).lower() if element == "i1" else str(constant)
    if element.startswith(("f", "bf")):
        value += ".0"
    return stablehlo.constant(ir.Attribute.parse(f"dense<{value}> : {kind}"))


def reaches(
    exported: export.Exported, inputs: tuple[np.ndarray, ...], output: np.ndarray, rel: float
) -> Finding:
    """Replaces the Pallas calls of a program and compares its output with the right one.

    Args:
        exported: A checked TPU artefact.
        inputs: Inputs at its sizes.
        output: What the kernel computes of them.
        rel: `Tolerance.rel` of the workload.
    """
    right = output.astype(np.float32)
    allowed = rel * (np.sqrt(np.mean(np.square(right))) + np.abs(right))
    for constant in CONSTANTS:
        try:
            specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
            compiled = jax.jit(replaced(exported, constant).call).lower(*specs).compile()
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return Finding(shown=f"The program around the kernel does not run alone: {first[:200]}")
        if compiled.memory_analysis().temp_size_in_bytes > MAX_TEMPORARY_BYTES:
            return Finding(shown="The program around the kernel takes too much memory to be run.")
        found = np.asarray(compiled(*inputs)).astype(np.float32)
        share = float(np.mean(np.abs(found - right) <= allowed))
        if share >= MOST_RIGHT:
            return Finding(
                f"with {constant} in place of all that Pallas computes, {share:.0%} of the output "
                "is still right: the work is done outside; return what the kernel computes",
                status=Status.NO_KERNEL.value,
            )
    return Finding()
