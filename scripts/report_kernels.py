"""The table of all kernels: verdicts, times beside XLA's and the roofline, whole numbers.

    python scripts/report_kernels.py [--only gemm,rms_norm]   evaluate what is missing or stale
    python scripts/report_kernels.py --full [--minutes 120]   first compare at the published size
    python scripts/report_kernels.py --no-evaluate            write the page from the table

Rows are kept in docs/kernels.jsonl, and written as they are made: a killed run continues where it
stopped. The page is docs/kernels.md.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import click

import ship_references
import workloads
from baselines import kernels
from jaxbench_env import EvalResult, Status, evaluate
from jaxbench_env.canonical import canonical_hash
from jaxbench_env.evaluator.build import installed_versions
from jaxbench_env.evaluator.cache import UNSETTLED
from jaxbench_env.evaluator.estimate import full_seconds, full_share
from jaxbench_env.evaluator.evaluator import PROTOCOL
from jaxbench_env.progress import progress_bar
from workloads.data import published

DOCS = Path(__file__).parents[1] / "docs"
TABLE = DOCS / "kernels.jsonl"

HEAD = """# The kernels of the baselines

Written by `scripts/report_kernels.py` from `kernels.jsonl`: verdicts on the files in
`baselines/kernels/`, predicted for a TPU v6e with jax {jax} and libtpu {libtpu}. XLA's program is
made by the same compiler and timed by the same predictor.

The uncertainty of a speedup is stated as {uncertainty}: the predictor's 90th percentile error
against published times, each workload left out of the fit ([timing.md](timing.md)). Both times of a
speedup come from one compiler and one predictor, so that errors of bandwidth and clock partly
cancel: the speedups of the published expert kernels were met within 7 %.

"Of the roofline" is the least time of the best known algorithm over the predicted one: where XLA is
near 100 %, there is nothing to gain. That of paged attention counts every page; the lengths need
fewer, so a kernel can pass it. `S` marks an algebraic shortcut: such a kernel does less than the
operator as it is written, with the same result within the tolerance (see below). "Published size"
says how much of the output was compared there (`verify="full"`), and how long it took.

Geometric means have every speedup floored at 1; a workload without a right kernel counts as 1.

