"""Wall time of reset and step by stage, and the memory of the parent over many steps.

    python scripts/bench_step.py [--steps 10] [--memory-steps 30] [--json]

Prints tables; nothing here is a test, because wall times on shared machines are noisy. The target
for a warm step is at most max(compile with dump + replay, numerics) + 0.3 s.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time

import click
import gymnasium as gym
from rich.console import Console
from rich.table import Table

import jaxbench_env  # noqa: F401  (registers the environments)
from baselines import kernels
from jaxbench_env.evaluator.service import address, client
from jaxbench_env.progress import progress_bar

WORKLOADS = ("rms_norm", "gemm", "mamba2_scan")
STAGES = ("audit", "trace", "compile", "price", "numerics", "simulate", "total")
ALLOWANCE_SECONDS = 0.3
QUICK_STEPS = 50


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bench(workload: str, steps: int, advance) -> dict:
    """Steps one workload's kernel; the first step warms processes up and is not counted."""
    env = gym.make(f"JAXBench/{workload}", max_attempts=steps + 1, cache=False)
    started = time.perf_counter()
    env.reset(seed=0)
    first_reset = time.perf_counter() - started
    started = time.perf_counter()
    env.reset(seed=0)
    reset = time.perf_counter() - started
    source, rows = kernels.source(workload), []
    for number in range(steps + 1):
        *_, info = env.step(source)
        result = env.unwrapped.last_result
        if number:
            rows.append(result.durations)
        advance("")
    env.close()
    record = {stage: statistics.median(row[stage] for row in rows) for stage in STAGES}
    floors = [max(row["compile"] + row["price"], row["numerics"]) for row in rows]
    overheads = [row["total"] - floor for row, floor in zip(rows, floors, strict=True)]
    return {
        "workload": workload,
        "status": info["result"]["status"],
        "speedup": info["result"]["speedup"],
        "first_reset": first_reset,
        "reset": reset,
        **record,
        "over_floor": statistics.median(overheads),
    }


def memory(steps: int, advance) -> list[int]:
    """Resident bytes of this process after each of many steps."""
    env = gym.make("JAXBench/rms_norm", max_attempts=steps, cache=False)
    env.reset(seed=0)
    source, seen = kernels.source("rms_norm"), []
    for _ in range(steps):
        env.step(source)
        seen.append(resident_bytes())
        advance("")
    return seen


def overheads(steps: int, advance) -> dict[str, float]:
    """Milliseconds of steps that do next to nothing: in process, by the service, and from disk."""
    found, usual = {}, os.environ.get("JAXBENCH_SERVICE", "on")
    for name, service in (("rejected, no service", "off"), ("rejected, service", "on")):
        os.environ["JAXBENCH_SERVICE"] = service
        found[name] = _median_ms("import os\n", steps, advance)
    os.environ["JAXBENCH_SERVICE"] = usual
    with tempfile.TemporaryDirectory(prefix="jaxbench-test-") as folder:
        kept = os.environ.get("JAXBENCH_CACHE")
        os.environ["JAXBENCH_CACHE"] = folder
        found["right, from disk"] = _median_ms(kernels.source("rms_norm"), steps, advance)
        client.answers(address.own(), "stop")  # the one with that cache
        os.environ.pop("JAXBENCH_CACHE")
        if kept:
            os.environ["JAXBENCH_CACHE"] = kept
    return found


def _median_ms(source: str, steps: int, advance) -> float:
    env = gym.make("JAXBench/rms_norm", max_attempts=steps + 1)
    env.reset()
    env.step(source)
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        env.step(source)
        seconds.append(time.perf_counter() - started)
        advance("")
    return 1e3 * statistics.median(seconds)


@click.command()
@click.option("--steps", default=10, help="Counted steps of each kernel.")
@click.option("--memory-steps", default=30, help="Steps over which the parent's memory is read.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def main(steps: int, memory_steps: int, as_json: bool) -> None:
    """Measure env.step and env.reset."""
    total = len(WORKLOADS) * (steps + 1) * bool(steps) + memory_steps + 3 * QUICK_STEPS
    with progress_bar(total, "stepping") as advance:
        quick = overheads(QUICK_STEPS, advance)
        rows = [bench(workload, steps, advance) for workload in WORKLOADS if steps]
        seen = memory(memory_steps, advance)
    if as_json:
        print(
            json.dumps(
                {"steps": rows, "overheads_ms": quick, "parent_resident_bytes": seen}, indent=2
            )
        )
        return
    console = Console(width=120)
    table = Table("step", "median ms", title="Steps that evaluate nothing")
    for name, milliseconds in quick.items():
        table.add_row(name, f"{milliseconds:.1f}")
    console.print(table)
    table = Table("workload", "verdict", *STAGES, "over floor", title="Warm step, median seconds")
    for row in rows:
        verdict = f"{row['status']} {row['speedup']:.2f}x"
        cells = [f"{row[stage]:.2f}" for stage in STAGES]
        table.add_row(row["workload"], verdict, *cells, f"{row['over_floor']:.2f}")
    console.print(table)
    console.print(
        "over floor = total - max(compile + price, numerics), by step; "
        f"the target is {ALLOWANCE_SECONDS} s"
    )
    table = Table("workload", "first in this process", "later", title="Reset, milliseconds")
    for row in rows:
        table.add_row(
            row["workload"], f"{1e3 * row['first_reset']:.1f}", f"{1e3 * row['reset']:.1f}"
        )
    console.print(table)
    table = Table("after step", "resident MB", title="Memory of the parent")
    for number in sorted({1, 2, 5, 10, 20, len(seen)} & set(range(1, len(seen) + 1))):
        table.add_row(str(number), f"{seen[number - 1] / 1e6:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
