"""The expert gives the kernels of this package, and only it may import finished ones."""

import pytest

import workloads
from baselines import kernels, policies, policy
from baselines.expert import Expert
from baselines.policy import Episode
from baselines.proposers import NotApplicable
from baselines.testing import PolicyConformance, play


class TestExpert(PolicyConformance):
    def make(self, episode):
        return Expert(episode)


def test_it_gives_the_kernel_of_this_package():
    (one,) = play(Expert(Episode(workloads.get("gemm"))))
    assert one.candidate.source == kernels.source("gemm")


def test_only_with_library_kernels_is_it_allowed_to_import_them():
    episode = Episode(workloads.get("gemm"))
    assert Expert(episode, library=True).allow_library_kernels
    others = [made(episode) for made in policies().values()]
    assert not any(other.allow_library_kernels for other in others)


def test_policies_are_found_by_name():
    assert policy("expert") is Expert
    assert all(made.name == name for name, made in policies().items())
    with pytest.raises(ValueError, match="did you mean 'autocomp'"):
        policy("autocmp")


def test_a_workload_without_a_kernel_is_not_applicable(monkeypatch):
    def nothing(name):
        raise kernels.NoKernel(f"no kernel for {name!r}")

    monkeypatch.setattr(kernels, "source", nothing)
    with pytest.raises(NotApplicable, match="no kernel for 'gemm'"):
        Expert(Episode(workloads.get("gemm"))).ask(1)
