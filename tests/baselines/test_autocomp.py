"""Autocomp keeps the contract, and searches as its page says."""

import random
from dataclasses import replace

import pytest

import workloads
from baselines import prompts
from baselines.autocomp import Autocomp
from baselines.autocomp.asking import kept, score
from baselines.autocomp.menus import GENERIC, TPU, TRANSLATIONS
from baselines.policy import Episode
from baselines.proposers import Answer
from baselines.testing import PolicyConformance, Writer, play, verdict
from jaxbench_env import Status


class TestAutocomp(PolicyConformance):
    def make(self, episode):
        return Autocomp(episode, context_bytes=0)


class TestAutocompWithRepair(PolicyConformance):
    def make(self, episode):
        return Autocomp(episode, context_bytes=0, repair=True)


class Judge(Writer):
    """Gives every kernel the same completeness."""

    complete = 10

    def answer(self, request):
        if request.kind == "judge":
            self.requests.append(request)
            return Answer(f"Score: {self.complete}")
        return super().answer(request)


def search(judge, writer=None, budget=144, **constants):
    writer = writer or Judge()
    policy = Autocomp(Episode(workloads.get("rms_norm"), writer, budget), **constants)
    return play(policy, judge, n=1000), writer


def right(ms):
    """A judge by which all are right and take what a function of the number says."""

    def judge(source):
        result = verdict(source, Status.OK)
        return _timed(result, ms(source))

    return judge


def _timed(result, ms):
    return replace(
        result,
        status=Status.OK if ms < 1 else Status.SLOWER,
        speedup=1 / ms,
        times=replace(result.times, candidate_ms=ms),
    )


def random_ms(source):
    return random.Random(source).uniform(0.2, 3.0)


@pytest.fixture(autouse=True)
def context(monkeypatch):
    monkeypatch.setattr(prompts, "context", lambda workload, size, target: f"DOCUMENTS of {size}")


def test_the_published_budget_is_used_exactly():
    told, _ = search(right(random_ms))
    assert len(told) == 144
    assert sorted(one.candidate.sample for one in told) == list(range(144))


def test_an_iteration_has_eighteen_samples():
    told, _ = search(right(random_ms))
    counts = {}
    for one in told:
        place = one.candidate.place
        counts[place["phase"], place["iteration"]] = (
            counts.get((place["phase"], place["iteration"]), 0) + 1
        )
    assert set(counts.values()) == {18}


def test_without_spreading_the_first_iteration_has_six():
    told, _ = search(right(random_ms), spread=False)
    assert (
        sum(one.candidate.place["iteration"] == 0 == one.candidate.place["phase"] for one in told)
        == 6
    )


def test_translation_ends_early_when_all_members_are_complete():
    told, writer = search(right(random_ms))
    assert {
        one.candidate.place["iteration"] for one in told if one.candidate.place["phase"] == 0
    } == {0}
    assert sum(request.kind == "judge" for request in writer.requests) == 9  # plans, once each
    told, _ = search(right(random_ms), carry_over=False)
    assert len(told) == 5 * 18


def test_translation_lasts_while_members_are_incomplete():
    writer = Judge()
    writer.complete = 9
    told, _ = search(right(random_ms), writer)
    assert {
        one.candidate.place["iteration"] for one in told if one.candidate.place["phase"] == 0
    } == {0, 1, 2, 3}


def test_translation_ranks_by_completeness_before_time():
    class Partial(Judge):
        def answer(self, request):
            self.complete = 9 if random_ms(request.about.parent) < 1 else 10
            return super().answer(request)

    told, writer = search(right(random_ms), Partial(), budget=36)
    parents = {one.candidate.parent for one in told if one.candidate.place["phase"] == 1}
    slow = {one.candidate.hash for one in told if random_ms(one.candidate.source) >= 1}
    assert parents and parents <= slow


def test_a_slow_translation_may_win_later():
    told, _ = search(right(lambda source: 12.0))
    assert all(one.candidate.parent for one in told if one.candidate.place["phase"] == 1)


