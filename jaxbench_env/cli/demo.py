"""One episode of mamba2_scan with three attempts, as an agent would see it."""

from __future__ import annotations

import json
from importlib.resources import files

import click

ATTEMPTS = (
    ("an API mistake", "api_mistake"),
    ("a kernel that forgets its state between chunks", "wrong"),
    ("the chunked kernel of the baselines", None),
)


def _source(name: str | None) -> str:
    if name is None:
        from baselines import kernels

        return kernels.source("mamba2_scan")
    return (files("jaxbench_env.cli") / "demo_kernels" / f"{name}.py").read_text()


def run(as_json: bool) -> int:
    """Runs the demo. Returns the exit code: 0 if the last attempt was right, 3 for our fault."""
    import gymnasium as gym
    from rich.console import Console
    from rich.table import Table

    import jaxbench_env  # noqa: F401  (registers the environments)

    console = Console(quiet=as_json)
    waiting = Console(stderr=True)
    env = gym.make("JAXBench/mamba2_scan", max_attempts=len(ATTEMPTS), cache=False)
    with waiting.status("Compiling XLA's program for the reference (once; it is kept on disk)"):
        observation, _ = env.reset(seed=0)
    console.rule("Task (what the agent reads first)")
    console.print(observation["task"], markup=False, highlight=False, soft_wrap=True)
    rows = []
    for number, (what, name) in enumerate(ATTEMPTS, 1):
        console.rule(f"Attempt {number}: {what}")
        with waiting.status("Tracing, compiling for the TPU, checking numbers"):
            observation, reward, terminated, _, _ = env.step(_source(name))
        console.print(observation["feedback"], markup=False, highlight=False, soft_wrap=True)
        console.print(f"Reward: {reward:.2f}   terminated: {terminated}", style="bold")
        rows.append({"attempt": what, "reward": reward, **env.unwrapped.last_result.to_dict()})
    env.close()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        table = Table("attempt", "status", "kernel ms", "XLA ms", "reward", "took")
        for row in rows:
            times = row["times"]
            table.add_row(
                row["attempt"],
                row["status"],
                _ms(times["candidate_ms"]),
                _ms(times["baseline_ms"]),
                f"{row['reward']:.2f}",
                f"{row['durations']['total']:.1f} s",
            )
        console.rule("Summary")
        console.print(table)
        console.print(f"Times are predicted, not measured ({rows[-1]['times']['compiler']}).")
    if any(row["status"] == "evaluator_error" for row in rows):
        return 3
    return 0 if rows[-1]["correct"] else 1


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
