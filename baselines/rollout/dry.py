"""A policy's prompts before anything is asked or evaluated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from baselines.policy import Episode, Policy
from baselines.proposers.proposer import Answer, NotApplicable, Request
from workloads import Workload


@dataclass
class _Placeholder:
    """Answers with a placeholder and keeps what it was asked."""

    requests: list[Request] = field(default_factory=list)
    concurrency: int = field(default=1, init=False)

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        return Answer(f"<the answer to {request.label!r}>")

    def describe(self) -> dict[str, Any]:
        return {"proposer": "placeholder"}

    def stop(self) -> None:
        pass


def first_prompts(
    make: Callable[[Episode], Policy], workload: Workload, budget: int, seed: int, target: str
) -> list[Request]:
    """The requests up to the first candidate, with placeholders for answers; each prompt once.

    Later prompts depend on verdicts. A workload that the policy passes over has none.
    """
    proposer = _Placeholder()
    with contextlib.suppress(NotApplicable):
        make(Episode(workload, proposer, budget, seed, target)).ask(1)
    found: dict[str, Request] = {}
    for request in proposer.requests:
        found.setdefault(request.prompt_sha256, request)
    return list(found.values())
