"""When a rollout ends, and what became of its workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import reward
from baselines.policy import Evaluated
from jaxbench_env import EvalResult

if TYPE_CHECKING:
    from baselines.rollout.engine import Rollout


@dataclass(frozen=True)
class Limits:
    """When a rollout ends before its policies do. None is no limit.

    Attributes:
        seconds: Wall time of this run of the command.
        evaluations: Verdicts of all sessions of the run.
        cost: What the proposer's answers of all sessions cost, in the currency of its prices.
            Those being asked when it is reached are still paid.
    """

    seconds: float | None = None
    evaluations: int | None = None
    cost: float | None = None


@dataclass
class Outcome:
    """What became of one workload.

    Attributes:
        workload: Its id.
        evaluations: Verdicts.
        correct: How many of them were right.
        best: The fastest right candidate, if there is one.
        done: Whether its policy ended by itself.
        verified: The verdict on the best at the published size, if that was asked for. Where the
            best failed there, `best` is the next that passed, or else the last that was tried.
        note: Why nothing was proposed.
    """

    workload: str
    evaluations: int = 0
    correct: int = 0
    best: Evaluated | None = None
    done: bool = False
    verified: EvalResult | None = None
    note: str = ""

    @property
    def speedup(self) -> float | None:
        """Of the best over XLA; None where nothing is right, or the best is wrong at full size."""
        if self.best is None or (self.verified is not None and not self.verified.correct):
            return None
        return self.best.result.speedup

    def add(self, evaluated: Evaluated) -> None:
        """Takes a verdict. Of equally fast candidates the one with the smaller number is best."""
        self.evaluations += 1
        self.correct += evaluated.result.correct
        if evaluated.result.correct and (self.best is None or order(evaluated) < order(self.best)):
            self.best = evaluated

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        best = self.best
        return {
            "workload": self.workload,
            "evaluations": self.evaluations,
            "correct": self.correct,
            "best_speedup": self.speedup,
            "best_ms": best.result.times.candidate_ms if best else None,
            "best_sample": best.candidate.sample if best else None,
            "best_sha256": best.candidate.hash if best else None,
            "done": self.done,
            "verified": self.verified.status.value if self.verified else None,
            "note": self.note,
        }


def order(evaluated: Evaluated) -> tuple[float, int]:
    """By this right candidates are ordered, the best first."""
    return -evaluated.result.speedup, evaluated.candidate.sample


def summarise(run: Rollout, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A run so far, JSON-ready: rows of its workloads, and totals.

    The geometric mean floors every workload at 1, as published; what is not solved counts as 1.
    """
    rows = [outcome.to_dict() for outcome in outcomes]
    calls = list(run.records.run.lines("calls"))
    return {
        "out": str(run.records.folder),
        "ended": run.ended,
        "error": str(run.error) if run.error else None,
        "workloads": rows,
        "evaluations": sum(row["evaluations"] for row in rows),
        "correct": sum(row["correct"] for row in rows),
        "solved": sum(row["best_speedup"] is not None for row in rows),
        "geomean_floor_1": reward.geomean(row["best_speedup"] for row in rows),
        "calls": len(calls),
        "input_tokens": sum(call["input_tokens"] for call in calls),
        "output_tokens": sum(call["output_tokens"] for call in calls),
        "cost": run.records.cost,
    }
