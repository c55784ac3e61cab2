"""Every kernel of the baselines traces, lowers for the TPU and is right at `tiles`.

At the published size: tests/baselines/test_kernels_at_full_size.py, in the slow suite.
"""

import pytest

import workloads
from baselines import kernels
from jaxbench_env.evaluator import tracing
from jaxbench_env.evaluator.build import DEVICE_KINDS
from jaxbench_env.evaluator.judge import numerics
from jaxbench_env.evaluator.judge.compare import compare
from workloads import CORES, DRAWS

PRESET, DRAW, SEED = "tiles", DRAWS[2], 1
# The heaviest; others of their kind remain.
SLOW = frozenset()


def lowered(workload, text):
    """The interpret-mode program at `tiles`, after all presets were lowered for the TPU."""
    arguments = (DEVICE_KINDS["v6e"], tracing.LIMITS, [PRESET], CORES["v6e"])
    with tracing.start(workload, text, *arguments) as job:
        trace = tracing.Trace(workload, text, job, [PRESET])
        found = {(preset, platform): blob for preset, platform, blob in trace.artefacts()}
    assert not trace.specialised, trace.specialised
    assert {preset for preset, platform in found if platform == "tpu"} == {*workload.presets}
    return found[PRESET, "cpu"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in kernels.ids()],
)
def test_a_kernel_lowers_and_is_right_at_tiles(name):
    workload = workloads.get(name)
    run = numerics.program(workload, PRESET, lowered(workload, kernels.source(name)))
    inputs, exact, own = numerics.expected(workload, PRESET, DRAW, SEED)
    check = compare(run(inputs), exact, own, workload.tolerance, preset=PRESET, draw=DRAW)
    assert check.passed, check.summary


def test_what_is_slow_has_a_kernel():
    assert {*kernels.ids()} >= SLOW
