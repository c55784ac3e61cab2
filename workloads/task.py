"""The task as text: what a policy is told before it writes its first kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.hardware import chip

if TYPE_CHECKING:
    from workloads.workload import Workload

SYSTEM = (
    "You write Pallas kernels for TPUs. You answer with one complete Python file in a single "
    "```python block and nothing after it."
)

_CONTRACT = """\
- Define `workload({arguments})`. It gets the arrays below and returns one array with the shape
  and dtype given as output. Helper functions, dataclasses and several Pallas calls are fine.
- Do the dominant part of the work in Pallas (`pl.pallas_call`, `pl.kernel`, `pltpu.emit_pipeline`).
  A cheap prologue in plain JAX (transpose, pad, reshape) is fine.
- `CONFIG` is there already: a read-only mapping with the sizes and constants of the preset. Take
  shapes from the arrays or from CONFIG; the file is traced anew for every preset.
- Import only jax and its parts, functools, math, dataclasses, typing, itertools, numpy. No files,
  no processes, no input or output, no names with double underscores, no finished kernels from
  jax.experimental.pallas.ops.
- The kernel is compiled for preset `v6e` by the TPU's own compiler and timed there. Its numbers are
  checked at {checked} on secret inputs against the reference in float32: every
  element within {rel:g} * (rms + |ref|), the RMS error at most {xla_factor:g} times XLA's own."""


def _checked(workload: Workload) -> str:
    names = [f"`{name}`" for name in workload.check_presets]
    return f"preset{'s' if len(names) > 1 else ''} {' and '.join(names)}"


def _reference_lead(workload: Workload) -> str:
    arguments = ", ".join(workload.arguments)
    if workload.file:
        return f"`workload({arguments})` in this file is what yours must return."
    arrays = ", ".join(workload.presets["v6e"].args)
    return (
        f"`{workload.reference.__name__}(CONFIG, {arrays})` below is what "
        f"`workload({arguments})` must return."
    )


def _signature_lines(workload: Workload) -> list[str]:
    lines = []
    for name, preset in workload.presets.items():
        parts = [f"{arg}: {spec}" for arg, spec in preset.args.items()]
        parts += [f"{arg}: int = {preset.config[arg]}" for arg in workload.static_arguments]
        args = ", ".join(parts)
        lines.append(f"- {name}: workload({args}) -> {workload.output(name)}")
        lines.append(f"  CONFIG = {dict(preset.config)}")
    return lines


def task_text(workload: Workload, target: str = "v6e") -> str:
    """Contract, shapes and dtypes of every preset, reference source and hardware.

    Args:
        workload: The workload.
        target: The chip to write for.

    Raises:
        ValueError: For an unknown target.
    """
    origin = ", ".join(filter(None, (workload.upstream_name, workload.model)))
    sizes = workload.sizes["v6e"]
    contract = _CONTRACT.format(
        arguments=", ".join(workload.arguments),
        checked=_checked(workload),
        rel=workload.tolerance.rel,
        xla_factor=workload.tolerance.xla_factor,
    )
    return "\n".join(
        [
            f"# {workload.id} ({origin})",
            "",
            workload.summary,
            "",
            "Write a Pallas TPU kernel that is faster than what XLA makes of the reference.",
            "",
            "## Contract",
            contract,
            "",
            "## Presets",
            *_signature_lines(workload),
            "",
            "## Reference",
            _reference_lead(workload),
            "```python",
            workload.reference_source().rstrip(),
            "```",
            f"At v6e it takes {workload.flops(sizes):,} flops as written; the best known algorithm "
            f"takes {workload.flops_useful(sizes):,}. Reading every input and writing the output "
            f"once moves {workload.min_hbm_bytes():,} bytes.",
            "",
            "## Hardware",
            chip(target).describe(),
            f"Roofline of the best known algorithm: {workload.roofline_ms(target):.3f} ms.",
            "",
        ]
    )


def messages(workload: Workload, target: str = "v6e") -> list[dict[str, str]]:
    """The task in chat form: a system message and a user message."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task_text(workload, target)},
    ]
