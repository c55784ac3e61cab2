"""Verdicts a minute, memory of all processes, a soak and a fuzz, through the environment.

    python scripts/bench_throughput.py [--steps 3] [--soak 1000] [--fuzz 2000] [--json]

Prints tables; `docs/throughput.md` keeps a run. Each part can be left out by the value 0.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import gymnasium as gym
from rich.console import Console
from rich.table import Table

import jaxbench_env  # noqa: F401  (registers the environments)
from baselines import kernels
from fuzz_texts import texts
from jaxbench_env.evaluator.judge.pool import pool
from jaxbench_env.evaluator.sandbox import sandbox
from jaxbench_env.evaluator.service import address, client
from jaxbench_env.progress import progress_bar

ID = "JAXBench/rms_norm"
WORKERS = (1, 2, 4)


def processes() -> list[int]:
    """This process, its descendants, and those of the service."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if stat[0] != "Z":
            parents[int(name)] = int(stat[1])
    service = client.answers(address.own(), "status")
    ours = {os.getpid(), *([service["pid"]] if service else [])}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sorted(ours & parents.keys())


def memory_bytes(pids: list[int]) -> int:
    """Proportional set size of processes: a shared page counts once."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def state() -> dict[str, int]:
    """What must not grow."""
    pids = processes()
    files = 0
    for pid in pids:
        try:
            files += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            pass
    temporary = list(Path(tempfile.gettempdir()).glob("jaxbench-*/*"))
    return {
        "mb": memory_bytes(pids) >> 20,
        "processes": len(pids),
        "open_files": files,
        "temporary_files": len(temporary),
    }


def throughput(workers: int, service: bool, steps: int, advance) -> dict[str, Any]:
    """Steps `workers` environments in processes of their own, after a first step that warms up."""
    os.environ["JAXBENCH_SERVICE"] = "on" if service else "off"
    envs = gym.make_vec(
        ID, num_envs=workers, vectorization_mode="async", max_attempts=steps + 2, cache=False
    )
    source = kernels.source("rms_norm")
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(1):
            peak[0] = max(peak[0], memory_bytes(processes()))

    try:
        envs.reset(seed=0)
        envs.step((source,) * workers)
        watcher = threading.Thread(target=watch)
        watcher.start()
        started = time.monotonic()
        for _ in range(steps):
            *_, infos = envs.step((source,) * workers)
            advance("")
        seconds = time.monotonic() - started
        over.set()
        watcher.join()
        assert set(infos["result"]["status"]) == {"ok"}, infos
        idle = state()
    finally:
        over.set()
        envs.close()
    client.answers(address.own(), "stop")
    while len(processes()) > 2:  # this one and multiprocessing's helper
        time.sleep(0.2)
    return {
        "workers": workers,
        "service": service,
        "per_minute": 60 * workers * steps / seconds,
        "peak_mb": peak[0] >> 20,
        "idle_mb": idle["mb"],
        "processes": idle["processes"],
    }


def soak(steps: int, until: float, advance) -> dict[str, Any]:
    """Steps one environment with a mix of texts; the state after every twentieth part."""
    os.environ["JAXBENCH_SERVICE"] = "on"
    right = kernels.source("rms_norm")
    env = gym.make(ID, max_attempts=steps).unwrapped
    env.reset()
    seen, cached, rows, slowest = Counter(), 0, [], 0.0
    for number in range(steps):
        match number % 20:
            case 0 if number % 100 == 0:
                text = f"{right}# {number}\n"
            case 0 if number % 100 == 60:
                text = f"{right}# {number}\n".replace(" * scale", " + scale")
            case 1 | 6 | 11:
                text = f"import os  # {number}\n"
            case 2:
                text = f"def workload(x, scale):  # {number}\n    return x\n"
            case 13:
                text = f"def workload(x, scale):  # {number}\n    return x[0]\n"
            case 4:
                text = f"def workload(x, scale:  # {number}\n"
            case _:
                text = right
        *_, info = env.step(text)
        seen[info["result"]["status"]] += 1
        if "cache" in env.last_result.durations:
            cached += 1
            slowest = max(slowest, env.last_result.durations["total"])
        if (number + 1) % max(1, steps // 20) == 0:
            rows.append({"step": number + 1, **state()})
        advance("")
        if time.monotonic() > until:
            break
    env.close()
    return {
        "statuses": dict(seen),
        "cached": cached,
        "slowest_cached_ms": 1e3 * slowest,
        "states": rows,
    }


def fuzz(count: int, until: float, advance) -> dict[str, Any]:
    """Steps texts that nobody would write."""
    os.environ["JAXBENCH_SERVICE"] = "on"
    env = gym.make(ID, max_attempts=count).unwrapped
    env.reset(seed=0)
    seen: dict[str, Counter] = {}
    for kind, text in texts([kernels.source(n) for n in ("rms_norm", "gemm")], count, seed=1):
        observation, *_, info = env.step(text)
        assert observation in env.observation_space
        status = info["result"]["status"]
        seen.setdefault(kind, Counter())[status] += 1
        if status == "evaluator_error":
            print(f"evaluator_error: {info['result']['message']}\n{text!r}")
        advance("")
        if time.monotonic() > until:
            break
    env.close()
    count = sum(map(Counter.total, seen.values()))
    return {"texts": count, "statuses": {kind: dict(c) for kind, c in seen.items()}, **state()}


@click.command()
@click.option("--steps", default=3, help="Counted steps of each environment.")
@click.option("--soak", "soak_steps", default=1000, help="Steps of the soak.")
@click.option("--fuzz", "fuzz_texts", default=2000, help="Texts of the fuzz.")
@click.option("--minutes", default=60.0, help="Most minutes of the soak, and of the fuzz.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def main(steps: int, soak_steps: int, fuzz_texts: int, minutes: float, as_json: bool) -> None:
    """Measure throughput and memory, and look for leaks."""
    facts: dict[str, Any] = {"cores": os.cpu_count()}
    total = 2 * len(WORKERS) * steps + soak_steps + fuzz_texts
    # A cache of this run's own, so that the fresh texts of the soak are fresh.
    with tempfile.TemporaryDirectory(prefix="jaxbench-test-") as cache:
        os.environ["JAXBENCH_CACHE"] = cache
        with progress_bar(total, "stepping") as advance:
            if steps:
                facts["throughput"] = [
                    throughput(workers, service, steps, advance)
                    for service in (False, True)
                    for workers in WORKERS
                ]
            if soak_steps:
                facts["soak"] = soak(soak_steps, time.monotonic() + 60 * minutes, advance)
            if fuzz_texts:
                facts["fuzz"] = fuzz(fuzz_texts, time.monotonic() + 60 * minutes, advance)
        client.answers(address.own(), "stop")
        sandbox().close()
        pool().close()
    print(json.dumps(facts, indent=2)) if as_json else show(facts)


def show(facts: dict[str, Any]) -> None:
    """Prints the tables."""
    console = Console(width=100)
    if "throughput" in facts:
        table = Table(
            *("env workers", "service", "verdicts a minute", "peak MB", "idle MB", "processes"),
            title=f"rms_norm, nothing cached, {facts['cores']} cores; PSS of all processes",
        )
        for row in facts["throughput"]:
            table.add_row(
                str(row["workers"]),
                "on" if row["service"] else "off",
                f"{row['per_minute']:.1f}",
                *(str(row[name]) for name in ("peak_mb", "idle_mb", "processes")),
            )
        console.print(table)
    if "soak" in facts:
        found = facts["soak"]
        names = ("step", "mb", "processes", "open_files", "temporary_files")
        table = Table(*names, title="Soak: all processes after so many steps of one environment")
        for row in found["states"]:
            table.add_row(*(str(row[name]) for name in names))
        console.print(table)
        console.print(f"Verdicts: {found['statuses']}")
        console.print(
            f"{found['cached']} came from disk, the slowest in {found['slowest_cached_ms']:.1f} ms"
        )
    if "fuzz" in facts:
        found = facts["fuzz"]
        console.print(f"Fuzz: {found['texts']} texts, none raised.")
        for kind, statuses in found["statuses"].items():
            console.print(f"  {kind}: {statuses}")
        console.print(
            f"  after it {found['mb']} MB, {found['processes']} processes, "
            f"{found['open_files']} open files"
        )


if __name__ == "__main__":
    main()
