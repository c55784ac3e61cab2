"""What must hold for every workload."""

import jax
import numpy as np
import pytest

import workloads
from jaxbench_env.evaluator.judge import degenerate, numerics
from jaxbench_env.evaluator.judge.compare import compare
from workloads.data import published, split, splits, structure

PRESET = degenerate.PRESET
every = pytest.mark.parametrize("workload", list(workloads.every()), ids=lambda w: w.id)
# One draw of each workload here; `jaxbench audit workloads` and the slow suite hold all of them.
DRAW_OF = {w.id: workloads.DRAWS[i % 3] for i, w in enumerate(workloads.every())}


def judge(workload, out, draw, seed=0):
    _, exact, own = numerics.expected(workload, PRESET, draw, seed)
    return compare(out, exact, own, workload.tolerance, preset=PRESET, draw=draw)


def contracted(workload):
    contraction = structure(workload.id).contraction
    if not contraction:
        pytest.skip("the operator's sum cannot be reordered from outside")
    return contraction


def changed(workload, inputs, contraction, change):
    """The inputs with `change(array, axis)` applied to the arguments that are summed over."""
    names = workload.presets[PRESET].args
    return [
        change(array, contraction[name]) if name in contraction else array
        for name, array in zip(names, inputs, strict=True)
    ]


@every
def test_the_reference_is_finite_and_not_constant(workload):
    _, exact, own = numerics.expected(workload, PRESET, DRAW_OF[workload.id], 0)
    assert np.isfinite(exact).all() and np.isfinite(own.astype(np.float32)).all()
    assert exact.size == 1 or exact.std() > 0.05 * np.abs(exact).max() / exact.size**0.5


@every
def test_what_xla_makes_of_the_reference_passes_with_room(workload):
    draw = DRAW_OF[workload.id]
    own = numerics.expected(workload, PRESET, draw, 0)[2]
    check = judge(workload, own, draw)
    assert check.max_ratio <= 0.75 * check.limit
    assert check.rms_limit >= workload.tolerance.floor > 0


@every
def test_another_order_of_summation_passes(workload):
    contraction, draw = contracted(workload), DRAW_OF[workload.id]
    inputs = numerics.expected(workload, PRESET, draw, 0)[0]

    def permute(array, axis):
        order = np.random.default_rng(0).permutation(array.shape[axis])
        return np.take(array, order, axis)

    _, own = numerics.references(workload, PRESET)
    out = np.asarray(own(*changed(workload, inputs, contraction, permute)))
    assert judge(workload, out, draw).passed


@every
def test_leaving_out_a_hundredth_of_a_sum_fails(workload):
    contraction, draw = contracted(workload), DRAW_OF[workload.id]
    inputs = numerics.expected(workload, PRESET, draw, 0)[0]
    first = next(iter(contraction))

    def shorten(array, axis):
        array = array.copy()
        last = [slice(None)] * array.ndim
        last[axis] = slice(array.shape[axis] - max(1, round(array.shape[axis] / 100)), None)
        array[tuple(last)] = 0
        return array

    exact, _ = numerics.references(workload, PRESET)
    out = np.asarray(exact(*changed(workload, inputs, {first: contraction[first]}, shorten)))
    assert not judge(workload, out, draw).passed


@every
def test_nothing_degenerate_passes(workload):
    checks = degenerate.audit(workload, DRAW_OF[workload.id], 0)
    assert len(checks) >= 8
    assert not [name for name, check in checks.items() if degenerate.excess(check) <= 1]


@pytest.mark.slow
@every
@pytest.mark.parametrize("draw", workloads.DRAWS)
def test_nothing_degenerate_passes_on_any_draw(workload, draw):
    for seed in (1, 2):
        checks = degenerate.audit(workload, draw, seed)
        assert not [name for name, check in checks.items() if degenerate.excess(check) <= 1]


@every
def test_the_baseline_lowers_for_the_tpu(workload):
    blob = numerics.export_reference(workload)
    exported = jax.export.deserialize(bytearray(blob))
    assert exported.platforms == ("tpu",)
    assert str(exported.out_avals[0].dtype) == workload.output("v6e").dtype


@every
def test_published_times_stand_beside_their_compiler(workload):
    known = published(workload.id)
    assert known.compiler == "libtpu 0.0.37, jax 0.9.2"
    assert known.baseline_ms is None or 0.1 < known.baseline_ms < 100


def test_there_are_fifty():
    assert len(workloads.ids()) == 50
    assert len({name for w in workloads.every() for name in w.names}) == 150


@pytest.mark.parametrize("name", splits())
def test_a_split_covers_the_suite_without_overlap(name):
    chosen = split(name)
    assert sorted(chosen.train + chosen.held_out) == sorted(workloads.ids())
    families = {w.id: w.family for w in workloads.every()}
    seen, held = ({families[i] for i in ids} for ids in (chosen.train, chosen.held_out))
    if name == "by_family":
        assert not seen & held
    else:
        assert held <= seen
