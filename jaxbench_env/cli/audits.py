"""Audits of the evaluator's own foundations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from jaxbench_env.evaluator.result import NumericCheck
from jaxbench_env.progress import progress_bar
from workloads import DRAWS, Workload

AUDIT_SECONDS = 600


def audit_workloads(chosen: Sequence[Workload], seed: int, preset: str) -> list[dict[str, Any]]:
    """Degenerate kernels against every draw of some workloads, JSON-ready, in their order.

    Returns:
        Per workload: number of degenerate results, names of those that pass, and the one that
        comes closest, with the factor by which it breaks the rule.
    """
    found: dict[tuple[str, str], dict[str, float]] = {}
    jobs = [(workload, draw) for workload in chosen for draw in DRAWS]
    with (
        ThreadPoolExecutor(os.cpu_count() or 1) as threads,
        progress_bar(len(jobs), "auditing") as advance,
    ):
        futures = {threads.submit(_audit, *job, seed, preset): job for job in jobs}
        for future in as_completed(futures):
            workload, draw = futures[future]
            found[workload.id, draw] = future.result()
            advance(f", {workload.id}")
    return [_row(workload, found) for workload in chosen]


def _audit(workload: Workload, draw: str, seed: int, preset: str) -> dict[str, float]:
    from jaxbench_env.evaluator.judge.degenerate import excess
    from jaxbench_env.evaluator.judge.pool import pool
    from jaxbench_env.evaluator.judge.worker import named

    request = {"do": "degenerate", **named(workload), "draw": draw, "seed": seed, "preset": preset}
    answer, _ = pool().ask("numerics", request, timeout=AUDIT_SECONDS)
    return {name: excess(NumericCheck(**check)) for name, check in answer["checks"].items()}


def _row(workload: Workload, found: dict[tuple[str, str], dict[str, float]]) -> dict[str, Any]:
    factors = {
        f"{name} ({draw})": factor
        for draw in DRAWS
        for name, factor in found[workload.id, draw].items()
    }
    closest = min(factors, key=factors.__getitem__)
    return {
        "workload": workload.id,
        "results": len(factors),
        "passing": [name for name, factor in factors.items() if factor <= 1],
        "closest": closest,
        "closest_factor": round(factors[closest], 2),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Prints the table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table("workload", "degenerate kernels", "that pass", "closest", "error over allowance")
    for row in rows:
        table.add_row(
            row["workload"],
            str(row["results"]),
            ", ".join(row["passing"]) or "none",
            row["closest"],
            f"{row['closest_factor']:.1f}",
        )
    Console(width=None if Console().is_terminal else 180).print(table)
