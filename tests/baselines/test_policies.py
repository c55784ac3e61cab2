"""Every policy keeps the contract, and does what its page says."""

from pathlib import Path

import pytest

import workloads
from baselines import prompts
from baselines.best_of_n import BestOfN
from baselines.iterative import Iterative, IterativeContext
from baselines.policy import Episode, Evaluated
from baselines.proposers import Answer
from baselines.testing import PolicyConformance, Writer, play, verdict
from jaxbench_env import Status


class TestBestOfN(PolicyConformance):
    def make(self, episode):
        return BestOfN(episode)


class TestIterative(PolicyConformance):
    def make(self, episode):
        return Iterative(episode, chain_count=6)


class TestIterativeContext(PolicyConformance):
    @pytest.fixture(autouse=True)
    def context(self, monkeypatch):
        monkeypatch.setattr(
            prompts, "context", lambda workload, size, target: f"DOCUMENTS of {size}"
        )

    def make(self, episode):
        return IterativeContext(episode, chain_count=6)

    def test_every_prompt_begins_with_the_documents(self):
        writer = Writer()
        play(self.policy(proposer=writer))
        prompts_ = [request.messages[1]["content"] for request in writer.requests]
        assert all(prompt.startswith("DOCUMENTS of 30000\n\nKernels are") for prompt in prompts_)
        assert all(request.about.context for request in writer.requests)


def episode(budget=144, proposer=None, seed=0):
    return Episode(workloads.get("rms_norm"), proposer or Writer(), budget, seed)


def test_samples_are_asked_for_with_one_prompt():
    writer = Writer()
    told = play(BestOfN(episode(7, writer)))
    assert len(told) == 7
    assert len({request.prompt_sha256 for request in writer.requests}) == 1
    assert "Pallas" in writer.requests[0].messages[1]["content"]


def test_chains_use_the_published_budget_exactly():
    told = play(Iterative(episode()))
    assert len(told) == 144
    places = {(one.candidate.place["chain"], one.candidate.place["turn"]) for one in told}
    assert places == {(chain, turn) for chain in range(18) for turn in range(8)}


def test_a_small_budget_cuts_the_last_turns():
    told = play(Iterative(episode(40)))
    assert sorted(one.candidate.place["turn"] for one in told) == [0] * 18 + [1] * 18 + [2] * 4


def test_a_turn_sees_the_last_text_and_its_verdict():
    writer = Writer()
    policy = Iterative(episode(2, writer), chain_count=1)
    (first,) = policy.ask(1)
    policy.tell([Evaluated(first, verdict(first.source, Status.VMEM_OOM))])
    (second,) = policy.ask(1)
    prompt = writer.requests[1].messages[1]["content"]
    assert first.source.strip() in prompt and "made up: vmem_oom" in prompt.lower()
    assert second.parent == first.hash


def test_an_answer_without_code_counts_and_is_said():
    class Silent(Writer):
        def answer(self, request):
            answer = super().answer(request)
            return answer if len(self.requests) > 1 else Answer("I would rather not.")

    writer = Silent()
    policy = Iterative(episode(2, writer), chain_count=1)
    told = play(policy, lambda source: verdict(source, Status.REJECTED))
    assert told[0].candidate.source == "" and len(told) == 2
    assert "no Python code" in writer.requests[1].messages[1]["content"]


@pytest.mark.parametrize("target", ["v6e", "v5e"])
def test_documents_are_for_the_target(target):
    text = prompts.introduction(Episode(workloads.get("rms_norm"), target=target), 4000)
    assert workloads.chip(target).describe() in text.partition("Kernels are written")[0]


def test_a_workload_of_ones_own_has_documents():
    path = Path(__file__).parents[1] / "fixtures" / "workloads" / "scaled_softmax.py"
    text = prompts.introduction(Episode(workloads.get(str(path))), 4000)
    assert text.startswith("## The chip")


def test_a_fence_is_longer_than_any_in_the_text():
    assert prompts.code("x").startswith("```python\n")
    assert prompts.code("# " + "`" * 200_000).startswith("`" * 200_001 + "python\n")


def test_a_policy_without_its_proposer_says_so():
    with pytest.raises(ValueError, match="needs an episode with a proposer"):
        BestOfN(Episode(workloads.get("rms_norm"))).ask(1)


def test_a_budget_is_at_least_one():
    with pytest.raises(ValueError, match="at least one"):
        episode(0)
