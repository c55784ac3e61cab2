"""What a policy is: asked for candidates, told their verdicts, until it is done.

A policy is made for the episode of one workload. Whoever runs it asks for up to `n` candidates at a
time, has them evaluated, and tells the verdicts in any order:

    policy = BestOfN(Episode(workloads.get("gemm"), proposer))
    while not policy.done:
        for candidate in policy.ask(1):
            policy.tell(Evaluated(candidate, evaluate("gemm", candidate.source)))

What it proposes depends only on the episode (with its seed), the proposer's answers and the
verdicts, never on the clock, on `n` or on the order of the verdicts. So a run that was killed is
resumed by making its policy anew and giving it the recorded answers and verdicts again
(`baselines.rollout`).

`ChainPolicy` is an easy way to write one that keeps this promise, and
`baselines.testing.PolicyConformance` tests it.
"""

from __future__ import annotations

import abc
import dataclasses
import random
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from baselines.proposers.proposer import Answer, Proposer, Request, answer_all
from jaxbench_env import EvalResult
from jaxbench_env.evaluator.cache import source_hash
from workloads import Workload

#: Evaluations of one workload in the published comparison.
BUDGET = 144


@dataclass(frozen=True)
class Episode:
    """What a policy is made for.

    Attributes:
        workload: The workload.
        proposer: Writes the texts; a policy that writes its own needs none.
        budget: Most candidates that the policy may ask to have evaluated, at least 1.
        seed: Of the policy's own choices.
        target: The chip.

    Raises:
        ValueError: For a budget below 1.
    """

    workload: Workload
    proposer: Proposer | None = None
    budget: int = BUDGET
    seed: int = 0
    target: str = "v6e"

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ValueError(f"a budget is at least one evaluation, not {self.budget}")

    def rng(self, *names: object) -> random.Random:
        """Random numbers for one choice, the same whenever it is made.

        Args:
            *names: What is chosen: a choice has its own numbers, so that it does not matter which
                others were made before.
        """
        return random.Random("/".join(map(str, (self.seed, self.workload.id, *names))))


@dataclass(frozen=True)
class Candidate:
    """A kernel text to be evaluated.

    Attributes:
        source: The text; empty where the proposer's answer held none. It counts all the same.
        sample: Its number in the episode, from 0 and below the budget: its identity there.
        parent: Hash of the candidate that it was made from, None if from the task alone.
        plan: What was to be changed, in words, if the policy plans.
        place: Where it stands in the policy's search, such as ``{"chain": 3, "turn": 0}``; from 0.
        calls: Labels of the proposer's calls that led to it, the last one wrote the text.
    """

    source: str
    sample: int
    parent: str | None = None
    plan: str = ""
    place: dict[str, int] = field(default_factory=dict)
    calls: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 of the text, as in `EvalResult.provenance`."""
        return source_hash(self.source)


@dataclass(frozen=True)
class Evaluated:
    """A candidate and its verdict."""

    candidate: Candidate
    result: EvalResult


@dataclass
class Policy(abc.ABC):
    """A search for one workload's fastest kernel. Fields other than the episode are constants."""

    name: ClassVar[str] = ""  # by which the command line knows it
    needs_proposer: ClassVar[bool] = True

    episode: Episode

    @property
    def allow_library_kernels(self) -> bool:
        """Whether its texts may import finished kernels."""
        return False

    @property
    @abc.abstractmethod
    def done(self) -> bool:
        """Whether it will propose nothing more, whatever it is told."""

    @abc.abstractmethod
    def ask(self, n: int) -> list[Candidate]:
        """Up to `n` candidates to evaluate next.

        Fewer, or none, if others must be told first, or if it turns out to be done. It may ask its
        proposer, and so take long.

        Raises:
            ProposerError: If the proposer fails for good. Asking again is asking it again.
            NotApplicable: If there is nothing to propose for this workload.
        """

    @abc.abstractmethod
    def tell(self, evaluated: Sequence[Evaluated]) -> None:
        """Takes verdicts of candidates that were asked for, each once, in any order."""

    @property
    def constants(self) -> dict[str, Any]:
        """Its constants by name, JSON-ready."""
        fields = (f for f in dataclasses.fields(self) if f.init and f.name != "episode")
        return {f.name: getattr(self, f.name) for f in fields}