| | |
|---|---|"""
COLUMNS = """
| workload | ms | XLA ms | roofline ms | speedup | of the roofline | XLA's | | verdict | \
published size |
|---|---|---|---|---|---|---|---|---|---|"""

Row = dict[str, Any]


def uncertainty() -> float:
    """Stated uncertainty of a speedup, as |log(predicted / true)|.

    The predictor's 90th percentile against published times, each workload left out of the fit
    (docs/timing_fit.json).
    """
    return json.loads((DOCS / "timing_fit.json").read_text())["scores"]["p90"]


def suite() -> list[workloads.Workload]:
    """The workloads of the suite, in their order."""
    return [workload for workload in workloads.every() if workload.file is None]


def priority() -> list[str]:
    """Ids of the operators that have a published expert kernel."""
    return [w.id for w in suite() if published(w.id).expert_ms is not None]


def shortcut(text: str) -> str:
    """The line ``Shortcut: ...`` of a kernel's docstring; empty if there is none."""
    doc = ast.get_docstring(ast.parse(text)) or ""
    found = re.search(r"^Shortcut: *((?:.+\n?)+)", doc, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def mark(workload_id: str, text: str) -> Row:
    """What a row must have to be that of a kernel text with today's evaluator and compiler."""
    return {
        "id": workload_id,
        "kernel": canonical_hash(text),
        "protocol": PROTOCOL,
        "workload_version": workloads.get(workload_id).version,
        "versions": installed_versions().as_dict(),
    }


def stale(row: Row | None, workload_id: str, text: str) -> bool:
    """Whether a row is missing or of another text, evaluator or compiler."""
    today = mark(workload_id, text)
    return row is None or any(row.get(name) != value for name, value in today.items())


def read(table: Path | None = None) -> dict[str, Row]:
    """The rows by id."""
    try:
        lines = (table or TABLE).read_text().splitlines()
    except FileNotFoundError:
        return {}
    return {row["id"]: row for row in map(json.loads, lines)}


def keep(row: Row, table: Path | None = None, ids: Collection[str] = ()) -> None:
    """Puts a row into the table; rows without a kernel leave it."""
    rows = {**read(table), row["id"]: row}
    ordered = [rows[w.id] for w in suite() if w.id in rows and w.id in (ids or kernels.ids())]
    whole = (table or TABLE).with_suffix(".tmp")
    whole.write_text("".join(json.dumps(row) + "\n" for row in ordered))
    whole.replace(table or TABLE)  # a kill leaves the old table or the new one


def described(workload: workloads.Workload, text: str, result: EvalResult) -> Row:
    """The row of a verdict on a text."""
    times = result.times
    return {
        **mark(workload.id, text),
        "status": result.status.value,
        "message": result.message,
        "flags": list(result.flags),
        "ms": times.candidate_ms,
        "xla_ms": times.baseline_ms,
        "roofline_ms": workload.roofline_ms("v6e"),
        "speedup": result.speedup,
        "shortcut": shortcut(text),
        "full": None,
    }


def whole(workload: workloads.Workload, result: EvalResult, seconds: float) -> Row:
    """The part of a row that says what the comparison at the published size found."""
    compared = [check for check in result.numerics if check.preset == "v6e"]
    return {
        "passed": result.correct and bool(compared),
        "share": full_share(workload) if compared else 0.0,
        "status": result.status.value,
        "speedup": result.speedup,
        "seconds": round(result.durations.get("full", seconds), 1),
        "message": "" if result.correct and compared else result.message,
    }


def speedup(row: Row) -> float:
    """What a kernel earns: that of the most thorough verdict there is; 0 if it is not right."""
    full = row["full"]
    return (full["speedup"] if full and full["passed"] else row["speedup"]) or 0.0


def geomean(values: list[float]) -> float:
    """Geometric mean with every value floored at 1."""
    return math.exp(sum(math.log(max(1.0, value)) for value in values) / len(values))


def summary(rows: dict[str, Row]) -> Row:
    """The numbers over all kernels; a workload without a kernel counts as 1."""
    ids, limit = [w.id for w in suite()], math.exp(uncertainty())
    gains = {name: speedup(rows[name]) if name in rows else 0.0 for name in ids}
    marked = [name for name in ids if name in rows and rows[name]["shortcut"]]
    right = [name for name in ids if gains[name] > 0]
    slowest = min(right, key=gains.get, default=None)
    return {
        "workloads": len(ids),
        "kernels": sum(name in rows for name in ids),
        "right": len(right),
        "flagged": {name: rows[name]["flags"] for name in right if rows[name]["flags"]},
        "geomean": geomean([*gains.values()]),
        "geomean_without_shortcuts": geomean([g for n, g in gains.items() if n not in marked]),
        "geomean_shortcuts_as_1": geomean([1.0 if n in marked else g for n, g in gains.items()]),
        "geomean_priority": geomean([gains[name] for name in priority()]),
        "shortcuts": marked,
        "uncertainty": uncertainty(),
        "faster_than_uncertainty": sum(gain > limit for gain in gains.values()),
        "slowest": slowest,
        "minimum": gains[slowest] if slowest else None,
        "whole_numbers": sum(bool(row["full"] and row["full"]["passed"]) for row in rows.values()),
    }


def page(rows: dict[str, Row]) -> str:
    """docs/kernels.md."""
    facts = summary(rows)
    versions = next(iter(rows.values()))["versions"] if rows else installed_versions().as_dict()
    smallest = f"{facts['minimum']:.2f} ({facts['slowest']})" if facts["slowest"] else ""
    shown = f"{math.exp(facts['uncertainty']) - 1:.0%}"
    totals = {
        f"{facts['workloads']} workloads: with a kernel": facts["kernels"],
        "right": facts["right"],
        "geometric mean": f"{facts['geomean']:.2f}",
        f"without the {len(facts['shortcuts'])} that have an algebraic shortcut": (
            f"{facts['geomean_without_shortcuts']:.2f}"
        ),
        "with these counted as 1": f"{facts['geomean_shortcuts_as_1']:.2f}",
        f"over the {len(priority())} with a published expert": f"{facts['geomean_priority']:.2f}",
        f"faster than XLA by more than {shown}": facts["faster_than_uncertainty"],
        "smallest speedup": smallest,
        "right at the published size": facts["whole_numbers"],
    }
    lines = [HEAD.format(**versions, uncertainty=shown)]
    lines += [f"| {name} | {value} |" for name, value in totals.items()]
    lines += [COLUMNS, *(_line(w, rows.get(w.id)) for w in suite())]
    if facts["shortcuts"]:
        lines += ["", "## Algebraic shortcuts", ""]
        lines += [f"- `{name}`: {rows[name]['shortcut']}" for name in facts["shortcuts"]]
    return "\n".join(lines) + "\n"


def _line(workload: workloads.Workload, row: Row | None) -> str:
    if row is None:
        why = "not evaluated" if workload.id in kernels.ids() else "no kernel"
        return f"| {workload.id} | | | {workload.roofline_ms('v6e'):.3f} | | | | | {why} | |"
    ms, xla, roofline = row["ms"], row["xla_ms"], row["roofline_ms"]
    cells = [workload.id, _ms(ms), _ms(xla), _ms(roofline)]
    cells.append(f"{speedup(row):.2f}" if speedup(row) else "")
    cells += ["" if time is None else f"{roofline / time:.0%}" for time in (ms, xla)]
    cells.append("S" if row["shortcut"] else "")
    cells.append(", ".join([row["status"], *row["flags"]]))
    full = row["full"]
    if full is None:
        cells.append("")
    elif full["passed"]:
        cells.append(f"{full['share']:.0%} right, {full['seconds']:.0f} s")
    else:
        cells.append(f"{full['status']}: {full['message'][:200]}".replace("|", "/"))
    return f"| {' | '.join(cells)} |"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def evaluated(name: str) -> Row:
    """Evaluates a kernel and keeps its row."""
    text = kernels.source(name)
    row = described(workloads.get(name), text, evaluate(name, text))
    if row["status"] not in UNSETTLED:
        keep(row)
    return row


def compared(name: str) -> Row:
    """Evaluates a kernel with its numbers at the published size, and keeps its row."""
    workload, text, started = workloads.get(name), kernels.source(name), time.monotonic()
    result = evaluate(name, text, verify="full")
    full = whole(workload, result, time.monotonic() - started)
    row = {**described(workload, text, result), "full": full}
    if full["passed"] or result.status is Status.INCORRECT:  # else it is tried again
        keep(row)
    return row


def _uncompared(row: Row | None, name: str, text: str) -> bool:
    return stale(row, name, text) or (row["full"] is None and bool(row["speedup"]))


@click.command()
@click.option("--only", default="", help="Comma-separated ids.")
@click.option("--full", is_flag=True, help="Also compare at the published size, cheapest first.")
@click.option("--minutes", type=float, help="Start nothing that would end after so long.")
@click.option("--evaluate/--no-evaluate", "evaluates", default=True, help="Make missing rows.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def main(only: str, full: bool, minutes: float | None, evaluates: bool, as_json: bool) -> None:
    """Evaluate the kernels whose row is missing or stale, and write docs/kernels.md."""
    wanted = [name for name in only.split(",") if name]
    unknown = sorted({*wanted} - {*kernels.ids()})
    if unknown:
        raise click.UsageError(f"no kernel for {', '.join(unknown)}")
    deadline = time.monotonic() + 60 * minutes if minutes else math.inf
    texts = {n: kernels.source(n) for n in kernels.ids() if not wanted or n in wanted}
    if full:
        rows = read()
        todo = [n for n, text in texts.items() if _uncompared(rows.get(n), n, text)]
        todo.sort(key=lambda name: full_seconds(workloads.get(name)))
        with progress_bar(len(todo), "comparing") as advance:
            for name in todo:
                if time.monotonic() + full_seconds(workloads.get(name)) > deadline:
                    break
                row = compared(name)
                advance(f", {name}: {row['full']['status']}")
                (DOCS / "kernels.md").write_text(page(read()))
    rows = read()
    todo = [n for n, text in texts.items() if evaluates and stale(rows.get(n), n, text)]
    with progress_bar(len(todo), "evaluating") as advance:
        for name in todo:
            if time.monotonic() > deadline:
                break
            row = evaluated(name)
            advance(f", {name}: {row['status']}")
            (DOCS / "kernels.md").write_text(page(read()))
    (DOCS / "kernels.md").write_text(page(read()))
    ship_references.write()
    facts = summary(read())
    click.echo(json.dumps(facts, indent=1) if as_json else _sentences(facts))


def _sentences(facts: Row) -> str:
    return (
        f"{facts['right']} of {facts['workloads']} right; geometric mean {facts['geomean']:.2f}, "
        f"without shortcuts {facts['geomean_without_shortcuts']:.2f}, priority operators "
        f"{facts['geomean_priority']:.2f}; {facts['faster_than_uncertainty']} faster than XLA by "
        f"more than the uncertainty; smallest {facts['minimum'] or 0:.2f} ({facts['slowest']}); "
        f"{facts['whole_numbers']} compared at the published size."
    )


if __name__ == "__main__":
    main()
