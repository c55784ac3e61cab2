"""Recorded verdicts on the kernels of `baselines.kernels`, one table per workload.

    env = gym.make("JAXBench/rms_norm", evaluator=records.evaluator())

`jaxbench_env.recorded` says what a table holds; `scripts/tune_all.py` makes them.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from jaxbench_env.recorded import RecordedEvaluator


def folder() -> Path:
    """Where the tables are."""
    return Path(str(resources.files(__name__)))


def path(workload_id: str) -> Path:
    """Where the table of a workload is or would be."""
    return folder() / f"{workload_id}.jsonl.gz"


def ids() -> tuple[str, ...]:
    """Ids of the workloads that have a table, in alphabetical order."""
    return tuple(sorted(file.name.split(".")[0] for file in folder().glob("*.jsonl.gz")))


def evaluator(target: str = "v6e") -> RecordedEvaluator:
    """An evaluator of the tables that ship."""
    return RecordedEvaluator(folder(), target)
