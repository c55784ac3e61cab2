"""In which order to try the members of a template space: ask for one, tell its score, ask again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from baselines.templates import TemplateSpace

Action = tuple[int, ...]

_DUPLICATES = 20  # proposals of a known member before another is drawn
_STARTUP = 10  # members that are drawn at random before there is a model


class MissingPackage(RuntimeError):
    """A method needs a package that is not installed."""


class Search(Protocol):
    """A method of searching. The same seed and the same scores give the same members."""

    def ask(self) -> Action | None:
        """A member that was not asked for before; None if there is none left."""

    def tell(self, action: Action, score: float) -> None:
        """Says how good the member last asked for is: less is better, infinity is a failure."""


class Grid:
    """All members: that of the text, then the others in order."""

    def __init__(self, space: TemplateSpace, members: Sequence[Action], seed: int):
        default = tuple(space.default.tolist())
        self._left = [default] + [member for member in members if member != default]

    def ask(self) -> Action | None:
        """The next member."""
        return self._left.pop(0) if self._left else None

    def tell(self, action: Action, score: float) -> None:
        """Changes nothing."""


class Random(Grid):
    """The member of the text, then the others in random order."""

    def __init__(self, space: TemplateSpace, members: Sequence[Action], seed: int):
        super().__init__(space, members, seed)
        rest = self._left[1:]
        order = np.random.default_rng(seed).permutation(len(rest))
        self._left = [self._left[0], *(rest[index] for index in order)]


class Hill:
    """Hill climbing from the member of the text.

    Neighbours differ in one tunable, by one place in its domain. They are tried in random order,
    and the first better one is the next place; where none is better, it starts again at a random
    member.
    """

    def __init__(self, space: TemplateSpace, members: Sequence[Action], seed: int):
        self._rng = np.random.default_rng(seed)
        default = tuple(space.default.tolist())
        self._members = {default, *members}
        self._scores: dict[Action, float] = {}
        self._left = Random(space, members, int(self._rng.integers(1 << 62)))
        self._place: Action | None = None
        self._queue: list[Action] = []

    def ask(self) -> Action | None:
        """A neighbour of the best place so far, or a new place."""
        while True:
            while self._queue:
                member = self._queue.pop()
                if member not in self._scores:
                    return member
                self._visit(member)
            member = self._left.ask()
            if member is None:
                return None
            if member not in self._scores:
                self._place = None
                return member

    def tell(self, action: Action, score: float) -> None:
        """Moves there if it is better than the present place."""
        self._scores[action] = score
        self._visit(action)

    def _visit(self, member: Action) -> None:
        """Looks at a member with a score."""
        if self._place is None or self._scores[member] < self._scores[self._place]:
            self._place = member
            self._queue = self._neighbours(member)

    def _neighbours(self, place: Action) -> list[Action]:
        found = []
        for axis, index in enumerate(place):
            for other in (index - 1, index + 1):
                member = (*place[:axis], other, *place[axis + 1 :])
                if member in self._members:
                    found.append(member)
        return [found[index] for index in self._rng.permutation(len(found))]


class Optuna:
    """Optuna's tree-structured Parzen estimator, which starts with the member of the text."""

    def __init__(self, space: TemplateSpace, members: Sequence[Action], seed: int):
        try:
            import optuna
        except ImportError:
            raise MissingPackage(
                "the method optuna needs the package: pip install 'jaxbench-env[tune]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, n_startup_trials=_STARTUP
        )
        self._study = optuna.create_study(sampler=sampler)
        self._space = {
            name: optuna.distributions.IntDistribution(0, size - 1)
            for name, size in zip(space.names, space.nvec.tolist(), strict=True)
        }
        self._trial_of = optuna.trial.create_trial
        self._left = Random(space, members, seed)
        self._members = {tuple(space.default.tolist()), *members}
        self._study.enqueue_trial(dict(zip(space.names, space.default.tolist(), strict=True)))
        self._scores: dict[Action, float] = {}
        self._trial = None

    def ask(self) -> Action | None:
        """What the estimator expects most of among the members that were not asked for."""
        if len(self._scores) == len(self._members):
            return None
        for _ in range(_DUPLICATES):
            self._trial = self._study.ask(self._space)
            member = tuple(self._trial.params.values())
            if member in self._members and member not in self._scores:
                return member
            # A member that breaks a constraint is as bad as a failure.
            self._study.tell(self._trial, self._told(self._scores.get(member, math.inf)))
        self._trial = None
        while (member := self._left.ask()) in self._scores:
            pass
        return member

    def tell(self, action: Action, score: float) -> None:
        """Adds it to what the estimator knows."""
        self._scores[action] = score
        if self._trial is not None:
            self._study.tell(self._trial, self._told(score))
            return
        parameters = dict(zip(self._space, action, strict=True))
        self._study.add_trial(
            self._trial_of(params=parameters, distributions=self._space, value=self._told(score))
        )

    def _told(self, score: float) -> float:
        """A score that is finite: failures are worse than all that was seen."""
        if math.isfinite(score):
            return score
        return max((s for s in self._scores.values() if math.isfinite(s)), default=0.0) + 1.0


METHODS = {"random": Random, "hill": Hill, "optuna": Optuna, "grid": Grid}
