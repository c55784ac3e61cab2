"""Every kernel of the baselines traces, lowers for the TPU and is right at `tiles`.

At the published size: tests/baselines/test_kernels_at_full_size.py, in the slow suite.
"""

from concurrent.futures import ThreadPoolExecutor

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
SLOW = frozenset({"conv2d_activation_batch_norm", "conv3d_mish_tanh"})


def lowered(name):
    """The interpret-mode program at `tiles`, after all presets were lowered for the TPU."""
    workload, text = workloads.get(name), kernels.source(name)
    arguments = (DEVICE_KINDS["v6e"], tracing.LIMITS, [PRESET], CORES["v6e"])
    with tracing.start(workload, text, *arguments) as job:
        trace = tracing.Trace(workload, text, job, [PRESET])
        found = {(preset, platform): blob for preset, platform, blob in trace.artefacts()}
    assert not trace.specialised, trace.specialised
    assert {preset for preset, platform in found if platform == "tpu"} == {*workload.presets}
    return found[PRESET, "cpu"]


@pytest.fixture(scope="module")
def programs(request):
    """The programs of all kernels that this run tests, made one ahead of the other."""
    mine = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in mine if hasattr(item, "callspec")]
    with ThreadPoolExecutor(1) as thread:
        yield {name: thread.submit(lowered, name) for name in names}
        thread.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in kernels.ids()],
)
def test_a_kernel_lowers_and_is_right_at_tiles(name, programs):
    workload = workloads.get(name)
    inputs, exact, own = numerics.expected(workload, PRESET, DRAW, SEED)
    out = numerics.program(workload, PRESET, programs[name].result())(inputs)
    check = compare(out, exact, own, workload.tolerance, preset=PRESET, draw=DRAW)
    assert check.passed, check.summary


def test_what_is_slow_has_a_kernel():
    assert {*kernels.ids()} >= SLOW
