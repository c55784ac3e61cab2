"""What the numbers at the published size cost: writes docs/full_numerics.md.

``python scripts/bench_full.py [--minutes N]`` measures, cheapest first, what fits into the time:
kernels of ours where there are any, else XLA's own result in a kernel's place, which costs what
the reference costs. Measurements are kept in ``docs/full_numerics.json``: a later call resumes.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

import workloads
from baselines import kernels
from jaxbench_env import evaluate
from jaxbench_env.evaluator import estimate
from jaxbench_env.evaluator.judge.pool import JudgeError, Refused, pool
from jaxbench_env.evaluator.judge.worker import named
from jaxbench_env.progress import progress_bar

DOCS = Path(__file__).parents[1] / "docs"
HEAD = """# Numbers at the published size

What `verify="full"` costs: seconds on two cores, and the judge's peak memory (bound: 12 GiB for
inputs, output and temporaries). "kernel" was measured with a kernel of ours, "reference" with
XLA's own result in a kernel's place: drawing inputs, the reference and the comparison, without
interpret mode. All others are estimates (`evaluator.estimate.full_seconds`). Made by
`scripts/bench_full.py`.

| workload | output compared | estimate, s | measured, s | measured | peak, GB |
|---|---|---|---|---|---|
"""


def _measure(workload: workloads.Workload) -> dict[str, Any]:
    """Seconds and bytes of one workload."""
    started = time.monotonic()
    if workload.id in kernels.ids():
        result = evaluate(
            workload, kernels.source(workload.id), seed=0, verify="full", progress=False
        )
        return {"kind": "kernel", "seconds": result.durations.get("full"), "said": result.message}
    request = {"do": "full", **named(workload), "preset": "v6e", "seed": 0}
    request["share"] = estimate.full_share(workload)
    try:
        found, _ = pool().ask("full", request, timeout=estimate.full_limit(workload))
    except (Refused, JudgeError) as error:
        return {"kind": "failed", "said": str(error)[:500]}
    finally:
        pool().close()  # the peak is that of one workload
    seconds = time.monotonic() - started
    return {"kind": "reference", "seconds": seconds, "peak": found["peak_bytes"]}


def _table(measured: dict[str, dict[str, Any]]) -> str:
    rows = []
    for w in workloads.every():
        row = measured.get(w.id, {})
        seconds = f"{row['seconds']:.0f}" if row.get("seconds") else ""
        peak = f"{row['peak'] / 1e9:.1f}" if row.get("peak") else ""
        cells = [w.id, f"{estimate.full_share(w):.0%}", f"{estimate.full_seconds(w):.0f}"]
        cells += [seconds, row.get("kind", "estimate only"), peak]
        rows.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(rows) + "\n"


@click.command()
@click.option("--minutes", default=25.0, show_default=True, help="When to stop measuring.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def main(minutes: float, as_json: bool) -> None:
    """Measures what fits into the time and writes the table."""
    kept = DOCS / "full_numerics.json"
    measured = json.loads(kept.read_text()) if kept.exists() else {}
    suite = [w for w in workloads.every() if w.file is None and w.id not in measured]
    todo = sorted(suite, key=estimate.full_seconds)
    deadline = time.monotonic() + 60 * minutes
    with progress_bar(len(todo), "measuring") as advance:
        for workload in todo:
            if time.monotonic() + estimate.full_seconds(workload) > deadline:
                break
            measured[workload.id] = _measure(workload)
            kept.write_text(json.dumps(measured, indent=1) + "\n")
            advance(f": {workload.id}")
    (DOCS / "full_numerics.md").write_text(_table(measured))
    if as_json:
        click.echo(json.dumps(measured))


if __name__ == "__main__":
    main()
