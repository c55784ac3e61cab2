"""Runs the four published methods without a model, and writes docs/reproduced.md.

    python scripts/reproduce_tables.py --offline [--workloads rms_norm,ragged_dot] [--budget 144]
        [--seeds 3] [--max-seconds 3600] [--workers 1]
    python scripts/reproduce_tables.py --page       only write the page again

The template proposer stands in for a model: the results are synthetic. Every verdict is the real
evaluator's and goes at once to a log in the folder, so that a stopped run goes on where it was, and
equal texts of all methods and seeds are evaluated once; those of the tables in baselines/records/
are known (no method is shown one before it asks for that text). Workloads come one after the other,
those with cheap kernels first, each with all methods and seeds; what is finished goes to
docs/reproduced.jsonl, and the page says what that is.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import click

from baselines import kernels, tuning
from baselines.policy import BUDGET
from baselines.proposers import NotApplicable
from baselines.rollout.setup import chosen_workloads
from jaxbench_env.canonical import canonical_hash
from jaxbench_env.evaluator.build import installed_versions
from jaxbench_env.evaluator.evaluator import PROTOCOL
from jaxbench_env.evaluator.service.client import SharedEvaluator
from jaxbench_env.progress import progress_bar
from reproduced import episodes, page
from workloads import Workload

DOCS = Path(__file__).parents[1] / "docs"

#: Workloads whose verdicts are cheap, cheapest first; the others follow by flops.
CHEAP = ("rms_norm", "conv3d_group_norm_mean", "ragged_dot")


def _cost(workload: Workload) -> tuple[int, float]:
    known = CHEAP.index(workload.id) if workload.id in CHEAP else len(CHEAP)
    return known, workload.roofline_ms("v6e")


def _shared(workload: Workload) -> dict[str, Any]:
    """What must be equal for two lines of a workload to be comparable."""
    return {
        "workload": workload.id,
        "kernel": canonical_hash(kernels.source(workload.id)),
        "protocol": PROTOCOL,
        "target": "v6e",
        "versions": installed_versions().as_dict(),
    }


def _workload(
    workload: Workload, verdicts: episodes.Verdicts, budget: int, seeds: int, advance: Any
) -> list[dict[str, Any]]:
    """The lines of a workload.

    Raises:
        OutOfTime: If the time is over before all are there.
        NotApplicable: If there is no kernel with tunables for it.
    """
    lines, charged = [], set()
    own = episodes.own(verdicts)
    for seed in range(seeds):
        for method in episodes.METHODS:
            line = episodes.run(method, verdicts, budget, seed, advance)
            seconds = {kernel[:12]: took for kernel, took in verdicts.seconds.items()}
            new = {sample[-1] for sample in line["samples"]} - charged
            charged |= new
            lines.append(
                {
                    **_shared(workload),
                    "own": round(own.speedup, 4) if own.correct else None,
                    **line,
                    "texts": len(new),
                    "timed": len(new & seconds.keys()),
                    "seconds": round(sum(seconds[kernel] for kernel in new & seconds.keys()), 1),
                }
            )
    return lines


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except FileNotFoundError:
        return []


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_text(text)


@click.command()
@click.option("--offline", is_flag=True, help="Run the methods with the template proposer.")
@click.option("--page", "page_only", is_flag=True, help="Write the page alone.")
@click.option("--workloads", "names", default="all", show_default=True, help="Ids, or all.")
@click.option("--budget", default=BUDGET, show_default=True, help="Evaluations per episode.")
@click.option("--seeds", default=3, show_default=True, help="Episodes of each method.")
@click.option("--workers", default=1, show_default=True, help="Evaluations at once.")
@click.option("--max-seconds", type=float, help="Begin no evaluation after so long.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/reproduce"),
    show_default=True,
    help="Where every verdict is added to <id>.jsonl.",
)
@click.option(
    "--docs",
    type=click.Path(path_type=Path, file_okay=False),
    default=DOCS,
    show_default=True,
    help="Where reproduced.jsonl and reproduced.md go.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    offline: bool,
    page_only: bool,
    names: str,
    budget: int,
    seeds: int,
    workers: int,
    max_seconds: float | None,
    folder: Path,
    docs: Path,
    as_json: bool,
) -> None:
    """Run the four published methods without a model, and write docs/reproduced.md."""
    if offline == page_only:
        raise click.UsageError(
            "give --offline (or --page); with a model there is `jaxbench rollout`"
        )
    if min(budget, seeds, workers) < 1:
        raise click.UsageError("--budget, --seeds and --workers are at least 1")
    kept = _read(docs / "reproduced.jsonl")
    if offline:
        deadline = time.monotonic() + (math.inf if max_seconds is None else max_seconds)
        try:
            chosen = sorted(chosen_workloads(names), key=_cost)
        except (ValueError, LookupError) as error:
            raise click.UsageError(str(error)) from None
        with progress_bar(len(chosen) * seeds * 4 * budget, "episodes") as advance:
            for workload in chosen:
                log = episodes.log(folder, workload)
                known = tuning.shipped(workload, "v6e")
                verdicts = episodes.Verdicts(
                    workload, SharedEvaluator(), log, deadline, workers, known
                )
                try:
                    lines = _workload(workload, verdicts, budget, seeds, advance)
                except (NotApplicable, kernels.NoKernel):
                    continue
                except episodes.OutOfTime:
                    break
                kept = [
                    line
                    for line in kept
                    if (line["workload"], line["budget"]) != (workload.id, budget)
                ]
                kept += lines
                docs.mkdir(parents=True, exist_ok=True)
                _write(docs / "reproduced.jsonl", kept)
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "reproduced.md").write_text(page.written(kept))
    found = page.summaries(kept)
    click.echo(json.dumps(found, indent=1) if as_json else page.tables(found))


if __name__ == "__main__":
    main()
