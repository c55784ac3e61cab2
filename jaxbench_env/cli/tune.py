"""The command that searches a kernel's tunables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

import workloads

# Points are `baselines.tuning.Point` and spaces `baselines.templates.TemplateSpace`: modules here
# may import baselines in their functions only.
SHOWN = 10  # points in the table


def run(
    workload: workloads.Workload,
    file: Path | None,
    out: Path | None,
    *,
    target: str,
    allow_library_kernels: bool,
    write: bool,
    as_json: bool,
    **options: Any,
) -> bool:
    """Searches and shows what was found, also after an interrupt.

    Args:
        workload: What the kernel computes.
        file: The kernel's file; by default that of the baselines.
        out: File of JSON lines for the verdicts, or None.
        target: The chip.
        allow_library_kernels: Whether the text may import finished kernels.
        write: Whether to put the best values into the file.
        as_json: Whether to print JSON.
        **options: As for `baselines.tuning.tune`.

    Returns:
        Whether a kernel is right.

    Raises:
        click.UsageError: If there is no kernel, if it has no tunables, or a package is missing.
        KeyboardInterrupt: After showing what was found until then.
    """
    from baselines import kernels, tuning
    from baselines.templates import TemplateError, TemplateSpace
    from jaxbench_env.evaluator.service.client import SharedEvaluator
    from jaxbench_env.progress import progress_bar

    try:
        text = kernels.source(workload.id) if file is None else file.read_text("utf-8")
        space = TemplateSpace(text)
        log = None if out is None else tuning.Log(out)
        known = tuning.shipped(workload, target)
        evaluator = SharedEvaluator(target=target, allow_library_kernels=allow_library_kernels)
        search = tuning.tune(workload, space, evaluator, log=log, known=known, **options)
        points: list[Any] = []
        interrupted = False
        with progress_bar(min(options["budget"], space.size), workload.id) as advance:
            try:
                for point in search:
                    points.append(point)
                    advance(f", {_best(points)}")
            except KeyboardInterrupt:
                interrupted = True
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} is not UTF-8: {error}") from None
    except kernels.NoKernel as error:
        raise click.UsageError(f"{error}; give another with --file") from None
    except (TemplateError, tuning.MissingPackage, OSError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    found = tuning.best(points)
    report = _report(workload, space, points, found, target, options)
    written = write and bool(found) and found[0].action != tuple(space.default.tolist())
    if written:
        file.write_text(space.source(found[0].action), "utf-8")
    report["written"] = str(file) if written else None
    click.echo(json.dumps(report, indent=2)) if as_json else _show(report)
    if interrupted:
        raise KeyboardInterrupt
    return bool(found)


def _best(points: list[Any]) -> str:
    from baselines.tuning import best

    found = best(points)
    if not found:
        return "none is right yet"
    return f"best {found[0].ms:.4g} ms, {found[0].result.speedup:.2f}x"


def _report(
    workload: workloads.Workload,
    space: Any,
    points: list[Any],
    found: list[Any],
    target: str,
    options: dict[str, Any],
) -> dict[str, Any]:
    """What was found, as data: points that are right by their time, then the others."""
    failed = [point for point in points if not point.result.correct]
    default = next((p for p in points if p.action == tuple(space.default.tolist())), None)
    return {
        "workload": workload.id,
        "target": target,
        **options,
        "space": space.size,
        "looked_at": len(points),
        "evaluated": sum(not point.known for point in points),
        "default": _row(default) if default else None,
        "default_is_best": bool(found and default and default.rank <= found[0].rank),
        "points": [_row(point) for point in found + failed],
    }


def _row(point: Any) -> dict[str, Any]:
    result = point.result
    return {
        "values": point.values,
        "status": result.status.value,
        "flags": list(result.flags),
        "ms": result.times.candidate_ms,
        "xla_ms": result.times.baseline_ms,
        "speedup": result.speedup,
    }


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    names = list(report["points"][0]["values"]) if report["points"] else []
    table = Table("ms", "speedup", "status", *names)
    for row in report["points"][:SHOWN]:
        right = row["speedup"] is not None
        marks = row["status"] + "".join(f", {flag}" for flag in row["flags"])
        marks += " (the text's own)" if row["values"] == report["default"]["values"] else ""
        time, gain = (f"{row['ms']:.4f}", f"{row['speedup']:.3f}") if right else ("", "")
        table.add_row(time, gain, marks, *map(str, row["values"].values()))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    click.echo(
        f"Looked at {report['looked_at']} of {report['space']} points, evaluated "
        f"{report['evaluated']} of them."
    )
    right = [row for row in report["points"] if row["speedup"] is not None]
    if not right:
        click.echo("No kernel is right.")
    elif report["default_is_best"]:
        click.echo("The text's own values are the best.")
    elif report["default"]["speedup"] is None:
        click.echo(
            f"The kernel of the text's own values is not right: {report['default']['status']}."
        )
    elif report["default"]["ms"] < right[0]["ms"]:
        click.echo("The time of the text's own values is doubtful.")
    else:
        more = report["default"]["ms"] / right[0]["ms"] - 1
        click.echo(f"The text's own values take {more:.1%} longer than the best.")
    if report["written"]:
        click.echo(f"Wrote the best values to {report['written']}.")
