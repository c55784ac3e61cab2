"""Independent samples: the same prompt again and again, and nothing is learnt from a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from baselines import prompts
from baselines.policy import Chain, ChainPolicy


@dataclass
class BestOfN(ChainPolicy):
    """As many one-shot samples as the budget allows.

    Attributes:
        temperature: Of the sampling.
    """

    name: ClassVar[str] = "best_of_n"

    temperature: float = 1.0

    def chains(self) -> Iterable[Chain]:
        """A chain per sample."""
        return [self._sample(number) for number in range(self.episode.budget)]

    def _sample(self, number: int) -> Chain:
        label = f"sample {number}"
        (answer,) = yield [prompts.write(self.episode, label, temperature=self.temperature)]
        yield [prompts.candidate(answer.text, number, (label,), {})]
