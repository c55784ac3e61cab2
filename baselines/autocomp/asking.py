"""Autocomp's prompts: for a plan, for its implementation, for a judgement, for a repair."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from baselines import prompts
from baselines.policy import Episode, Evaluated
from baselines.proposers.proposer import About, Request
from jaxbench_env import feedback
from workloads.task import SYSTEM

_PLANNER = (
    "You plan how to speed up Pallas kernels for TPUs. You answer with one plan in words, of at "
    "most 300 words, and with no code beyond single expressions."
)
_JUDGE = "You judge Pallas kernels. You end your answer with a line `Score: N`, N from 0 to 10."

_SCORE = re.compile(r"score\W*(\d{1,3})", re.IGNORECASE)


@dataclass(frozen=True)
class Asking:
    """Makes the requests of one episode.

    Attributes:
        episode: The episode.
        context_bytes: Size of the documents before every prompt, 0 for none.
        temperature: Of the sampling.
    """

    episode: Episode
    context_bytes: int
    temperature: float

    def plan(
        self,
        label: str,
        member: Evaluated | None,
        menu: tuple[str, ...],
        one_item: bool,
        phase: str,
        speedup: float,
    ) -> Request:
        """Asks for a plan.

        Args:
            label: The request's label.
            member: What is to be changed; None for the reference itself.
            menu: What to choose from.
            one_item: Whether exactly one item must be chosen.
            phase: Which iteration of how many this is.
            speedup: Of the member over XLA.
        """
        items = "\n".join(f"{number}. {item}" for number, item in enumerate(menu, 1))
        if one_item:
            rule = "Choose exactly one item of the menu and plan that change, and nothing else."
        else:
            rule = "Combine items of the menu, or plan a change that is not in it."
        text = "\n\n".join(
            [
                self._introduction(),
                f"## {phase}",
                self._shown(member, speedup),
                f"## Menu\n{items}",
                f"## What to do\n{rule} Say what changes and where, with block shapes and sizes in "
                "bytes where they matter, so that someone else can write it.",
            ]
        )
        return self._request(label, "plan", _PLANNER, text, member)

    def implement(self, label: str, member: Evaluated | None, plan: str) -> Request:
        """Asks for the kernel that a plan describes."""
        text = "\n\n".join(
            [
                self._introduction(),
                self._shown(member, None),
                f"## Plan\n{plan}",
                "## What to do\nApply the plan, and answer with the whole file.",
            ]
        )
        return self._request(label, "implement", SYSTEM, text, member, plan)

    def repair(self, label: str, failed: Evaluated) -> Request:
        """Asks to mend a kernel that failed."""
        source = failed.candidate.source
        text = "\n\n".join(
            [
                self._introduction(),
                f"## A kernel that fails\n{prompts.code(source)}",
                f"## What the evaluator says about it\n{feedback(failed.result, source)}",
                "## What to do\nMend it, keep what it is meant to do, and answer with the whole "
                "file.",
            ]
        )
        about = About(
            self.episode.workload.id, bool(self.context_bytes), source, failed.result, "repair"
        )
        return Request(label, prompts.chat(SYSTEM, text), about, "repair", self.temperature)

    def judge(self, label: str, member: Evaluated) -> Request:
        """Asks how much of the work is in Pallas. At temperature 0, and without documents."""
        text = "\n\n".join(
            [
                f"## Reference\n{prompts.code(self.episode.workload.reference_source())}",
                f"## Kernel\n{prompts.code(member.candidate.source)}",
                "## What to do\nHow much of the reference's work does the file do in Pallas, and "
                "not in plain JAX around it? 0: none. 10: all but reshapes and casts.",
            ]
        )
        about = About(
            self.episode.workload.id, False, member.candidate.source, member.result, "judge"
        )
        return Request(label, prompts.chat(_JUDGE, text), about, "judge", 0.0)

    def _introduction(self) -> str:
        return prompts.introduction(self.episode, self.context_bytes)

    def _shown(self, member: Evaluated | None, speedup: float | None) -> str:
        """The kernel to start from, and its time if it is to be told."""
        if member is None:
            return (
                "## Where to start\nThe reference, of which nothing is in Pallas yet. The kernel "
                "has to be right before it is fast."
            )
        time = ""
        if speedup is not None and member.result.times.candidate_ms is not None:
            time = f"\n\nIt takes {member.result.times.candidate_ms:.3f} ms, {speedup:.2f}x of XLA."
        return f"## Where to start\n{prompts.code(member.candidate.source)}{time}"

    def _request(
        self,
        label: str,
        kind: str,
        system: str,
        text: str,
        member: Evaluated | None,
        plan: str = "",
    ) -> Request:
        source = member.candidate.source if member else ""
        # The prompt tells no verdict but the time, and that the kernel is right.
        about = About(self.episode.workload.id, bool(self.context_bytes), source, None, plan)
        return Request(label, prompts.chat(system, text), about, kind, self.temperature)


def kept(items: tuple[str, ...], share: float, rng: random.Random) -> tuple[str, ...]:
    """A menu of which each item is kept with the probability `share`; never an empty one."""
    return tuple(item for item in items if rng.random() < share) or (rng.choice(items),)


def score(answer: str) -> int:
    """The score in a judgement, 0 to 10; 0 if it gives none."""
    found = _SCORE.findall(answer)
    return min(int(found[-1]), 10) if found else 0
