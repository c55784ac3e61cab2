"""Writes docs/workloads.md: flops against XLA's own count, seconds of the reference's numerics.

    python scripts/report_workloads.py [--only ID,ID] [--out docs/workloads.md]

The seconds are those of one verdict's reference side: inputs, the reference in float32 and in the
workload's own dtypes, three draws at both check presets, compiled before. A candidate in interpret
mode comes on top.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_allow_excess_precision=false"  # as in the judge

import click
import jax

import workloads
from jaxbench_env.evaluator.judge import numerics
from jaxbench_env.progress import progress_bar
from workloads import DRAWS, Workload


def xla_flops(workload: Workload) -> float | None:
    """XLA's count for the reference at the published size, or None where it has none."""
    preset = workload.presets["v6e"]
    specs = [jax.ShapeDtypeStruct(s.shape, s.np_dtype) for s in preset.args.values()]
    function = jax.jit(functools.partial(workload.reference, preset.config))
    counted = function.lower(*specs).cost_analysis()
    return counted.get("flops") if counted else None


def seconds(workload: Workload, preset: str) -> float:
    """Wall seconds of the reference side at one preset."""
    for draw in DRAWS:  # compiles
        numerics.expected(workload, preset, draw, 100)
    started = time.perf_counter()
    for draw in DRAWS:
        numerics.expected(workload, preset, draw, 101)
    return time.perf_counter() - started


@click.command()
@click.option("--only", default="", help="Comma-separated ids.")
@click.option("--out", default="docs/workloads.md", type=click.Path(path_type=Path))
def main(only: str, out: Path) -> None:
    """Measure and write the table."""
    chosen = [workloads.get(n) for n in filter(None, only.split(","))] or [*workloads.every()]
    lines = [
        "# Workloads: counted work, and what a verdict's reference side costs",
        "",
        "Written by `scripts/report_workloads.py`. Flops are those of the reference as written, "
        "matrix products and convolutions only; XLA's count includes everything else, so it is a "
        "little larger. Seconds are wall time on 2 cores, warm, three draws, float32 and own "
        "dtypes together; they vary with the machine.",
        "",
        "Three counts differ for a reason: XLA counts the body of a loop once (megablox_gmm, 128 "
        "groups), leaves out the products with the padding at the edges of a convolution "
        "(conv_transpose3d), and counts every elementwise operation (rms_norm).",
        "",
        f"jax {jax.__version__}",
        "",
        "| workload | GFLOP | useful GFLOP | XLA's count / ours | s at tiles | s at varied |",
        "|---|---|---|---|---|---|",
    ]
    with progress_bar(len(chosen), "measuring") as advance:
        for workload in chosen:
            sizes = workload.sizes["v6e"]
            flops, counted = workload.flops(sizes), xla_flops(workload)
            ratio = "" if counted is None else f"{counted / flops:.3f}"
            lines.append(
                f"| {workload.id} | {flops / 1e9:,.1f} | {workload.flops_useful(sizes) / 1e9:,.1f} "
                f"| {ratio} | {seconds(workload, 'tiles'):.2f} "
                f"| {seconds(workload, 'varied'):.2f} |"
            )
            advance(f", {workload.id}")
    out.write_text("\n".join(lines) + "\n")
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