#: One chain of a `ChainPolicy`: yields requests and is sent answers, or candidates and verdicts.
Chain = Generator[Sequence[Request] | Sequence[Candidate], list[Answer] | list[Evaluated], None]


@dataclass
class ChainPolicy(Policy):
    """A policy written as generators that take turns.

    `chains` returns them. A chain yields a list of requests and is sent the proposer's answers, or
    yields a list of candidates and is sent their verdicts, both in the order of the list. Chains
    know nothing of each other, and requests of several go to the proposer together.
    """

    _running: list[_Running] | None = field(default=None, init=False, repr=False)
    _queue: list[Candidate] = field(default_factory=list, init=False, repr=False)
    _samples: set[int] = field(default_factory=set, init=False, repr=False)

    @abc.abstractmethod
    def chains(self) -> Iterable[Chain]:
        """The generators, not yet started."""

    @property
    def done(self) -> bool:
        """As in `Policy`."""
        return not self._queue and not self._started()

    def ask(self, n: int) -> list[Candidate]:
        """As in `Policy`."""
        while len(self._queue) < n:
            asking = [chain for chain in self._started() if chain.requests]
            if not asking:
                break
            proposer = self.episode.proposer
            if proposer is None:
                raise ValueError(f"{type(self).__name__} needs an episode with a proposer")
            # As many chains as the proposer can serve at once: what came is evaluated before the
            # others are asked for.
            asking = asking[: max(n - len(self._queue), proposer.concurrency)]
            requests = [request for chain in asking for request in chain.requests]
            answers = iter(answer_all(proposer, requests))
            for chain in asking:
                self._send(chain, [next(answers) for _ in chain.requests])
        asked, self._queue = self._queue[:n], self._queue[n:]
        return asked

    def tell(self, evaluated: Sequence[Evaluated]) -> None:
        """As in `Policy`."""
        for one in evaluated:
            sample = one.candidate.sample
            chain = next((c for c in self._started() if sample in c.missing), None)
            if chain is None:
                raise ValueError(f"sample {sample} waits for no verdict: not asked for, or told")
            chain.verdicts[sample] = one
            chain.missing.remove(sample)
            if not chain.missing:
                self._send(chain, [chain.verdicts[c.sample] for c in chain.candidates])

    def _started(self) -> list[_Running]:
        if self._running is None:
            self._running = [_Running(chain) for chain in self.chains()]
            for chain in list(self._running):
                self._send(chain, None)
        return self._running

    def _send(self, chain: _Running, value: list[Answer] | list[Evaluated] | None) -> None:
        """Runs a chain up to what it waits for next; a list of nothing is answered at once."""
        try:
            step = chain.body.send(value)
            while not step:
                step = chain.body.send([])
        except StopIteration:
            self._running.remove(chain)
            return
        chain.requests, chain.candidates, chain.verdicts = [], [], {}
        if isinstance(step[0], Request):
            chain.requests = list(step)
            return
        chain.candidates, chain.missing = list(step), {c.sample for c in step}
        budget = self.episode.budget
        for candidate in chain.candidates:
            if candidate.sample in self._samples or not 0 <= candidate.sample < budget:
                raise RuntimeError(
                    f"{type(self).__name__} proposes sample {candidate.sample} twice, or beyond "
                    f"its budget of {budget}"
                )
            self._samples.add(candidate.sample)
        self._queue += chain.candidates


@dataclass(eq=False)
class _Running:
    """A chain and what it waits for."""

    body: Chain
    requests: list[Request] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    verdicts: dict[int, Evaluated] = field(default_factory=dict)
