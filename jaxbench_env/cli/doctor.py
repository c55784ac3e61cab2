"""Says whether this machine can evaluate kernels, by evaluating something small."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from typing import Any

import click

import workloads

SANDBOX = {
    "limits": "limits on CPU, memory, files and processes of each process",
    "supervisor": "a supervisor that watches the whole process tree and kills what is left",
    "pids": "a process namespace: the job sees only its own processes",
    "network": "no network",
    "files": "a private root: the job sees Python, jax and its own directory only",
    "user": "a user of its own, which owns no files",
    "calls": "system calls that a kernel text has no use for are refused",
}


def report(as_json: bool, target: str) -> int:
    """Prints the report. Returns 0 if kernels can be evaluated here, else 3."""
    facts = collect(target)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)
    return 0 if facts["compiles"] else 3


def collect(target: str = "v6e") -> dict[str, Any]:
    """The facts, JSON-ready; the compiler is tried for one target."""
    from jaxbench_env.evaluator import store
    from jaxbench_env.evaluator.build import BuildError, build
    from jaxbench_env.evaluator.fences import FENCES
    from jaxbench_env.evaluator.judge.pool import JudgeError, Refused, pool
    from jaxbench_env.evaluator.judge.worker import named
    from jaxbench_env.evaluator.sandbox import SandboxError

    packages = ("jaxbench-env", "jax", "jaxlib", "libtpu", "gymnasium", "numpy", "flatbuffers")
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "target": target,
        "targets": list(workloads.TARGETS),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "compiles_at_once": store.compile_slots(),
        "cache": str(store.cache_directory()),
        "fences": [],
        "verdict_fences": dict(FENCES),
        "compiles": False,
        "problem": "",
    }
    try:
        _, blobs = pool().ask("numerics", {"do": "reference", **named(workloads.get("rms_norm"))})
        built = build(blobs[0], target)
        facts["fences"] = list(built.fences)
        facts["compiles"] = built.prediction is not None
        facts["problem"] = built.price_error
        facts["compile_seconds"] = round(built.compile_seconds, 2)
    except (BuildError, JudgeError, Refused, SandboxError, OSError) as error:
        facts["problem"] = f"{type(error).__name__}: {error}"
    return facts


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_row("Python", facts["python"])
    for name, version in facts["versions"].items():
        table.add_row(name, version or "[red]not installed[/red]")
    table.add_row("targets", ", ".join(facts["targets"]))
    table.add_row("cores", str(facts["cores"]))
    table.add_row("memory", f"{facts['memory_bytes'] / 2**30:.1f} GiB")
    table.add_row("compiles at once", f"{facts['compiles_at_once']} (set JAXBENCH_COMPILES)")
    table.add_row("cache", f"{facts['cache']} (set JAXBENCH_CACHE)")
    if facts["compiles"]:
        what = f"{facts['compile_seconds']} s for rms_norm on a {facts['target']}"
        verdict = f"[green]works[/green] ({what})"
    else:
        verdict = f"[red]does not work[/red]: {facts['problem']}"
    table.add_row("TPU compiler", verdict)
    for name, meaning in SANDBOX.items():
        active = name in facts["fences"]
        mark = "[green]active[/green]" if active else "[yellow]not available here[/yellow]"
        table.add_row(f"sandbox: {name}", f"{mark}, {meaning}")
    for name, meaning in facts["verdict_fences"].items():
        table.add_row(f"fence: {name}", f"[green]active[/green], {meaning}")
    Console().print(table)
