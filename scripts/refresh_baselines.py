"""Compiles and prices every baseline with the installed compiler, into the table that ships.

    python scripts/refresh_baselines.py [--only ID,ID] [--force] [--json]

Rows that are up to date are kept, and every finished row is written at once, so an interrupted run
resumes. Run it once in an environment of each supported pair of versions (Python 3.11 with jax
0.10.2, Python 3.12 with the newest jax).
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

import workloads
from jaxbench_env.evaluator import baseline as baselines
from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.build import BuildError, installed_versions
from jaxbench_env.evaluator.evaluator import PROTOCOL
from jaxbench_env.progress import progress_bar
from workloads.data import published

TARGET = "v6e"


def write(path: Path, table: dict) -> None:
    """Replaces the table, rows in the order of the published tables."""
    order = [name for name in workloads.ids() if name in table["workloads"]]
    table["workloads"] = {name: table["workloads"][name] for name in order}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(table, indent=1) + "\n")
    os.replace(temporary, path)


@click.command()
@click.option("--only", default="", help="Comma-separated ids.")
@click.option("--force", is_flag=True, help="Compile rows that are up to date too.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def main(only: str, force: bool, as_json: bool) -> None:
    """Refresh the shipped baselines of the installed compiler."""
    versions = installed_versions()
    path = Path(baselines.__file__).parent / "data" / baselines.data_file(versions)
    table = {"versions": versions.as_dict(), "target": TARGET, "workloads": {}}
    if path.exists():
        table["workloads"] = json.loads(path.read_text())["workloads"]
    chosen = [workloads.get(name) for name in filter(None, only.split(","))]
    marks = {w.id: baselines.fingerprint(w, TARGET, PROTOCOL) for w in workloads.every()}
    table["workloads"] = {k: v for k, v in table["workloads"].items() if k in marks}
    stale = [
        w
        for w in chosen or workloads.every()
        if force or table["workloads"].get(w.id, {}).get("fingerprint") != marks[w.id]
    ]
    failures = {}
    with (
        ThreadPoolExecutor(store.compile_slots()) as threads,
        progress_bar(len(stale), "compiling") as advance,
    ):
        futures = {threads.submit(baselines.make, w, TARGET): w.id for w in stale}
        for future in as_completed(futures):
            name = futures[future]
            try:
                row = {"fingerprint": marks[name], "baseline": asdict(future.result())}
                table["workloads"][name] = row
                write(path, table)
            except BuildError as error:
                failures[name] = f"{error.status}: {error.message}"
            advance(f", {name}")
    if as_json:
        print(json.dumps({**table, "failures": failures}, indent=1))
    else:
        show(table, failures, str(versions))
    if failures:
        raise SystemExit(1)


def show(table: dict, failures: dict[str, str], versions: str) -> None:
    """Prints predicted beside published times, each with its compiler."""
    measured_with = published("gemm").compiler
    view = Table("workload", f"predicted ms\n({versions})", f"published ms\n({measured_with})",
                 "HBM GB", "compile s", "remarks")  # fmt: skip
    for name, row in table["workloads"].items():
        record, known = row["baseline"], published(name).baseline_ms
        view.add_row(
            name,
            f"{record['ms']:.3f}",
            "" if known is None else f"{known:.3f}",
            f"{record['hbm_used'] / 1e9:.2f}",
            f"{record['compile_seconds']:.1f}",
            "uncertain" if record["uncertain"] else "",
        )
    console = Console(width=120)
    console.print(view)
    for name, why in failures.items():
        console.print(f"{name}: {why}", style="red")


if __name__ == "__main__":
    main()
