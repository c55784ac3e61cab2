"""The table of workloads."""

from __future__ import annotations

import dataclasses
from typing import Any

import workloads
from workloads.data import published


def rows(
    family: str | None = None, sort: str = "number", target: str = "v6e"
) -> list[dict[str, Any]]:
    """One JSON-ready row per workload; every time stands beside the compiler it belongs to.

    Raises:
        ValueError: For an unknown family, column or target.
    """
    from jaxbench_env.evaluator import baseline as baselines
    from jaxbench_env.evaluator.build import installed_versions
    from jaxbench_env.evaluator.evaluator import PROTOCOL

    families = sorted({w.family for w in workloads.every()})
    if family is not None and family not in families:
        raise ValueError(f"no family {family!r}; there are {', '.join(families)}")
    versions = installed_versions()
    found = []
    for workload in workloads.every():
        if family not in (None, workload.family):
            continue
        sizes, known = workload.sizes["v6e"], published(workload.id)
        flops, moved = workload.flops(sizes), workload.min_hbm_bytes()
        based = baselines.kept(workload, target, versions, PROTOCOL)
        found.append(
            {
                "id": workload.id,
                "number": workload.number,
                "family": workload.family,
                "model": workload.model,
                "inputs": [str(spec) for spec in workload.presets["v6e"].args.values()],
                "flops": flops,
                "flops_useful": workload.flops_useful(sizes),
                "hbm_bytes_min": moved,
                "intensity": flops / moved,
                "roofline_ms": workload.roofline_ms(target),
                "published_ms": known.baseline_ms,
                "published_expert_ms": known.expert_ms,
                "published_note": known.note,
                "published_compiler": known.compiler,
                "target": target,
                "predicted_ms": based.ms if based else None,
                "predicted_uncertain": based.uncertain if based else None,
                "predicted_compiler": str(versions),
                "predicted_versions": dataclasses.asdict(versions),
            }
        )
    if sort == "number":
        return found
    if not found or sort not in found[0]:
        raise ValueError(f"no column {sort!r}; there are number, {', '.join(found[0])}")
    return sorted(found, key=lambda row: (row[sort] is None, row[sort]))


def show(found: list[dict[str, Any]]) -> None:
    """Prints the table for people."""
    from rich.console import Console
    from rich.table import Column, Table

    first = found[0]
    table = Table(
        Column("id", no_wrap=True),
        *("number", "family", "model", "GFLOP", "useful", "MB", "flop/byte", "roofline ms"),
        f"published v6e ms\n({first['published_compiler']})",
        f"predicted {first['target']} ms\n({first['predicted_compiler']})",
    )
    for row in found:
        predicted = "" if row["predicted_ms"] is None else f"{row['predicted_ms']:.3f}"
        table.add_row(
            row["id"],
            row["number"],
            row["family"],
            row["model"].replace("KernelBench level 2, problem ", "KernelBench 2/"),
            f"{row['flops'] / 1e9:,.0f}",
            f"{row['flops_useful'] / 1e9:,.0f}",
            f"{row['hbm_bytes_min'] / 1e6:,.0f}",
            f"{row['intensity']:,.0f}",
            f"{row['roofline_ms']:.3f}",
            "" if row["published_ms"] is None else f"{row['published_ms']:.3f}",
            predicted + ("?" if row["predicted_uncertain"] else ""),
        )
    console = Console(width=None if Console().is_terminal else 240)
    console.print(table)
    if any(row["predicted_uncertain"] for row in found):
        console.print("? the predictor could not follow the program: the time is a bound")
