"""For tests of policies, also of other people's: a class to inherit, and verdicts out of thin air.

    class TestMine(PolicyConformance):
        def make(self, episode):
            return Mine(episode)

pytest finds the tests of the base class in it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

import workloads
from baselines.policy import Candidate, Episode, Evaluated, Policy
from baselines.proposers import Answer, Proposer, ProposerError, Request
from jaxbench_env import EvalResult, Stage, Status
from jaxbench_env.evaluator.result import Provenance, Times

BASELINE_MS = 1.0


def verdict(source: str, status: Status | None = None, workload: str = "rms_norm") -> EvalResult:
    """A verdict that is made up, the same for the same text.

    Args:
        source: The text.
        status: The status; by default one that depends on the text, right in half of all cases.
        workload: Id of the workload.
    """
    rng = random.Random(source)
    if status is None:
        status = Status.OK if rng.random() < 0.5 else rng.choice(list(Status))
    stage = Stage.NONE
    if status.rank >= Status.HACK_SUSPECTED.rank:
        stage = Stage.TRACED
    if status.rank >= Status.INTERPRETER_ERROR.rank:
        stage = Stage.COMPILED
    ms = None
    if stage is Stage.COMPILED:
        ms = rng.uniform(1.05, 4.0) if status is Status.SLOWER else rng.uniform(0.3, 0.95)
    return EvalResult(
        status=status,
        stage=Stage.CORRECT if status.correct else stage,
        message="" if status.correct else f"made up: {status.value}",
        speedup=BASELINE_MS / ms if status.correct else None,
        times=Times(candidate_ms=ms, baseline_ms=BASELINE_MS, roofline_ms=0.2),
        counters={"kernel_share": rng.choice([0.5, 1.0])} if status.correct else {},
        provenance=Provenance(
            protocol=0, workload=workload, source_sha256=Candidate(source, 0).hash
        ),
    )


@dataclass
class Writer:
    """A proposer that writes a text of its own for every label, and keeps what it was asked.

    Attributes:
        fails: Labels at which it fails, once each.
        requests: What it answered.
    """

    fails: set[str] = field(default_factory=set)
    requests: list[Request] = field(default_factory=list)
    concurrency: int = 1

    def answer(self, request: Request) -> Answer:
        """As in `Proposer`."""
        if request.label in self.fails:
            self.fails.remove(request.label)
            raise ProposerError(f"no answer to {request.label}")
        self.requests.append(request)
        if request.kind == "plan":
            return Answer(f"Plan of {request.label}: larger blocks.")
        if request.kind == "judge":
            return Answer(f"Score: {random.Random(request.about.parent).choice([4, 10])}")
        return Answer(
            f"```python\ndef workload(*inputs):\n    return {request.label!r}\n```", "writer"
        )

    def describe(self) -> dict[str, str]:
        """As in `Proposer`."""
        return {"proposer": "writer"}

    def stop(self) -> None:
        """As in `Proposer`."""


def play(
    policy: Policy,
    judge: Callable[[str], EvalResult] = verdict,
    n: int = 4,
    order: random.Random | None = None,
) -> list[Evaluated]:
    """Runs a policy to its end.

    Args:
        policy: The policy.
        judge: Gives the verdict on a text.
        n: Candidates that are out at once, at most.
        order: Chooses which of them is told next; by default the oldest.

    Returns:
        What was told, in that order.
    """
    out: list[Candidate] = []
    told: list[Evaluated] = []
    while not policy.done or out:
        asked = policy.ask(n - len(out)) if len(out) < n else []
        assert len(asked) <= n - len(out), "it proposed more than it was asked for"
        out += asked
        if not out:
            assert policy.done, "it is not done, waits for no verdict, and proposes nothing"
            break
        chosen = out.pop(order.randrange(len(out)) if order else 0)
        told.append(Evaluated(chosen, judge(chosen.source)))
        policy.tell(told[-1:])
    return told


def _by_sample(told: Sequence[Evaluated]) -> list[Candidate]:
    return sorted((one.candidate for one in told), key=lambda candidate: candidate.sample)


class PolicyConformance:
    """What every policy must do. Inherit it and say how your policy is made."""

    #: Workload of the episodes.
    workload = "rms_norm"
    #: Budgets that are tried.
    budgets = (1, 5, 40)

    def make(self, episode: Episode) -> Policy:
        """Makes the policy."""
        raise NotImplementedError

    def proposer(self) -> Proposer:
        """Makes the proposer, which answers the same request alike."""
        return Writer()

    def judge(self, source: str) -> EvalResult:
        """The verdict on a text."""
        return verdict(source, workload=self.workload)

    def policy(self, budget: int = 40, seed: int = 0, proposer: Proposer | None = None) -> Policy:
        """Makes the policy for an episode."""
        proposer = proposer or self.proposer()
        episode = Episode(workloads.get(self.workload), proposer, budget, seed)
        return self.make(episode)

    def test_it_respects_its_budget(self):
        """No more samples than the budget, numbered below it, each once."""
        for budget in self.budgets:
            samples = [c.sample for c in _by_sample(play(self.policy(budget), self.judge))]
            assert 1 <= len(samples) <= budget
            assert samples == sorted({*samples}) and set(samples) <= {*range(budget)}

    def test_order_and_number_do_not_matter(self):
        """The same candidates however many are out at once and whichever is told first."""
        plain = _by_sample(play(self.policy(), self.judge, n=1))
        for n, seed in ((3, 1), (100, 2)):
            order = random.Random(seed)
            assert _by_sample(play(self.policy(), self.judge, n, order)) == plain

    def test_it_is_replayed_from_answers(self):
        """With the recorded answers, by label, it does the same again."""
        first = _Tape(self.proposer())
        plain = _by_sample(play(self.policy(proposer=first), self.judge))
        again = _Tape(None, dict(first.answers))
        assert _by_sample(play(self.policy(proposer=again), self.judge)) == plain
        assert again.prompts == first.prompts

    def test_labels_name_one_call_each(self):
        """No label is used twice, and candidates name calls that were made."""
        tape = _Tape(self.proposer())
        for candidate in _by_sample(play(self.policy(proposer=tape), self.judge)):
            assert set(candidate.calls) <= tape.answers.keys()

    def test_parents_were_told_before(self):
        """A parent is the hash of a candidate whose verdict it knew."""
        policy, known = self.policy(), set()
        while not policy.done:
            for candidate in policy.ask(3):
                assert candidate.parent is None or candidate.parent in known
                policy.tell([Evaluated(candidate, self.judge(candidate.source))])
                known.add(candidate.hash)

    def test_done_is_done(self):
        """After its end it proposes nothing."""
        policy = self.policy(5)
        play(policy, self.judge)
        assert policy.done and policy.ask(10) == [] and policy.done

    @pytest.mark.parametrize("status", list(Status))
    def test_it_copes_with_every_status(self, status):
        """Also where every candidate gets it."""
        told = play(self.policy(), lambda source: verdict(source, status, self.workload))
        assert told

    def test_a_verdict_is_told_once(self):
        """A second verdict on a candidate, or one on another's, is refused."""
        policy = self.policy()
        candidate = policy.ask(1)[0]
        evaluated = Evaluated(candidate, self.judge(candidate.source))
        policy.tell([evaluated])
        with pytest.raises(ValueError, match="sample"):
            policy.tell([evaluated])

    def test_it_survives_a_proposer_that_fails(self):
        """What was asked for in vain is asked for again."""
        tape = _Tape(self.proposer())
        plain = _by_sample(play(self.policy(proposer=tape), self.judge))
        for label in list(tape.answers)[:: max(1, len(tape.answers) // 3)]:
            failing = _Tape(self.proposer(), fails={label})
            policy, out = self.policy(proposer=failing), []
            while not policy.done:
                try:
                    asked = policy.ask(2)
                except ProposerError:
                    asked = policy.ask(2)
                policy.tell([Evaluated(c, self.judge(c.source)) for c in asked])
                out += asked
            assert sorted(out, key=lambda candidate: candidate.sample) == plain

    def test_its_constants_are_data(self):
        """They go into the run's settings."""
        constants = self.policy().constants
        assert json.loads(json.dumps(constants)) == constants


@dataclass
class _Tape:
    """Records answers by label, or gives recorded ones."""

    inner: Proposer | None
    answers: dict[str, Answer] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    fails: set[str] = field(default_factory=set)
    concurrency: int = 1

    def answer(self, request: Request) -> Answer:
        if request.label in self.fails:
            self.fails.remove(request.label)
            raise ProposerError(f"no answer to {request.label}")
        known = self.prompts.setdefault(request.label, request.prompt_sha256)
        assert known == request.prompt_sha256, f"two prompts have the label {request.label!r}"
        if self.inner is not None and request.label not in self.answers:
            self.answers[request.label] = self.inner.answer(request)
        return self.answers[request.label]

    def describe(self) -> dict[str, str]:
        return {"proposer": "tape"}

    def stop(self) -> None:
        pass
