"""Checks of exported programs before anything is done with them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jax import export

from jaxbench_env.evaluator.judge import program
from jaxbench_env.evaluator.result import Status

MAX_ARTEFACT_BYTES = 32 << 20
MAX_CONSTANT_BYTES = 1 << 20
# Custom calls that only annotate. Any other could run code of the host.
_HARMLESS = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
_ALLOWED = {"tpu": _HARMLESS | {"tpu_custom_call"}, "cpu": _HARMLESS}
# Other attributes of arguments and results choose layouts, memories or aliases.
_ANNOTATIONS = {"jax.arg_info", "jax.result_info"}
# Names of kernels become names of instructions and of files in the compiler's dump.
_KERNEL_NAME = re.compile(r"(?!TLP$)[A-Za-z_][A-Za-z0-9_]{0,199}")


class ArtefactError(Exception):
    """An artefact that must not be used. `status` is the verdict it earns."""

    def __init__(self, status: Status, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Contract:
    """Types that an artefact must have: (shape, dtype name) of inputs and output."""

    inputs: tuple[tuple[tuple[int, ...], str], ...]
    output: tuple[tuple[int, ...], str]


def load(blob: bytes, platform: str, contract: Contract) -> tuple[export.Exported, program.Program]:
    """Deserialises an artefact and checks that it is what the contract says.

    Raises:
        ArtefactError: If it is malformed, too large, has other types than the contract, calls
            the host, or holds large constants.
    """
    if len(blob) > MAX_ARTEFACT_BYTES:
        raise ArtefactError(
            Status.HACK_SUSPECTED,
            f"the program takes {len(blob):,} bytes, more than {MAX_ARTEFACT_BYTES:,}: it holds "
            "large constants; compute them from the inputs or with iota",
        )
    try:
        exported = export.deserialize(bytearray(blob))
        facts = program.read(exported.mlir_module_serialized)
    except Exception as error:
        raise ArtefactError(
            Status.HACK_SUSPECTED, f"what the kernel left is not an exported program: {error}"
        ) from error
    if tuple(exported.platforms) != (platform,):
        raise ArtefactError(
            Status.HACK_SUSPECTED, f"exported for {exported.platforms}, not for {platform}"
        )
    inputs = tuple((tuple(a.shape), str(a.dtype)) for a in exported.in_avals)
    outputs = tuple((tuple(a.shape), str(a.dtype)) for a in exported.out_avals)
    if inputs != contract.inputs or outputs != (contract.output,):
        raise ArtefactError(
            Status.HACK_SUSPECTED, f"the program maps {inputs} to {outputs}, unlike the workload"
        )
    foreign = facts.targets - _ALLOWED[platform]
    if foreign:
        raise ArtefactError(
            Status.UNSUPPORTED,
            f"the program calls {', '.join(sorted(foreign))} outside the chip; use operations "
            "that compile for the TPU, without callbacks or library calls of the host",
        )
    chosen = facts.annotations - _ANNOTATIONS
    if chosen or exported.nr_devices != 1:
        raise ArtefactError(
            Status.HACK_SUSPECTED,
            "the program chooses its own layouts, memories or devices: "
            f"{', '.join(sorted(chosen)) or exported.nr_devices}",
        )
    for call in facts.calls:
        if not (_KERNEL_NAME.fullmatch(call.name) and call.plain_layouts):
            raise ArtefactError(
                Status.HACK_SUSPECTED,
                f"a Pallas call has a name or a layout that Pallas does not give: {call.name!r}",
            )
    if facts.constant_bytes > MAX_CONSTANT_BYTES:
        raise ArtefactError(
            Status.HACK_SUSPECTED,
            f"the program holds {facts.constant_bytes:,} bytes of constants (at most "
            f"{MAX_CONSTANT_BYTES:,} are accepted); compute large arrays inside the program, from "
            "the inputs or with iota",
        )
    return exported, facts
