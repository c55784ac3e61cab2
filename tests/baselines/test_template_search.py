"""Template search keeps the contract, and finds what there is to find."""

import math
from dataclasses import replace

import pytest

import workloads
from baselines import kernels
from baselines.policy import Episode
from baselines.template_search import METHODS, TemplateSearch
from baselines.templates import TemplateSpace
from baselines.testing import PolicyConformance, play, verdict
from jaxbench_env import Status

SPACE = TemplateSpace(kernels.source("mamba2_scan"))
VALID = [tuple(action.tolist()) for action in SPACE.actions(valid=True)]
POINTS = {SPACE.source(point): point for point in VALID}
BEST = VALID[len(VALID) // 3]


class TestRandom(PolicyConformance):
    workload = "gemm"

    def make(self, episode):
        return TemplateSearch(episode, "random")

    def test_it_survives_a_proposer_that_fails(self):
        """It has none."""


class TestHill(TestRandom):
    def make(self, episode):
        return TemplateSearch(episode, "hill")


class TestAnneal(TestRandom):
    def make(self, episode):
        return TemplateSearch(episode, "anneal")


def bowl(source):
    """Slower with each step away from the best."""
    ms = 0.5 * 1.3 ** sum(abs(a - b) for a, b in zip(POINTS[source], BEST, strict=True))
    result = verdict(source, Status.OK, "mamba2_scan")
    return replace(result, speedup=1 / ms, times=replace(result.times, candidate_ms=ms))


def search(method, judge=bowl, budget=144, seed=0):
    episode = Episode(workloads.get("mamba2_scan"), None, budget, seed)
    return play(TemplateSearch(episode, method), judge, n=1000)


@pytest.mark.parametrize("method", METHODS)
def test_no_member_is_evaluated_twice_and_all_are_valid(method):
    points = [POINTS[one.candidate.source] for one in search(method)]
    assert len(points) == len(set(points)) == min(144, len(VALID))


@pytest.mark.parametrize("method", ["hill", "anneal"])
def test_it_gets_there_sooner_than_by_chance(method):
    def first(method, seed):
        for number, one in enumerate(search(method, seed=seed), 1):
            if math.isclose(one.result.speedup, 2.0):
                return number

    seeds = range(8)
    by_chance = sum(first("random", seed) for seed in seeds)
    assert sum(first(method, seed) for seed in seeds) < 0.8 * by_chance


@pytest.mark.parametrize("method", METHODS)
def test_where_all_fail_it_goes_through_all(method):
    told = search(method, lambda source: verdict(source, Status.VMEM_OOM), budget=1000)
    assert len(told) == len(VALID)


def test_the_start_is_drawn():
    assert len({search("hill", budget=1, seed=s)[0].candidate.hash for s in range(6)}) > 3


def test_an_unknown_method_is_an_error():
    with pytest.raises(ValueError, match="unknown method 'best'; there are random, hill, anneal"):
        TemplateSearch(Episode(workloads.get("gemm")), "best")


@pytest.mark.parametrize("temperatures", [{"hot": 0.0}, {"cold": 0.0}, {"cold": float("nan")}])
def test_temperatures_are_above_zero(temperatures):
    with pytest.raises(ValueError, match="above 0"):
        TemplateSearch(Episode(workloads.get("gemm")), "anneal", **temperatures)
