"""One method on one workload with one seed; verdicts by the real evaluator or from a log of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import baselines
from baselines import kernels, tuning
from baselines.policy import BUDGET, Episode, Evaluated
from baselines.proposers.template import TemplateProposer
from jaxbench_env import EvalResult, Evaluator, recorded
from jaxbench_env.canonical import canonical_hash
from jaxbench_env.evaluator.result import Status
from jaxbench_env.taxonomy import classify
from workloads import Workload

METHODS = ("best_of_n", "iterative", "iterative_context", "autocomp")


class OutOfTime(Exception):
    """The time is over and a text has no verdict yet."""


def constants(method: str, budget: int) -> dict[str, int]:
    """A method's constants for a budget: chains and children per member shrink with it.

    Turns and iterations stay, so that a small budget still reaches the last turn; so does the beam
    as long as each of its members has a child. At the published budget they are the published ones.
    """
    if method.startswith("iterative"):
        return {"chain_count": max(1, round(18 * budget / BUDGET))}
    if method == "autocomp":
        each = 18 * budget / BUDGET  # children in an iteration
        beam = min(3, max(1, round(each)))
        codes = 2 if each / beam > 3 else 1
        return {"beam": beam, "plans": max(1, round(each / beam / codes)), "codes": codes}
    return {}


@dataclass
class Verdicts:
    """Verdicts on texts of one workload, each made once and kept in a log.

    Texts that differ in comments alone share one: the template proposer notes in a comment what a
    text is, so that methods and seeds meet at the same kernels.

    Attributes:
        workload: The workload.
        evaluator: Gives the verdicts.
        log: Where they are kept.
        deadline: Of `time.monotonic`, after which no text is evaluated.
        workers: Evaluations at once.
        known: Verdicts that are there already, by the kernel's hash.
        seconds: Wall time of the evaluation of each kernel, by its hash; of those that were
            evaluated for this log: neither known nor taken from the evaluator's cache.
    """

    workload: Workload
    evaluator: Evaluator
    log: tuning.Log
    deadline: float
    workers: int = 1
    known: Mapping[str, EvalResult] = field(default_factory=dict)
    seconds: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        target = self.evaluator.target
        self._known = {**self.known, **self.log.results(self.workload, target)}
        rows = self.log.current(self.workload, target)
        took = {row["kernel"]: row["values"]["seconds"] for row in rows}
        self.seconds = {kernel: seconds for kernel, seconds in took.items() if seconds is not None}

    def of(self, texts: list[str]) -> list[EvalResult]:
        """Verdicts on texts, in their order.

        Raises:
            OutOfTime: If one is missing and the time is over.
            RuntimeError: If the evaluator fails twice.
        """
        hashes = [canonical_hash(text) for text in texts]
        missing: dict[str, str] = {}
        for kernel, text in zip(hashes, texts, strict=True):
            if kernel not in self._known:
                missing.setdefault(kernel, text)
        if missing:
            with ThreadPoolExecutor(self.workers) as pool:
                list(pool.map(self._make, missing, missing.values()))
        return [self._known[kernel] for kernel in hashes]

    def _make(self, kernel: str, text: str) -> None:
        if time.monotonic() >= self.deadline:
            raise OutOfTime
        started = time.monotonic()
        result = self.evaluator.evaluate(self.workload, text)
        if result.status in (Status.EVALUATOR_ERROR, Status.CRASHED):  # perhaps a busy machine
            result = self.evaluator.evaluate(self.workload, text)
        if result.status is Status.EVALUATOR_ERROR:
            raise RuntimeError(f"{self.workload.id}: {result.message}\n{result.details}")
        seconds = round(time.monotonic() - started, 2)
        cached = "cache" in result.durations
        what = text.partition("\n")[0]
        self.log.append(kernel, {"text": what, "seconds": None if cached else seconds}, result)
        # As it will be read from the log, so that a resumed run sees the same.
        made = dataclasses.asdict(result.provenance)
        self._known[kernel] = recorded.expand(recorded.shrink(result), made)
        if not cached:
            self.seconds[kernel] = seconds


def run(
    method: str, verdicts: Verdicts, budget: int, seed: int, advance: Callable[[str], None]
) -> dict[str, Any]:
    """Runs a method to its end.

    Returns:
        The line of docs/reproduced.jsonl, but for what all lines share. Each sample is a list of
        the status, the speedup (null unless right), the kind of mistake (null where right), what
        the text is (as in its first line) and 12 digits of the kernel's hash.

    Raises:
        OutOfTime: If the time is over before it ends.
    """
    workload, chosen = verdicts.workload, constants(method, budget)
    episode = Episode(workload, TemplateProposer(seed=seed), budget, seed)
    policy = baselines.policy(method)(episode, **chosen)
    samples: dict[int, list[Any]] = {}
    while not policy.done:
        asked = policy.ask(verdicts.workers)
        results = verdicts.of([candidate.source for candidate in asked])
        for candidate, result in zip(asked, results, strict=True):
            what = candidate.source.partition("\n")[0].removeprefix("# template: ")
            samples[candidate.sample] = [
                result.status.value,
                round(result.speedup, 4) if result.correct else None,
                classify(result),
                what,
                canonical_hash(candidate.source)[:12],
            ]
        policy.tell([Evaluated(c, r) for c, r in zip(asked, results, strict=True)])
        advance(f", {workload.id} {method} {seed}")
    return {
        "method": method,
        "seed": seed,
        "budget": budget,
        "constants": policy.constants,
        "samples": [samples[number] for number in sorted(samples)],
    }


def own(verdicts: Verdicts) -> EvalResult:
    """The verdict on the kernel with the values that it ships with, which no method is shown."""
    return verdicts.of([kernels.source(verdicts.workload.id)])[0]


def log(folder: Path, workload: Workload) -> tuning.Log:
    """Where a workload's verdicts are kept."""
    return tuning.Log(folder / f"{workload.id}.jsonl")
