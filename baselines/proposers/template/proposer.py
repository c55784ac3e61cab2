"""A proposer without a model: it samples the kernels of this package, and makes mistakes."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from dataclasses import dataclass
from typing import Any

from baselines import kernels
from baselines.proposers.proposer import About, Answer, NotApplicable, Request
from baselines.proposers.template.mistakes import made, possible
from baselines.templates import TemplateError, TemplateSpace
from jaxbench_env import EvalResult, Status

Point = tuple[int, ...]

_HEAD = "# template: "
_SETTING = re.compile(r"\b([A-Z][A-Z0-9_]*) to index (\d+)")
_WAITING = 0.25  # share of the time that waits for memory
_SHORT_STEP = 400  # bundles


@dataclass(frozen=True)
class _State:
    """What a text is: a member of the kernel's space, and mistakes in it."""

    point: Point
    mistakes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TemplateProposer:
    """Answers as a model might that knows one way to write each kernel, and little else.

    A kernel text of this package, the values of its tunables, and mistakes put into it on purpose
    make an answer. The kernel's own values and what is known of others are never looked at: a fresh
    text draws all values at random. What is in the prompt decides how it goes on:

    - nothing but the task: fresh texts, also such that break the kernel's constraints, most with
      mistakes (the naive form).
    - the last text and its verdict: a mistake may be mended; of a right text one tunable is moved,
      to where the verdict's profile points (the feedback-driven form).
    - documents: constraints are kept, and mistakes are rarer (the context-aware form).

    What it answers says nothing about models. It makes policies comparable without one. The rates
    were chosen so that shares of right samples are of the order of the published ones.

    Attributes:
        seed: Of its choices; each call has its own random numbers, by its label.
        fresh: Probability that a fresh text has a mistake; without documents.
        fresh_context: The same with documents.
        further: Probability of each further mistake.
        slip: Probability of a new mistake when a text is changed; without documents.
        slip_context: The same with documents.
        mend: Probability that feedback leads to a mistake being mended; without documents.
        mend_context: The same with documents.
    """

    seed: int = 0
    fresh: float = 0.995
    fresh_context: float = 0.8
    further: float = 0.6
    slip: float = 0.4
    slip_context: float = 0.45
    mend: float = 0.25
    mend_context: float = 0.8

    concurrency = 1

    def describe(self) -> dict[str, Any]:
        """As in `Proposer`."""
        return {"proposer": "template", **dataclasses.asdict(self)}

    def stop(self) -> None:
        """As in `Proposer`; an answer takes no time."""

    def answer(self, request: Request) -> Answer:
        """As in `Proposer`.

        Raises:
            NotApplicable: If there is no kernel with tunables for the workload.
        """
        about = request.about
        rng = random.Random(f"{self.seed}/{about.workload}/{request.label}")
        if request.kind == "judge":
            return Answer(_judgement(about.verdict), model="template")
        kernel = _kernel(about.workload)
        if request.kind == "plan":
            return Answer(self._plan(kernel, about, rng), model="template")
        if request.kind == "implement":
            state = self._implemented(kernel, about, rng)
        else:
            state = self._written(kernel, about, rng)
        return Answer(kernel.text(state), model="template")

    def _written(self, kernel: _Kernel, about: About, rng: random.Random) -> _State:
        """A text from the task, or from the last one and its verdict."""
        last = kernel.read(about.parent)
        if last is None or about.verdict is None:
            return self._fresh(kernel, about.context, rng)
        if about.verdict.correct:
            moved = kernel.moved(last.point, about.context, rng, _direction(about.verdict))
            return self._changed(kernel, _State(moved), about.context, rng)
        mend = self.mend_context if about.context else self.mend
        if last.mistakes:
            if rng.random() >= mend:
                return self._changed(kernel, last, about.context, rng)
            return _State(last.point, last.mistakes[1:])
        down = -1 if about.verdict.status is Status.VMEM_OOM else 0
        return _State(kernel.moved(last.point, about.context, rng, down))

    def _plan(self, kernel: _Kernel, about: About, rng: random.Random) -> str:
        """A plan in words: values for all tunables of a translation, or for one."""
        last = kernel.read(about.parent)
        if last is None:
            settings = kernel.settings(kernel.drawn(about.context, rng))
            return f"Write it as one kernel. Set {settings}."
        moved = kernel.moved(last.point, about.context, rng)
        changed = kernel.settings(moved, besides=last.point)
        return f"Set {changed}." if changed else "Leave the blocks as they are."

    def _implemented(self, kernel: _Kernel, about: About, rng: random.Random) -> _State:
        """What a plan says, with the mistakes that are made on the way."""
        last = kernel.read(about.parent)
        planned = {name: int(index) for name, index in _SETTING.findall(about.plan)}
        point = last.point if last else kernel.drawn(about.context, rng)
        names = kernel.space.names
        point = tuple(planned.get(n, index) for n, index in zip(names, point, strict=True))
        if last is None:
            return self._fresh(kernel, about.context, rng, point)
        return self._changed(kernel, _State(point, last.mistakes), about.context, rng)

    def _fresh(
        self, kernel: _Kernel, context: bool, rng: random.Random, point: Point | None = None
    ) -> _State:
        """A text from nothing, with mistakes."""
        point = kernel.drawn(context, rng) if point is None else point
        wrong = rng.random() < (self.fresh_context if context else self.fresh)
        count = 0
        while wrong:
            count, wrong = count + 1, rng.random() < self.further
        count = min(count, len(kernel.mistakes))
        return _State(point, tuple(rng.sample(kernel.mistakes, count)))

    def _changed(self, kernel: _Kernel, state: _State, context: bool, rng: random.Random) -> _State:
        """The state, perhaps with one mistake more."""
        if rng.random() >= (self.slip_context if context else self.slip):
            return state
        new = rng.choice(kernel.mistakes)
        return state if new in state.mistakes else _State(state.point, (new, *state.mistakes))


