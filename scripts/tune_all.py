"""Tunes all kernels of the baselines, a few points each, and collects the recorded verdicts.

    python scripts/tune_all.py [--only gemm,rms_norm] [--budget 12] [--method hill] [--minutes 60]
        [--more runs/reproduce]
    python scripts/tune_all.py --collect [--more runs/reproduce]

Every verdict goes at once to a file of JSON lines in the folder, so that a killed run continues
where it stopped. After each kernel its table in baselines/records/ is written anew: what the table
and the folders have on today's kernel text. ``--collect`` does only that. The episodes of
reproduce_tables.py meet the same points: with ``--more runs/reproduce`` these are known and
recorded.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import click

import workloads
from baselines import kernels, tuning
from baselines.templates import TemplateSpace, is_template
from jaxbench_env import recorded
from jaxbench_env.canonical import canonical_hash
from jaxbench_env.evaluator.result import Provenance, Status
from jaxbench_env.evaluator.service.client import SharedEvaluator
from jaxbench_env.progress import progress_bar

RECORDS = Path(__file__).parents[1] / "baselines" / "records"
_MADE = ("protocol", "workload_version", "target", "versions")


def collect(workload: workloads.Workload, space: TemplateSpace, logs: Sequence[tuning.Log]) -> int:
    """Writes the table of a kernel from logs; returns how many verdicts it has.

    Verdicts on other texts than today's kernel at any of its values are left out, and those on
    which the evaluator failed. Where the compiler of the table is another one, the table starts
    anew.
    """
    target = "v6e"
    path = RECORDS / f"{workload.id}.jsonl.gz"
    rows = [row for log in logs for row in log.current(workload, target)]
    found = {row["kernel"]: row for row in rows}
    made = {name: rows[-1][name] for name in _MADE} if rows else None
    try:
        table = recorded.read(path)
    except recorded.RecordError:
        table = None
    if table is not None and made in (None, {name: table.header[name] for name in _MADE}):
        found = {**table.rows, **found}
        made = {name: table.header[name] for name in _MADE}
    values = {canonical_hash(space.source(a)): space.values(a) for a in space.actions()}
    kept = [
        {"kernel": kernel, "values": values[kernel], "result": row["result"]}
        for kernel, row in found.items()
        if kernel in values and row["result"]["status"] != Status.EVALUATOR_ERROR
    ]
    if kept:
        baseline = SharedEvaluator(target=target).baseline(workload)
        provenance = Provenance(workload=workload.id, **made)
        recorded.write(path, recorded.header(workload, baseline, provenance), kept)
    else:
        path.unlink(missing_ok=True)
    return len(kept)


def _tuned(workload: workloads.Workload, space: TemplateSpace, log: tuning.Log, **options: Any):
    """Searches, and says how the text's own values compare with the best."""
    search = tuning.tune(
        workload,
        space,
        SharedEvaluator(),
        log=log,
        known=tuning.shipped(workload, "v6e"),
        **options,
    )
    points = list(search)
    best = tuning.best(points)
    default = next(p for p in points if p.action == tuple(space.default.tolist()))
    return {
        "points": len(points),
        "default_ms": default.ms if default.result.correct else None,
        "best_ms": best[0].ms if best else None,
        "best": best[0].values if best else None,
    }


@click.command()
@click.option("--only", default="", help="Comma-separated ids.")
@click.option("--budget", default=12, show_default=True, help="Points to look at for each kernel.")
@click.option("--method", type=click.Choice([*tuning.METHODS]), default="hill", show_default=True)
@click.option("--seed", default=0, show_default=True, help="Seed of the searches.")
@click.option("--violations", is_flag=True, help="Also points that break the constraints.")
@click.option("--minutes", type=float, help="Start no further kernel after so long.")
@click.option("--collect", "only_collect", is_flag=True, help="Write the tables, tune nothing.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/tuning"),
    show_default=True,
    help="Where every verdict is added to <id>.jsonl.",
)
@click.option(
    "--more",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    help="Another folder with such files, whose verdicts count as well.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    only: str,
    minutes: float | None,
    only_collect: bool,
    folder: Path,
    more: tuple[Path, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Tune all kernels of the baselines and write baselines/records/."""
    wanted = [name for name in only.split(",") if name]
    unknown = sorted({*wanted} - {*kernels.ids()})
    if unknown:
        raise click.UsageError(f"no kernel for {', '.join(unknown)}")
    chosen = [name for name in kernels.ids() if not wanted or name in wanted]
    chosen = [name for name in chosen if is_template(kernels.source(name))]
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    report: dict[str, dict[str, Any]] = {}
    with progress_bar(len(chosen), "tuning") as advance:
        for name in chosen:
            if time.monotonic() > deadline:
                break
            workload, space = workloads.get(name), TemplateSpace(kernels.source(name))
            logs = [tuning.Log(place / f"{name}.jsonl") for place in (folder, *more)]
            recorded_here = collect(workload, space, logs)
            row = {}
            if not only_collect:
                row = _tuned(workload, space, logs[0], **options)
                recorded_here = collect(workload, space, logs)
            report[name] = {**row, "space": space.size, "recorded": recorded_here}
            advance(f", {name}")
    if as_json:
        click.echo(json.dumps(report, indent=1))
        return
    for name, row in report.items():
        line = f"{name}: {row['recorded']} of {row['space']} points recorded"
        if row.get("best_ms"):
            own = row["default_ms"]
            line += f"; best {row['best_ms']:.4f} ms"
            line += f", the text's own values {own:.4f} ms" if own else ", own values fail"
            line += f"; best at {row['best']}" if own is None or row["best_ms"] < own else ""
        click.echo(line)


if __name__ == "__main__":
    main()
