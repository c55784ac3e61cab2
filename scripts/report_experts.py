"""The published experts beside ours: library kernels, their published speedups, our kernels.

    python scripts/report_experts.py [--only gemm,flash_attention] [--no-evaluate]

Evaluates what is missing or stale in docs/experts.jsonl, a row at a time, and writes
docs/experts.md.
"""

from __future__ import annotations

import json

import click

import report_kernels
import ship_references
import workloads
from baselines import library_kernels
from baselines.templates import TemplateSpace
from jaxbench_env import evaluate
from jaxbench_env.evaluator.build import installed_versions
from jaxbench_env.evaluator.cache import UNSETTLED
from jaxbench_env.progress import progress_bar
from report_kernels import DOCS, Row
from workloads.data import published

TABLE = DOCS / "experts.jsonl"
HEAD = """# The published experts

Written by `scripts/report_experts.py`; rows in `experts.jsonl`. "Published" was measured on a TPU
v6e with {measured_with}. "Predicted" is the library's kernel as jax {jax} ships it
(`baselines/library_kernels/`, from `jax.experimental.pallas.ops.tpu`, with the blocks given) beside
XLA's program, both compiled by libtpu {libtpu} for a v6e. "Ours" is the kernel of
`baselines/kernels/` with the compiler of the predictions ([kernels.md](kernels.md)). The experts as
they were published, predicted with the compiler of the measurements: [timing.md](timing.md).

Predicted speedups are ratios of the times; what an agent would earn can be less (flags
`races_unchecked`, `uncertain`). A time that is a bound is one from above.

Such a text is evaluated only with `allow_library_kernels=True`. `tokamax` is left out: the process
that runs kernel texts has jax and its dependencies, and nothing else that could be imported.

| workload | XLA ms, published | expert ms | speedup | XLA ms, predicted | expert ms | speedup | \
ours | verdict | blocks |
|---|---|---|---|---|---|---|---|---|---|
"""


def page(rows: dict[str, Row], ours: dict[str, Row]) -> str:
    """docs/experts.md."""
    versions = next(iter(rows.values()))["versions"] if rows else installed_versions().as_dict()
    ids = report_kernels.priority()
    lines, notes = [], []
    gains: dict[str, list[float]] = {"published": [], "predicted": [], "ours": []}
    for name in ids:
        row, known = rows.get(name, {}), published(name)
        mine = report_kernels.speedup(ours[name]) if name in ours else 0.0
        measured = known.baseline_ms / known.expert_ms
        gain = row["xla_ms"] / row["ms"] if row.get("ms") else 0.0
        for key, value in zip(gains, (measured, gain, mine), strict=True):
            gains[key].append(value)
        blocks = ", ".join(f"{key} {value}" for key, value in row.get("values", {}).items())
        cells = [name, _ms(known.baseline_ms), _ms(known.expert_ms), f"{measured:.2f}"]
        cells[3] += "*" if known.note else ""
        cells += [_ms(row.get("xla_ms")), _ms(row.get("ms")), f"{gain:.2f}" if gain else ""]
        cells[6] = "at least " * ("uncertain" in row.get("flags", [])) + cells[6]
        cells.append(f"{mine:.2f}" if mine else "")
        cells.append(", ".join([row.get("status", "not evaluated"), *row.get("flags", [])]))
        lines.append(f"| {' | '.join([*cells, blocks])} |")
        if known.note:
            notes.append(f"\\* `{name}`: {known.note}.")
    means = {key: f"{report_kernels.geomean(values):.2f}" for key, values in gains.items()}
    mean = ["geometric mean, floor 1", "", "", means["published"], "", "", means["predicted"]]
    lines.append(f"| {' | '.join([*mean, means['ours'], '', ''])} |")
    head = HEAD.format(**versions, measured_with=published(ids[0]).compiler)
    return head + "\n".join(lines) + "\n\n" + "  \n".join(notes) + "\n"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def evaluated(name: str) -> Row:
    """Evaluates a library kernel and keeps its row."""
    text, workload = library_kernels.source(name), workloads.get(name)
    result = evaluate(name, text, allow_library_kernels=True)
    row = report_kernels.described(workload, text, result)
    row = {**row, "values": TemplateSpace(text).template.defaults}
    if result.status not in UNSETTLED:
        report_kernels.keep(row, TABLE, library_kernels.ids())
    return row


@click.command()
@click.option("--only", default="", help="Comma-separated ids.")
@click.option("--evaluate/--no-evaluate", "evaluates", default=True, help="Make missing rows.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def main(only: str, evaluates: bool, as_json: bool) -> None:
    """Evaluate the library kernels whose row is missing or stale, and write docs/experts.md."""
    wanted = [name for name in only.split(",") if name]
    unknown = sorted({*wanted} - {*library_kernels.ids()})
    if unknown:
        raise click.UsageError(f"no library kernel for {', '.join(unknown)}")
    rows = report_kernels.read(TABLE)
    todo = [
        name
        for name in library_kernels.ids()
        if (not wanted or name in wanted)
        and evaluates
        and report_kernels.stale(rows.get(name), name, library_kernels.source(name))
    ]
    with progress_bar(len(todo), "evaluating") as advance:
        for name in todo:
            advance(f", {name}: {evaluated(name)['status']}")
    rows = report_kernels.read(TABLE)
    (DOCS / "experts.md").write_text(page(rows, report_kernels.read()))
    ship_references.write()
    if as_json:
        click.echo(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
