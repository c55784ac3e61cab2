"""The search itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from baselines.templates import TemplateSpace
from baselines.tuning.log import Log
from baselines.tuning.search import METHODS, Action
from jaxbench_env import EvalResult, Evaluator
from jaxbench_env.canonical import canonical_hash
from workloads import Workload

_DOUBT = 10.0  # more than between any two times of a kernel


@dataclass(frozen=True)
class Point:
    """A member of a template space with its verdict.

    Attributes:
        action: The member.
        values: The values of the tunables there.
        result: The verdict.
        known: Whether the verdict was there already.
    """

    action: Action
    values: dict[str, Any]
    result: EvalResult
    known: bool

    @property
    def ms(self) -> float:
        """Milliseconds of a kernel that is right; infinity for any other."""
        return self.result.times.candidate_ms if self.result.correct else math.inf

    @property
    def rank(self) -> float:
        """Less is better: the logarithm of the time, with what is doubtful behind all that is not.

        A doubtful time, such as a bound from below, earns less than it says; see
        `EvalResult.speedup`. Infinity for what is not right.
        """
        if not self.result.correct:
            return math.inf
        times, speedup = self.result.times, self.result.speedup
        doubtful = speedup < 0.999 * times.baseline_ms / times.candidate_ms
        return math.log(self.ms) + _DOUBT * doubtful


def tune(
    workload: Workload,
    space: TemplateSpace,
    evaluator: Evaluator,
    *,
    method: str = "hill",
    budget: int = 100,
    seed: int = 0,
    violations: bool = False,
    log: Log | None = None,
    known: Mapping[str, EvalResult] | None = None,
) -> Iterator[Point]:
    """Searches a template space, the text's own member first. No member is evaluated twice.

    The same seed and verdicts give the same search, so that one that was stopped is continued by
    starting it again with its log: what is there is not evaluated again.

    Args:
        workload: What the kernels compute.
        space: The space; at most `MAX_SIZE` members.
        evaluator: What gives the verdicts.
        method: One of `METHODS`.
        budget: Members to look at, those with a known verdict included.
        seed: Seed of the search.
        violations: Whether to evaluate members that break the text's constraints, too.
        log: Gets every new verdict as soon as it is there; its verdicts are known.
        known: More verdicts that are known, by the canonical hash of the text.

    Yields:
        The members in the order of the search.

    Raises:
        ValueError: For an unknown method or a budget below 1.
        TemplateError: If the space is too large, or its ``constraints`` fail.
        MissingPackage: If the method needs a package that is not installed.
        OSError: If the log cannot be written.
    """
    if method not in METHODS:
        raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}")
    if budget < 1:
        raise ValueError(f"the budget is {budget}; it is at least 1")
    allowed = space.actions(valid=None if violations else True)
    members = [tuple(action.tolist()) for action in allowed]
    search = METHODS[method](space, members, seed)
    verdicts = dict(known or {})
    if log is not None:
        verdicts |= log.results(workload, evaluator.target)
    for _ in range(budget):
        action = search.ask()
        if action is None:
            return
        text, values = space.source(action), space.values(action)
        kernel = canonical_hash(text)
        result = verdicts.get(kernel)
        point = Point(
            action, values, result or evaluator.evaluate(workload, text), result is not None
        )
        if log is not None and not point.known:
            log.append(kernel, values, point.result)
        search.tell(action, point.rank)
        yield point


def best(points: Iterable[Point]) -> list[Point]:
    """The points whose kernel is right by `Point.rank`, the earlier one of equals first."""
    return sorted((point for point in points if point.result.correct), key=lambda p: p.rank)
