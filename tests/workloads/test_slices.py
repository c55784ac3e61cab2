"""The parts of a workload make up the whole."""

import dataclasses
import math

import numpy as np
import pytest

import workloads
from jaxbench_env.evaluator.judge import full, numerics
from jaxbench_env.evaluator.judge.compare import compare
from workloads import slices

PRESET = "varied"
WHOLE = {"triangle_multiplication"}  # every pair needs all pairs that share one of its ends
# One of each way to cut; the slow suite holds all of them.
FAST = {
    "gqa_attention",
    "ragged_paged_attention",
    "megablox_gmm",
    "rms_norm",
    "cross_entropy",
    "ragged_dot",
    "retnet_retention",
    "conv2d_relu_bias_add",
    "gemm_batch_norm_gelu_relu",
    "gemm_group_norm_min_bias_add",
}


def every(fast=None):
    return pytest.mark.parametrize(
        "workload",
        [
            pytest.param(w, marks=[] if fast is None or w.id in fast else [pytest.mark.slow])
            for w in workloads.every()
        ],
        ids=lambda w: w.id,
    )


def several_batches(workload):
    """The workload with two batches at the small preset, where there is only one."""
    if workload.id != "retnet_retention":
        return workload
    small = {**workload.sizes[PRESET], "B": 2}
    return dataclasses.replace(workload, sizes={**workload.sizes, PRESET: small})


def count(workload):
    """As many cuts as there are, each into few parts."""
    chosen = [1] * len(slices.cuts(workload))
    for option in slices.counts(workload, PRESET):
        for place, number in enumerate(option):
            if number > 1 and chosen[place] == 1:
                chosen[place] = number
    return tuple(chosen)


@every(FAST)
def test_the_reference_of_the_parts_is_that_of_the_whole(workload):
    workload = several_batches(workload)
    chosen = count(workload)
    assert math.prod(chosen) > 1 or workload.id in WHOLE
    inputs, exact, _ = numerics.expected(workload, PRESET, "structured", 0)
    reference, own = numerics.references(workload, PRESET)
    found, results = np.full_like(exact, np.nan), []
    for part in slices.parts(workload, PRESET, chosen):
        args = [a[i] for a, i in zip(inputs, part.arguments, strict=True)]
        result = np.asarray(reference(*args))
        if part.output is None:
            results.append(result)
            continue
        assert np.isnan(found[part.output]).all()
        found[part.output] = result
        xla = np.asarray(own(*args))
        check = compare(xla, result, xla, workload.tolerance, preset=PRESET, draw="structured")
        assert check.passed, check.summary  # a right kernel does not fail by its part
    found = np.mean(results, axis=0) if results else found
    scale = np.sqrt(np.mean(np.square(exact)))
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * scale)


@every()
def test_the_published_size_has_parts_enough(workload):
    most = slices.counts(workload, "v6e")[-1]
    assert math.prod(most) >= 4 or workload.id in WHOLE
    assert math.prod(most) >= full.LEAST_PARTS or workload.id in WHOLE | {
        "mla_attention",
        "paged_attention",
        "ragged_paged_attention",
        "sparse_attention",
        "retnet_retention",
    }
