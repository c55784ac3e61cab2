"""The tables of a report: made once, written as Markdown, CSV and HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxbench_env.report import references
from jaxbench_env.report.summary import FAST_P, OUTCOMES, PASS_AT

#: What the outcomes are called.
NAMES = {
    "faster": "faster than XLA",
    "correct": "correct, not faster",
    "api_misuse": "API misuse",
    "layout": "layout",
    "vmem": "VMEM",
    "unsupported": "unsupported",
    "tracing": "tracing",
    "numerics": "numerics",
    "race": "race",
    "timeout": "timeout",
    "cheat": "cheat",
    "other": "other",
}


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: What people read.
        value: What a program reads (CSV); None where nothing is known.
        row: Index of the summary's row whose best kernel it speaks of, if any.
    """

    text: str
    value: Any = None
    row: int | None = None


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: Of its CSV file.
        title: Its heading.
        caption: What one must know to read it.
        columns: Headings.
        rows: Cells, the first of each row its heading.
    """

    name: str
    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def compilers(summary: dict[str, Any]) -> str:
    """Who compiled the baseline of the report's own speedups, and where times come from."""
    facts = summary["facts"]
    versions = facts["versions"]
    named = f"libtpu {versions.get('libtpu', '?')}, jax {versions.get('jax', '?')}"
    return f"{facts['times']}, {named}"


def tables(summary: dict[str, Any]) -> list[Table]:
    """All tables of a report, in their order."""
    return [
        overview(summary),
        pass_at_k(summary),
        failures(summary),
        per_workload(summary),
        progress(summary),
    ]


def overview(summary: dict[str, Any]) -> Table:
    """One line for each policy and model, published ones beside a model's."""
    columns = ["", "workloads", "samples", "per-sample correct", "solved", "geomean (floor 1x)"]
    columns += ["mean", *(f"fast_{p:g}" for p in FAST_P), "API misuse", "baseline's compiler"]
    ours = compilers(summary)
    rows = [_overview_line(row, ours) for row in summary["rows"]]
    known = references.published()
    caption = (
        "Speedups are over XLA's program for the reference. The geometric mean floors every "
        "workload at 1x; in the mean a slow kernel counts as it is and an unsolved workload as 1. "
        "fast_p is the share of workloads whose best is correct and faster than p times."
    )
    if summary["facts"]["kind"] == "synthetic":
        caption = (
            "SYNTHETIC: the texts were sampled from templates of finished kernels, some with "
            "mistakes put in; no language model wrote them. Such rows say how policies search, "
            "not what a model can do, and must not stand beside a model's; so the published "
            "figures, which are of a language model, are left out. " + caption
        )
    else:
        rows += [_published_line(policy, of, known) for policy, of in known["methods"].items()]
        caption += (
            f" Rows marked as published are of {known['source']} ({known['model']}, "
            f"{known['device']}), with other inputs and another compiler, "
            f"{known['compiler']}."
        )
    return Table("overview", "Policies", caption, columns, rows)


def _overview_line(row: dict[str, Any], compiler: str) -> list[Cell]:
    low, high = row["geomean_range"]
    geomean = _x(row["geomean"])
    if len(row["seeds"]) > 1:
        geomean = Cell(f"{geomean.text} ({low:.2f} to {high:.2f})", geomean.value)
    label = row["label"]
    if len(row["seeds"]) > 1:
        label += f", {len(row['seeds'])} seeds"
    if row["kind"] == "synthetic":
        label += " (synthetic)"
    return [
        Cell(label, row["label"]),
        _n(row["workloads"]),
        _n(row["samples"]),
        _share(row["per_sample_correctness"]),
        Cell(f"{row['solved']:.3g}/{row['workloads']}", row["solved"]),
        geomean,
        _x(row["mean"]),
        *(_share(row["fast_p"][str(p)], 0) for p in FAST_P),
        _share(row["api_misuse"]),
        Cell(compiler, compiler),
    ]


def _published_line(policy: str, of: dict[str, Any], known: dict[str, Any]) -> list[Cell]:
    label = f"{policy}, {known['model']} (published)"
    return [
        Cell(label, label),
        _n(known["workloads"]),
        _n(known["workloads"] * known["samples_per_workload"]),
        _share(of.get("per_sample_correctness")),
        Cell(f"{of['solved']}/{known['workloads']}", of["solved"]),
        _x(of["geomean"]),
        Cell(""),
        *(_share(of.get(f"fast_{p:g}"), 0) for p in FAST_P),
        _share(of["api_misuse"]),
        Cell("measured, not stated", f"measured, {known['compiler']}"),
    ]


def pass_at_k(summary: dict[str, Any]) -> Table:
    """Chance that one of k samples is right."""
    rows = [
        [Cell(row["label"], row["label"])] + [_share(row["pass_at_k"].get(str(k))) for k in PASS_AT]
        for row in summary["rows"]
    ]
    caption = (
        "Unbiased estimate of the chance that one of k samples is correct, mean over workloads, "
        "for k up to the fewest samples that any workload has. It supposes independent samples: "
        "of policies that learn from verdicts it describes what they made."
    )
    columns = ["", *(f"pass@{k}" for k in PASS_AT)]
    return Table("pass_at_k", "pass@k", caption, columns, rows)


