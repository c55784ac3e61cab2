"""Compiling and timing for every chip."""

import pytest

import workloads
from baselines import kernels
from jaxbench_env import evaluate
from jaxbench_env.evaluator import baseline
from jaxbench_env.evaluator.build import DEVICE_KINDS, TOPOLOGIES, BuildError, Built, build
from scripts import published_v5e

OTHERS = ["v5e", "v5p"]


def test_every_target_has_a_topology_a_kind_and_cores():
    targets = set(workloads.TARGETS)
    assert targets == TOPOLOGIES.keys() == DEVICE_KINDS.keys() == workloads.CORES.keys()


@pytest.mark.parametrize("target", workloads.TARGETS)
def test_a_small_product_is_compiled_and_timed(target):
    function, cores = published_v5e.product((256, 256, 256)), workloads.CORES[target]
    built = build(published_v5e.artefact(function, 1024, target, cores), target)
    prediction, chip = built.prediction, workloads.chip(target)
    assert not prediction["uncertain"], prediction["reasons"]
    assert built.pallas_programs
    # every block of both operands is read for each block of the output it goes into
    traffic = (2 * 4 + 1) * 1024 * 1024 * 2
    assert prediction["counters"]["hbm_bytes"] == pytest.approx(traffic, rel=0.01)
    assert prediction["ms"] > chip.roofline_ms(2 * 1024**3, traffic)


@pytest.fixture(scope="module")
def source():
    """A kernel whose blocks fit into the 16 MiB of VMEM that these chips allow by default."""
    text = kernels.source("rms_norm")
    assert "BLOCK_ROWS = 256" in text
    return text.replace("BLOCK_ROWS = 256", "BLOCK_ROWS = 128")


def test_a_kernel_is_evaluated_on_a_v5e(source):
    found = evaluate("rms_norm", source, seed=1, target="v5e")
    assert found.correct, found.message
    assert found.provenance.target == "v5e"
    assert "uncalibrated" in found.flags and "uncertain" not in found.flags
    assert found.times.candidate_ms > found.times.roofline_ms > 1.2  # at half a v6e's bandwidth
    assert found.memory.hbm_limit < 18e9


@pytest.mark.slow
def test_a_kernel_is_evaluated_on_the_two_cores_of_a_v5p(source):
    found = evaluate("rms_norm", source, seed=1, target="v5p")
    assert found.correct, found.message
    assert "uncalibrated" in found.flags and "uncertain" not in found.flags
    assert found.memory.hbm_limit > 100e9


def test_a_reference_that_does_not_fit_says_so(monkeypatch):
    built = Built(20 << 30, None, {"ms": 1.0}, "", (), 1.0, 1.0, ())
    monkeypatch.setattr(baseline, "compiled", lambda *args, **options: built)
    with pytest.raises(BuildError, match=r"gemm needs 21.5 GB of HBM and the v5e has 17.2 GB"):
        baseline.make(workloads.get("gemm"), "v5e")


@pytest.mark.slow
def test_published_times_of_products_on_a_v5e():
    start = published_v5e.start_ms()
    assert 0.08 < start < 0.13
    for key, published in published_v5e.PUBLISHED.items():
        if key[1] > published_v5e.SMALL:
            ratio = published_v5e.predicted_ms(*key) / (published - start)
            assert 0.96 < ratio < 1.02, key