@dataclass(frozen=True)
class _Kernel:
    """A kernel of this package as a space of texts."""

    space: TemplateSpace
    members: tuple[Point, ...]
    valid: tuple[Point, ...]
    mistakes: tuple[str, ...]

    def text(self, state: _State) -> str:
        """The text of a state. Its first line says what it is."""
        mistakes = ", ".join(state.mistakes) or "none"
        where = " ".join(map(str, state.point))
        text = made(state.mistakes, self.space.source(state.point))
        return f"{_HEAD}{where}; mistakes: {mistakes}\n{text}"

    def read(self, text: str) -> _State | None:
        """The state of a text; None for one that is not of this proposer."""
        if not text.startswith(_HEAD):
            return None
        point, _, mistakes = text.partition("\n")[0].removeprefix(_HEAD).partition("; mistakes: ")
        names = () if mistakes == "none" else tuple(mistakes.split(", "))
        return _State(tuple(map(int, point.split())), names)

    def drawn(self, valid: bool, rng: random.Random) -> Point:
        """A member, drawn at random."""
        return rng.choice(self.valid if valid else self.members)

    def moved(self, point: Point, valid: bool, rng: random.Random, direction: int = 0) -> Point:
        """A member with one tunable changed.

        Args:
            point: The member to start from.
            valid: Whether the constraints must hold.
            rng: Random numbers.
            direction: 1 for one with a larger number, -1 for a smaller one, 0 for any; where there
                is none, any.
        """
        among = self.valid if valid else self.members
        near = [p for p in among if sum(a != b for a, b in zip(p, point, strict=True)) == 1]
        towards = [p for p in near if self._growth(point, p) == direction]
        return rng.choice(towards or near or [point])

    def _growth(self, old: Point, new: Point) -> int:
        """1 if the number that differs became larger, -1 if smaller, 0 if it is no number."""
        for domain, before, after in zip(self.space.domains, old, new, strict=True):
            a, b = domain[before], domain[after]
            numbers = all(isinstance(v, int) and not isinstance(v, bool) for v in (a, b))
            if before != after and numbers:
                return 1 if b > a else -1
        return 0

    def settings(self, point: Point, besides: Point | None = None) -> str:
        """The values of the tunables in words, those that differ from another member."""
        values = self.space.values(point)
        return ", ".join(
            f"{name} to index {index} ({values[name]!r})"
            for number, (name, index) in enumerate(zip(self.space.names, point, strict=True))
            if besides is None or besides[number] != index
        )


@functools.lru_cache(maxsize=64)
def _kernel(workload: str) -> _Kernel:
    try:
        text = kernels.source(workload)
        space = TemplateSpace(text)
        members = tuple(tuple(action.tolist()) for action in space.actions())
        valid = tuple(point for point in members if not space.violations(point))
    except (kernels.NoKernel, TemplateError) as error:
        raise NotApplicable(f"no kernel with tunables: {error}") from None
    return _Kernel(space, members, valid or members, tuple(possible(text)))


def _direction(verdict: EvalResult) -> int:
    """Where the profile of a right kernel points: to larger blocks, to smaller ones, or nowhere."""
    counters = verdict.counters
    if counters.get("vector_spills", 0.0) > 0.3 * counters.get("load_ops", 0.0) > 0:
        return -1
    waiting = counters.get("dma_wait_share", 0.0) >= _WAITING
    short = 0 < counters.get("bundles_per_step", 0.0) < _SHORT_STEP
    return 1 if waiting or short else 0


def _judgement(verdict: EvalResult | None) -> str:
    """Completeness by the evaluator's own measure: the share of the time spent in Pallas."""
    share = verdict.counters.get("kernel_share", 1.0) if verdict else 0.0
    return f"{share:.0%} of the time is spent in Pallas.\nScore: {round(10 * share)}"