def failures(summary: dict[str, Any]) -> Table:
    """What the samples came to."""
    rows = []
    for row in summary["rows"]:
        total = max(1, row["samples"])
        cells = [
            Cell(f"{count:,} ({count / total:.1%})" if count else "0", count)
            for count in (row["outcomes"][name] for name in OUTCOMES)
        ]
        rows.append([Cell(row["label"], row["label"]), *cells])
    caption = "All samples, by their verdict; the kinds of mistakes are those of docs/taxonomy.md."
    columns = ["", *(NAMES[name] for name in OUTCOMES)]
    return Table("outcomes", "What samples came to", caption, columns, rows)


def columns_beside(summary: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Reference columns of the table of workloads: heading, and cells by workload."""
    found: list[tuple[str, dict[str, Any]]] = []
    shipped, known = references.kernels(), references.published()
    for name, title in (("ours", "kernels of this package"), ("experts", "jax's own kernels")):
        table = shipped[name]
        if table["target"] != summary["facts"]["target"] or not table["workloads"]:
            continue
        named = f"predicted, libtpu {table['versions']['libtpu']}, jax {table['versions']['jax']}"
        found.append((f"{title} ({named})", table["workloads"]))
    for who in ("expert", *known["methods"]):
        if who != "expert" and summary["facts"]["kind"] != "model":
            continue  # a model's, which must not stand beside synthetic rows
        of = {w: {"speedup": v[who]} for w, v in known["speedups"].items() if who in v}
        if of:
            found.append((f"{who}, published (measured, compiler not stated)", of))
    return found


def per_workload(summary: dict[str, Any]) -> Table:
    """Best speedup of each workload beside kernels by people."""
    names = list(dict.fromkeys(name for row in summary["rows"] for name in row["speedups"]))
    beside = [(title, of) for title, of in columns_beside(summary) if of.keys() & {*names}]
    rows = []
    for name in names:
        cells = [Cell(name, name)]
        for index, row in enumerate(summary["rows"]):
            cell = _x(row["speedups"].get(name))
            cells.append(Cell(cell.text or "–" * (name in row["speedups"]), cell.value, index))
        for _, of in beside:
            known = of.get(name, {})
            cell = _x(known.get("speedup"))
            bound = "at least " * ("uncertain" in known.get("flags", ()) and bool(cell.text))
            cells.append(Cell(bound + cell.text, cell.value))
        rows.append(cells)
    ours = compilers(summary)
    caption = (
        "Best speedup over XLA's program, a dash where nothing is correct. Of several seeds it is "
        "the median. Every column names the compiler of its baseline. "
        + " ".join(references.published()["cautions"])
    )
    columns = ["", *(f"{row['label']} ({ours})" for row in summary["rows"])]
    columns += [heading for heading, _ in beside]
    return Table("workloads", "Workloads", caption, columns, rows)


def progress(summary: dict[str, Any]) -> Table:
    """How good the best is after so many samples."""
    length = max(len(row["progress"]["solved"]) for row in summary["rows"])
    steps = sorted({1, *(2**n for n in range(1, 12) if 2**n < length), length})
    rows = []
    for row in summary["rows"]:
        curve = row["progress"]
        cells = [Cell(row["label"], row["label"])]
        for step in steps:
            at = min(step, len(curve["solved"])) - 1
            best, share = curve["median_best"][at], curve["solved"][at]
            cells.append(Cell(f"{best:.2f}x, {share:.0%}", best))
        rows.append(cells)
    caption = (
        "After so many samples of each workload: median over workloads of the best speedup so far "
        "(0 where nothing is correct yet), and share of workloads solved."
    )
    columns = ["", *(f"{step} samples" if step > 1 else "1 sample" for step in steps)]
    return Table("progress", "Progress over samples", caption, columns, rows)


def markdown(summary: dict[str, Any], images: Sequence[str] = ()) -> str:
    """The report as Markdown.

    Args:
        summary: As `summarise` makes it.
        images: Files to show, beside the report.
    """
    facts = summary["facts"]
    lines = ["# Report", "", sentence(facts), ""]
    lines += [f"- {_escaped(note)}" for note in summary["notes"]]
    for table in tables(summary):
        lines += ["", f"## {table.title}", "", table.caption, ""]
        lines.append(f"| {' | '.join(map(_escaped, table.columns))} |")
        lines.append(f"|---|{'---:|' * (len(table.columns) - 1)}")
        lines += [f"| {' | '.join(_escaped(c.text) for c in row)} |" for row in table.rows]
    lines += [f"\n![{name.removesuffix('.png')}]({name})" for name in images]
    return "\n".join(lines) + "\n"


def sentence(facts: dict[str, Any]) -> str:
    """What all of a report's verdicts share, in words."""
    versions = ", ".join(f"{name} {value}" for name, value in sorted(facts["versions"].items()))
    return (
        f"Target {facts['target']}, times {facts['times']}, protocol {facts['protocol']}, "
        f"{versions or 'versions not known'}; verdicts: {facts['evaluator']}."
    )


def to_csv(table: Table) -> str:
    """A table as CSV: plain numbers, shares from 0 to 1."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row" if not name else name for name in table.columns])
    for row in table.rows:
        writer.writerow(["" if cell.value is None else cell.value for cell in row])
    return out.getvalue()


def _escaped(text: str) -> str:
    for character in "\\|<>*_`[]":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def _n(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def _x(value: float | None) -> Cell:
    return Cell("" if value is None else f"{value:.2f}", value)


def _share(value: float | None, digits: int = 1) -> Cell:
    return Cell("" if value is None else f"{value:.{digits}%}", value)