def test_what_is_too_slow_beside_its_parent_is_dropped():
    told, _ = search(right(lambda source: 15.0))
    assert {one.candidate.parent for one in told} == {None}


def test_incumbents_win_ties():
    told, _ = search(right(lambda source: 0.5))
    first = {one.candidate.hash for one in told if one.candidate.place["phase"] == 0}
    assert {one.candidate.parent for one in told if one.candidate.place["phase"] == 1} <= first


def test_early_iterations_let_a_little_slower_through_and_late_ones_do_not():
    # Each generation is 5 % slower than the last: children of early iterations join a wide beam and
    # become parents, those of late ones do not.
    def judge(source):
        generation = 0 if "phase 0" in source else 1 + int(source.split("iteration ")[1][0])
        return _timed(verdict(source, Status.OK), 0.5 * 1.05**generation)

    constants = {"beam": 40, "plans": 2, "codes": 1, "spread": False, "translation_iterations": 1}
    told, _ = search(judge, budget=400, **constants)
    parents = {one.candidate.parent for one in told if one.candidate.place["phase"] == 1}
    made = {one.candidate.hash: one.candidate.place for one in told}
    iterations = {made[p]["iteration"] for p in parents if p and made[p]["phase"] == 1}
    assert iterations == {0, 1}


def test_failures_are_dropped_and_not_fed_back():
    told, writer = search(lambda source: verdict(source, Status.COMPILE_ERROR), budget=36)
    assert {one.candidate.parent for one in told} == {None}
    assert not any("compile_error" in str(request.messages) for request in writer.requests)


def test_a_repair_turn_shows_why_and_counts():
    told, writer = search(lambda source: verdict(source, Status.VMEM_OOM), budget=36, repair=True)
    repairs = [request for request in writer.requests if request.kind == "repair"]
    assert len(told) == 36 and len(repairs) == 18
    assert "vmem_oom" in repairs[0].messages[1]["content"].lower()
    assert sum(one.candidate.parent is not None for one in told) == 18


def test_same_parent_and_plan_count_as_duplicates():
    told, _ = search(right(lambda source: random_ms(source) / 4), budget=36)
    second = [one.candidate for one in told if one.candidate.place["phase"] == 1]
    first = {one.candidate.hash: one.candidate for one in told}
    plans = [first[parent].plan for parent in {candidate.parent for candidate in second}]
    assert len(plans) == len(set(plans)) == 3


def test_plans_see_the_menu_and_the_time_and_implementations_the_plan():
    _, writer = search(right(random_ms), budget=36)
    plans = [r.messages[1]["content"] for r in writer.requests if r.kind == "plan"]
    codes = [r.messages[1]["content"] for r in writer.requests if r.kind == "implement"]
    assert all(item in plans[0] for item in TRANSLATIONS)  # no dropout in translation
    later = [p for p in plans if "Phase 2" in p]
    shares = [sum(item in p for item in GENERIC + TPU) / 37 for p in later]
    assert all(0 < share < 0.7 for share in shares) and len(set(shares)) > 1
    assert all("x of XLA" in p for p in later)
    assert not any("## Menu" in c or "x of XLA" in c for c in codes)
    assert all("## Plan\nPlan of" in c for c in codes)
    assert all(p.startswith("DOCUMENTS of 30000") for p in plans + codes)


def test_a_menu_is_never_empty():
    assert len(kept(("a", "b"), 0.0, random.Random(0))) == 1
    assert kept(("a", "b"), 1.0, random.Random(0)) == ("a", "b")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Score: 7", 7),
        ("**Score:** 10/10", 10),
        ("score: 3\nScore: 8", 8),
        ("Score: 99", 10),
        ("Score: " + "9" * 5000, 10),
        ("none", 0),
    ],
)
def test_a_score_is_read(answer, expected):
    assert score(answer) == expected


def test_the_menus_are_as_large_as_the_published_ones():
    assert (len(TRANSLATIONS), len(GENERIC), len(TPU)) == (7, 15, 22)
    assert len({*TRANSLATIONS, *GENERIC, *TPU}) == 44
