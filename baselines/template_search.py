"""Search among the tunables of a kernel by people, from an un-tuned start, without a proposer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from baselines import kernels
from baselines.policy import Candidate, Chain, ChainPolicy
from baselines.proposers.proposer import NotApplicable
from baselines.templates import TemplateError, TemplateSpace

METHODS = ("random", "hill", "anneal")

Point = tuple[int, ...]


@dataclass
class TemplateSearch(ChainPolicy):
    """Random search, hill climbing or annealing over the valid members of a `TemplateSpace`.

    No member is evaluated twice, and the search ends early when all have been. The kernel's own
    values of the tunables are a member like any other: the start is drawn at random.

    Attributes:
        method: ``"random"``; ``"hill"``, which evaluates all neighbours, moves to the best and
            starts anew where none is better; or ``"anneal"``, which walks from neighbour to
            neighbour and takes a slower one the less readily the later it is.
        hot: Annealing's first temperature, in log time: at 0.3 a kernel that is 1.35 times slower
            is taken in 37 % of all cases.
        cold: Its last temperature.

    Raises:
        ValueError: For an unknown method, or a temperature that is not above 0.
    """

    name: ClassVar[str] = "template_search"
    needs_proposer: ClassVar[bool] = False

    method: str = "hill"
    hot: float = 0.3
    cold: float = 0.02

    _times: dict[Point, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}; there are {', '.join(METHODS)}")
        if not (self.hot > 0 and self.cold > 0):
            raise ValueError(f"temperatures are above 0, not {self.hot} and {self.cold}")

    def chains(self) -> Iterable[Chain]:
        """One chain.

        Raises:
            NotApplicable: If there is no kernel with tunables for the workload.
        """
        try:
            space = TemplateSpace(kernels.source(self.episode.workload.id))
            points = [tuple(action.tolist()) for action in space.actions(valid=True)]
        except (kernels.NoKernel, TemplateError) as error:
            raise NotApplicable(f"no kernel with tunables: {error}") from None
        self.episode.rng("order").shuffle(points)
        return [
            {"random": self._random, "hill": self._hill, "anneal": self._anneal}[self.method](
                space, points
            )
        ]

    def _random(self, space: TemplateSpace, points: list[Point]) -> Chain:
        yield from self._evaluated(space, points)

    def _hill(self, space: TemplateSpace, points: list[Point]) -> Chain:
        near_of = _neighbourhood(points)
        while here := self._unseen(points):
            yield from self._evaluated(space, [here])
            while True:
                near = near_of(here)
                yield from self._evaluated(space, near)
                best = min(near, key=self._time, default=here)
                if self._time(best) >= self._time(here):
                    break
                here = best

    def _anneal(self, space: TemplateSpace, points: list[Point]) -> Chain:
        here = self._unseen(points)
        yield from self._evaluated(space, [here])
        rng, step, near_of = self.episode.rng("walk"), 0, _neighbourhood(points)
        while self._unseen(points):
            near = near_of(here) or [self._unseen(points)]
            there = rng.choice(near)
            yield from self._evaluated(space, [there])
            done = len(self._times) / min(self.episode.budget, len(points))
            temperature = self.hot * (self.cold / self.hot) ** done
            slower = math.log(self._time(there)) - math.log(self._time(here))
            if not slower > 0 or rng.random() < math.exp(-slower / temperature):
                here = there
            step += 1
            if step % (4 * len(points)) == 0:  # it turns in a corner of the space
                here = self._unseen(points)

    def _evaluated(self, space: TemplateSpace, points: list[Point]) -> Generator[Any, Any, None]:
        """Has those evaluated that were not, as far as the budget goes."""
        first = len(self._times)
        new = [p for p in dict.fromkeys(points) if p not in self._times]
        new = new[: self.episode.budget - first]
        verdicts = yield [
            Candidate(
                space.source(point),
                first + number,
                plan=", ".join(f"{n}={v}" for n, v in space.values(point).items()),
                place={"point": first + number},
            )
            for number, point in enumerate(new)
        ]
        for point, one in zip(new, verdicts, strict=True):
            right = one.result.correct
            self._times[point] = 1 / one.result.speedup if right else math.inf

    def _time(self, point: Point) -> float:
        """Time relative to XLA's; infinite for what is wrong, or beyond the budget."""
        return self._times.get(point, math.inf)

    def _unseen(self, points: list[Point]) -> Point | None:
        """The first member in the order drawn that may still be evaluated."""
        if len(self._times) >= self.episode.budget:
            return None
        return next((point for point in points if point not in self._times), None)


def _neighbourhood(points: list[Point]) -> Callable[[Point], list[Point]]:
    """For a member, the valid ones that are one step of one tunable away."""

    @functools.cache
    def near(here: Point) -> list[Point]:
        return [p for p in points if sum(abs(a - b) for a, b in zip(p, here, strict=True)) == 1]

    return near
