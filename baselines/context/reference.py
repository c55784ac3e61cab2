"""The API reference: what the installed jax says of Pallas, names that kernels may use, shortened.

Signatures and texts are those of `jax.experimental.pallas` and its ``tpu`` module. What the audit
refuses is left out, and so is what no kernel on one chip has use for.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
import textwrap
from dataclasses import dataclass
from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxbench_env.evaluator.audit import names

# Several chips or cores, interpreters, measurement, and jax's own machinery.
_NO_USE = frozenset(
    "BufferType BufferedRef BufferedRefBase ChipVersion CMEM CoreType DeviceIdType HOST "
    "InterpretParams LoweringException MemoryRef MemorySpace RevisitMode SEMAPHORE Slice Tiling "
    "TpuInfo VMEM_SHARED align_to async_remote_copy core_barrier core_map create_tensorcore_mesh "
    "delay dma_semaphore dslice emit_pipeline_with_allocations estimate_cost get_barrier_semaphore "
    "get_global get_tpu_info get_tpu_info_for_chip is_tpu_device kernel lower_as_mlir "
    "make_async_remote_copy matmul_acc_lhs matmul_pop matmul_push_rhs next_power_of_2 "
    "run_on_first_core run_state sample_block semaphore semaphore_read semaphore_signal "
    "semaphore_wait stateful_bernoulli stateful_bits stateful_normal stateful_uniform "
    "strides_from_shape touch trace_value with_scoped BlockDim Blocked no_block_spec squeezed "
    "GridDimensionSemantics SideEffectType prng_random_bits prng_seed to_pallas_key "
    "stochastic_round ARBITRARY PARALLEL CORE_PARALLEL SUBCORE_PARALLEL".split()
)
# What nearly every kernel is made of: told first, with all arguments.
_CORE = frozenset(
    "pallas_call BlockSpec CompilerParams program_id num_programs when ds cdiv multiple_of VMEM "
    "SMEM".split()
)
_TOPICS = {
    "indices": "PrefetchScalarGridSpec Indirect BoundedSlice Element Squeezed",
    "copies": "make_async_copy async_copy sync_copy SemaphoreType emit_pipeline run_scoped ANY HBM "
    "Buffered",
    "scans": "loop roll",
    "products": "CostEstimate",
}
# Parameters of calls that are for debugging or for other chips.
_PARAMETERS = frozenset(
    "interpret debug name metadata backend collective_id collective_axes internal_scratch_in_bytes "
    "flags serialization_format disable_bounds_checks skip_device_barrier needs_layout_passes "
    "kernel_type shape_invariant_numerics allow_collective_id_without_custom_barrier "
    "use_tc_tiling_on_sc disable_semaphore_checks core_axis core_axis_name trace_scopes "
    "no_pipelining remote_bytes_transferred priority".split()
)
_PRIMITIVES = (  # without those of semaphores, debugging and several cores
    r"(?!debug|delay|semaphore|matmul_|prng|random_|axis|get_bar|trace|platform)[a-z][a-z0-9_]*"
)
_LONGEST = 420  # characters of one text


@dataclass(frozen=True)
class Entry:
    """One name of the API.

    Attributes:
        name: As it is written, for example ``"pl.when"``.
        text: Signature and what it does.
        topic: What it is for; empty for what every kernel needs.
        core: Whether nearly every kernel needs it.
    """

    name: str
    text: str
    topic: str
    core: bool


@functools.cache
def entries() -> tuple[Entry, ...]:
    """The names that kernels may use, in alphabetical order, what all need first."""
    topics = {name: topic for topic, all_ in _TOPICS.items() for name in all_.split()}
    found = []
    for module, short, path in ((pl, "pl", names.PALLAS), (pltpu, "pltpu", names.PALLAS_TPU)):
        allowed = names.MODULES[path]
        for name in sorted(n for n in dir(module) if n not in _NO_USE and allowed.allows(n)):
            value = vars(module).get(name)
            # pl.CompilerParams is the base class of pltpu's.
            if value is None or inspect.ismodule(value) or f"{short}.{name}" == "pl.CompilerParams":
                continue
            core = name in _CORE
            text = f"`{short}.{name}{_signature(value)}`{_doc(value, core)}"
            found.append(Entry(f"{short}.{name}", text, topics.get(name, ""), core))
    return (*sorted(found, key=lambda entry: not entry.core), _primitives())


def _signature(value: Any) -> str:
    if not callable(value):
        return ""
    try:
        member = isinstance(value, enum.Enum)  # a memory space: calling it makes scratch of it
        signature = inspect.signature(type(value).__call__ if member else value)
    except (TypeError, ValueError):
        return ""
    if isinstance(value, enum.EnumType):
        return "." + ", .".join(value.__members__)
    kept, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.name.startswith("_") or parameter.name in {"self", *_PARAMETERS}:
            continue
        text = parameter.name
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            kept.append("*")
            starred = True
        if parameter.kind is parameter.VAR_POSITIONAL:
            text, starred = f"*{text}", True
        elif parameter.kind is parameter.VAR_KEYWORD:
            text = f"**{text}"
        elif parameter.default is not parameter.empty:
            default = repr(parameter.default)
            text += f"={default}" if len(default) <= 12 and "<" not in default else "=..."
        kept.append(text)
    return f"({', '.join(kept)})"


def _doc(value: Any, whole: bool) -> str:
    """The first paragraph of a docstring, and what it says of the arguments if that is wanted."""
    doc = inspect.getdoc(value) or ""
    documents = inspect.isfunction(value) or isinstance(value, type)
    if not documents or re.match(r"\w+\(.*\)$|Create a collection|Represent a PEP", doc):
        return ""
    doc = re.sub(r":\w+:`~?(?:[^`<]*<)?([^`>]+)>?`", r"`\1`", doc).replace("``", "`")
    summary = re.split(r"\n\s*\n|\n(?=(?:Args|Attributes|Returns):)", doc)[0]
    lines = [": " + " ".join(summary.split()) if summary else ""]
    if whole:
        found = re.search(r"(?:^|\n)(?:Args|Attributes):\n(.*?)(?=\n\S|\Z)", doc, re.DOTALL)
        body = textwrap.dedent(found[1]) if found else ""
        for item in re.split(r"\n(?=\w+:)", body):
            name, _, said = item.partition(":")
            if name and name not in _PARAMETERS and not name.startswith("_"):
                lines.append(f"  - {name}: {_first_sentence(said)}")
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    text = " ".join(text.split())
    found = re.match(r".+?\.(?= [A-Z*]|$)", text)
    text = found[0] if found else text
    return text if len(text) <= _LONGEST else text[:_LONGEST].rsplit(" ", 1)[0] + " ..."


def _primitives() -> Entry:
    """Which operations jax has a lowering for, in kernels of the TensorCore."""
    from jax._src.pallas.mosaic import lowering

    by_core = lowering.lowering_rules
    table = next(rules for core, rules in by_core.items() if "tc" in str(core).lower())
    known = {str(p) for p in table}
    listed = sorted(name for name in known if re.fullmatch(_PRIMITIVES, name))
    text = "Primitives of jax that have a lowering in a kernel: " + ", ".join(listed) + "."
    return Entry("primitives", text, "", True)
