"""Chains of attempts, each of which sees the last one and what the evaluator said about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from baselines import prompts
from baselines.policy import Chain, ChainPolicy, Evaluated


@dataclass
class Iterative(ChainPolicy):
    """Independent chains of feedback.

    A smaller budget cuts the last turns of all chains, a larger one is left over.

    Attributes:
        chain_count: Chains.
        turns: Attempts in a chain.
        context_bytes: Size of the documents before every prompt; 0 for none.
        temperature: Of the sampling.
    """

    name: ClassVar[str] = "iterative"

    chain_count: int = 18
    turns: int = 8
    context_bytes: int = 0
    temperature: float = 1.0

    def chains(self) -> Iterable[Chain]:
        """The chains."""
        return [self._chain(number) for number in range(self.chain_count)]

    def _chain(self, number: int) -> Chain:
        last: Evaluated | None = None
        for turn in range(self.turns):
            sample = turn * self.chain_count + number
            if sample >= self.episode.budget:
                return
            label = f"chain {number}, turn {turn}"
            request = prompts.write(self.episode, label, last, self.context_bytes, self.temperature)
            (answer,) = yield [request]
            parent = last.candidate if last else None
            made = prompts.candidate(
                answer.text, sample, (label,), {"chain": number, "turn": turn}, parent
            )
            (last,) = yield [made]


@dataclass
class IterativeContext(Iterative):
    """The same, and every prompt begins with documents: hardware, API, examples and rules."""

    name: ClassVar[str] = "iterative_context"

    context_bytes: int = prompts.CONTEXT_BYTES
