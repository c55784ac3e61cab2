"""Beam search that plans before it writes: first for a right kernel, then for a fast one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from baselines import prompts
from baselines.autocomp.asking import Asking, kept, score
from baselines.autocomp.menus import GENERIC, TPU, TRANSLATIONS
from baselines.policy import Candidate, Chain, ChainPolicy, Evaluated

COMPLETE = 10


@dataclass(frozen=True)
class _Member:
    """One member of the beam; without a candidate it is the reference itself."""

    evaluated: Evaluated | None = None
    complete: int = 0

    @property
    def relative(self) -> float:
        """Its time relative to XLA's; what a doubtful time may not earn counts as slow."""
        return 1.0 if self.evaluated is None else 1.0 / self.evaluated.result.speedup

    @property
    def candidate(self) -> Candidate | None:
        return self.evaluated.candidate if self.evaluated else None


@dataclass
class Autocomp(ChainPolicy):
    """Plan, implement, evaluate all, keep the best few; in two phases.

    Attributes:
        beam: Members that survive an iteration.
        plans: Plans asked for per member.
        codes: Implementations asked for per plan; `plans` times `codes` is the published 6.
        translation_iterations: Most iterations of the first phase.
        optimisation_iterations: Iterations of the second.
        menu_keep: Probability with which an item stays in a plan's menu, in the second phase.
        one_item: Probability with which a plan must choose exactly one item.
        translation_factor: A child survives if its time is below its parent's times this; in the
            first phase.
        early_factor: The same in the first iterations of the second phase.
        early_iterations: How many iterations those are.
        late_factor: The same in all later ones.
        repair: Whether a child that fails gets one more turn that shows why. It counts as a sample.
        context_bytes: Size of the documents before every prompt; 0 for none.
        temperature: Of the sampling.
        spread: Whether members that the beam lacks leave their samples to those that it has.
        carry_over: Whether iterations that the first phase saves are added to the second.

    Raises:
        ValueError: If beam, plans or codes are below 1.
    """

    name: ClassVar[str] = "autocomp"

    beam: int = 3
    plans: int = 3
    codes: int = 2
    translation_iterations: int = 4
    optimisation_iterations: int = 4
    menu_keep: float = 0.25
    one_item: float = 0.75
    translation_factor: float = 15.0
    early_factor: float = 1.1
    early_iterations: int = 2
    late_factor: float = 1.0
    repair: bool = False
    context_bytes: int = prompts.CONTEXT_BYTES
    temperature: float = 1.0
    spread: bool = True
    carry_over: bool = True

    _next: int = field(default=0, init=False, repr=False)  # sample

    def __post_init__(self) -> None:
        for name in ("beam", "plans", "codes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")

    def chains(self) -> Iterable[Chain]:
        """One chain: an iteration needs all verdicts of the last."""
        return [self._search()]

    @property
    def _asking(self) -> Asking:
        return Asking(self.episode, self.context_bytes, self.temperature)

    def _search(self) -> Chain:
        beam, used = [_Member()], 0
        while used < self.translation_iterations and not _complete(beam):
            title = f"iteration {used + 1} of {self.translation_iterations}"
            children = yield from self._iteration(0, used, beam, title)
            survivors = self._survivors(children, self.translation_factor)
            if self._next >= self.episode.budget:
                return  # a judgement would change nothing any more
            survivors = yield from self._judged(survivors)
            beam = self._selected(beam + survivors, lambda m: (-m.complete, m.relative))
            used += 1
        beam = _translated(beam)
        iterations = self.optimisation_iterations
        if self.carry_over:
            iterations += self.translation_iterations - used
        for iteration in range(iterations):
            factor = self.early_factor if iteration < self.early_iterations else self.late_factor
            title = f"iteration {iteration + 1} of {iterations}"
            children = yield from self._iteration(1, iteration, beam, title)
            survivors = self._survivors(children, factor)
            beam = _translated(self._selected(beam + survivors, lambda m: m.relative))

    def _iteration(
        self, phase: int, iteration: int, beam: list[_Member], title: str
    ) -> Generator[Any, Any, list[tuple[_Member, Evaluated]]]:
        """Plans, implements and has evaluated the children of all members."""
        title = f"Phase {phase + 1} of 2 ({('translation', 'optimisation')[phase]}), {title}"
        places = [
            (member, {"phase": phase, "iteration": iteration, "member": index, "plan": number})
            for index, member in enumerate(beam)
            for number in range(self._plans_of(index, len(beam)))
        ]
        left = self.episode.budget - self._next
        places = places[: -(-left // self.codes)]
        answers = yield [
            self._plan_request(member, phase, place, title) for member, place in places
        ]
        plans = [answer.text.strip() for answer in answers]
        jobs = [
            (member, plan, {**place, "code": code})
            for (member, place), plan in zip(places, plans, strict=True)
            for code in range(self.codes)
        ][:left]
        answers = yield [
            self._asking.implement(_label("code", place), member.evaluated, plan)
            for member, plan, place in jobs
        ]
        candidates = []
        for (member, plan, place), answer in zip(jobs, answers, strict=True):
            planned = {name: number for name, number in place.items() if name != "code"}
            calls = (_label("plan", planned), _label("code", place))
            made = prompts.candidate(answer.text, self._next, calls, place, member.candidate, plan)
            candidates.append(made)
            self._next += 1
        verdicts = yield candidates
        children = [(member, verdict) for (member, *_), verdict in zip(jobs, verdicts, strict=True)]
        if self.repair:
            children += yield from self._repaired(children)
        return children

    def _plans_of(self, index: int, members: int) -> int:
        """How many plans the member of that index gets."""
        if not self.spread:
            return self.plans
        return self.beam * self.plans // members + (index < self.beam * self.plans % members)

    def _plan_request(self, member: _Member, phase: int, place: dict[str, int], title: str):
        label = _label("plan", place)
        rng = self.episode.rng(label)
        # Where nothing was translated, there is nothing to optimise either.
        menu = TRANSLATIONS
        if phase and member.evaluated:
            menu = kept(GENERIC + TPU, self.menu_keep, rng)
        one_item = rng.random() < self.one_item
        return self._asking.plan(
            label, member.evaluated, menu, one_item, title, 1 / member.relative
        )

    def _repaired(
        self, children: list[tuple[_Member, Evaluated]]
    ) -> Generator[Any, Any, list[tuple[_Member, Evaluated]]]:
        """One more turn for each child that failed, as far as the budget goes."""
        failed = [(member, child) for member, child in children if not child.result.correct]
        failed = failed[: self.episode.budget - self._next]
        labels = [_label("repair", child.candidate.place) for _, child in failed]
        answers = yield [
            self._asking.repair(label, child)
            for label, (_, child) in zip(labels, failed, strict=True)
        ]
        mended = []
        for label, (_, child), answer in zip(labels, failed, answers, strict=True):
            old = child.candidate
            calls = (*old.calls, label)
            mended.append(
                prompts.candidate(answer.text, self._next, calls, old.place, old, old.plan)
            )
            self._next += 1
        verdicts = yield mended
        return [(member, verdict) for (member, _), verdict in zip(failed, verdicts, strict=True)]

    def _survivors(
        self, children: Sequence[tuple[_Member, Evaluated]], factor: float
    ) -> list[_Member]:
        """The children that are right and fast enough beside their parents, of each plan the best.

        Same parent and same plan count as duplicates.
        """
        best: dict[tuple[str | None, str], _Member] = {}
        for parent, evaluated in children:
            if not evaluated.result.correct:
                continue
            child = _Member(evaluated)
            # What is still made from the reference is a translation, however late.
            limit = factor if parent.evaluated else self.translation_factor
            if child.relative >= parent.relative * limit:
                continue
            # A mended text has the failed one as its parent, but stands for the same plan.
            known = (parent.candidate and parent.candidate.hash, evaluated.candidate.plan)
            if known not in best or child.relative < best[known].relative:
                best[known] = child
        return list(best.values())

    def _judged(self, children: list[_Member]) -> Generator[Any, Any, list[_Member]]:
        """The children with their completeness."""
        answers = yield [
            self._asking.judge(f"judge, sample {child.candidate.sample}", child.evaluated)
            for child in children
        ]
        return [
            replace(child, complete=score(answer.text))
            for child, answer in zip(children, answers, strict=True)
        ]

    def _selected(self, pool: list[_Member], key: Callable[[_Member], Any]) -> list[_Member]:
        """The best of a pool, each text once. Of equals the first one, which is an incumbent."""
        chosen, seen = [], set()
        for member in sorted(pool, key=key):
            text = member.candidate and member.candidate.hash
            if text not in seen:
                seen.add(text)
                chosen.append(member)
        return chosen[: self.beam]


def _complete(beam: list[_Member]) -> bool:
    return all(member.complete >= COMPLETE for member in beam)


def _translated(beam: list[_Member]) -> list[_Member]:
    """The beam without the reference, unless there is nothing else."""
    return [member for member in beam if member.evaluated] or beam


def _label(what: str, place: dict[str, int]) -> str:
    return ", ".join([what, *(f"{name} {number}" for name, number in place.items())])
