"""Kernels that ignore the router, the groups or a part of the products must fail."""

import numpy as np
import pytest
from test_degenerate_conv import (
    PRESET,
    accepted,
    blocks_left_out,
    cases,
    constants,
    exact,
    excess,
    expected,
    ignoring_inputs,
    rerun,
    xla_excess,
)

import workloads

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

IDS = ("sparse_moe", "megablox_gmm", "ragged_dot")
every = pytest.mark.parametrize("case", cases(*IDS), ids=str)


def _of(workload_id):
    return pytest.mark.parametrize("case", cases(workload_id), ids=str)


@every
def test_honest_results_pass(case):
    _, ref, xla = expected(case)
    assert xla_excess(case) <= 0.7
    assert excess(case, ref.astype(xla.dtype)) <= 1


@every
def test_constant_results_fail(case):
    assert not accepted(case, constants(expected(case)[1]))


@every
def test_a_block_left_out_fails(case):
    ref = expected(case)[1]
    if not ref[-1].any():
        # Rows past the last group are zero: the last row that is not is the one to leave out.
        out = ref.copy()
        out[exact(case)["group_sizes"].sum() - 1] = 0
        assert not accepted(case, {"last row of the last group": out})
    else:
        assert not accepted(case, blocks_left_out(ref))


@every
def test_ignoring_an_input_fails(case):
    assert not accepted(case, ignoring_inputs(case))


@_of("sparse_moe")
def test_a_mixture_that_does_less_fails(case):
    values = exact(case)
    x, router = values["x"], values["router_weights"]
    gate, up, down = (values[f"expert_{name}_kernels"] for name in ("gate", "up", "down"))
    width, mlp, experts = x.shape[-1], gate.shape[-1], router.shape[1]
    logits = x @ router
    order = np.argsort(-logits, axis=-1)
    g = np.einsum("bse,nem->bsnm", x, gate, optimize=True)
    u = np.einsum("bse,nem->bsnm", x, up, optimize=True)

    def mix(weights, hidden):
        down_each = np.einsum("bsnm,nme->bsne", hidden, down, optimize=True)
        return np.einsum("bsn,bsne->bse", weights, down_each)

    def softmax(z):
        z = np.exp(z - z.max(-1, keepdims=True))
        return z / z.sum(-1, keepdims=True)

    def top(count):
        kept = logits >= np.take_along_axis(logits, order[..., count - 1 : count], -1)
        return np.where(kept, logits, -np.inf)

    hidden = g / (1 + np.exp(-g)) * u
    right = softmax(top(2))
    assert excess(case, mix(right, hidden)) <= 0.2
    equal = np.full_like(right, 1 / experts)
    last = np.s_[..., -1:]
    short, narrow = hidden.copy(), hidden.copy()
    short[..., -mlp // 96 :] = 0
    narrow[..., : mlp // 2] *= 2
    narrow[..., mlp // 2 :] = 0
    rotated = np.roll(right, 1, -1)
    busiest = np.zeros_like(right)
    busiest[..., right.sum((0, 1)).argmax()] = 1
    without_last = right.copy()
    without_last[last] = 0
    outs = {
        "identity": x,
        "all experts equally": mix(equal, hidden),
        "softmax over all experts": mix(softmax(logits), hidden),
        "best expert only": mix(softmax(top(1)), hidden),
        "three experts": mix(softmax(top(3)), hidden),
        "both chosen experts equally": mix((right > 0) / 2, hidden),
        "softmax before the choice": mix(np.where(right > 0, softmax(logits), 0), hidden),
        "one expert for all": mix(busiest, hidden),
        "the next expert": mix(rotated, hidden),
        "router of the token before": mix(np.roll(right, 1, 1), hidden),
        "router of the other sample": mix(np.roll(right, 1, 0), hidden),
        "no gate": mix(right, u),
        "no activation": mix(right, g * u),
        "relu": mix(right, np.maximum(g, 0) * u),
        "gate and up swapped": mix(right, u / (1 + np.exp(-u)) * g),
        "last 1 % of the hidden layer left out": mix(right, short),
        "half of the hidden layer twice": mix(right, narrow),
        "last columns of x left out": rerun(case, x=x * (np.arange(width) < width - 2)),
    }
    # Tokens above the mean load dropped, as a kernel of fixed capacity would.
    capacity, load = right[..., 0].size * 2 // experts, np.cumsum(right.reshape(-1, experts) > 0, 0)
    outs["tokens over capacity dropped"] = mix(
        np.where(load.reshape(right.shape) <= capacity, right, 0), hidden
    )
    if (right[last] > 0).any():
        outs["last expert left out"] = mix(without_last, hidden)
    assert not accepted(case, outs)


def _grouped(lhs, rhs, sizes):
    out, start = np.zeros((len(lhs), rhs.shape[2]), np.float32), 0
    for matrix, size in zip(rhs, sizes, strict=True):
        out[start : start + size] = lhs[start : start + size] @ matrix
        start += size
    return out


@_of("megablox_gmm")
def test_a_grouped_product_that_does_less_fails(case):
    lhs, rhs, sizes = exact(case).values()
    assert excess(case, _grouped(lhs, rhs, sizes)) <= 0.2
    rows, groups = len(lhs), len(sizes)
    equal = np.full(groups, rows // groups)
    aligned = np.minimum(-(-sizes // 8) * 8, rows)
    shortened = sizes.copy()
    shortened[-1] -= 1
    outs = {
        "equal groups": _grouped(lhs, rhs, equal),
        "groups of whole tiles": _grouped(lhs, rhs, aligned),
        "first matrix only": lhs @ rhs[0],
        "mean matrix": lhs @ rhs.mean(0),
        "sizes reversed": _grouped(lhs, rhs, sizes[::-1]),
        "matrices of the next group": _grouped(lhs, np.roll(rhs, 1, 0), sizes),
        "last row of the last group left out": _grouped(lhs, rhs, shortened),
        "last 1 % of K left out": _grouped(lhs[:, :-2], rhs[:, :-2], sizes),
    }
    outs["empty groups counted as a row"] = _grouped(lhs, rhs, np.maximum(sizes, 1))
    if sizes.sum() < rows:
        past = sizes.copy()
        past[-1] += rows - sizes.sum()
        outs["rows past the last group not zero"] = _grouped(lhs, rhs, past)
    assert not accepted(case, outs)


@pytest.mark.parametrize("preset", workloads.PRESETS)
@pytest.mark.parametrize("draw", workloads.DRAWS)
def test_the_published_grouped_product_is_right_for_the_groups_drawn(preset, draw):
    """It reads max_expert_size rows from each start, which must not go past the last row."""
    from workloads.moe import _group_sizes

    workload = workloads.get("megablox_gmm")
    config = workload.presets[preset].config
    rows, largest = config["M"], config["max_expert_size"]
    for seed in range(20):
        sizes = _group_sizes(np.random.default_rng(seed), config["G"], rows, largest, draw)
        starts = np.cumsum(sizes) - sizes
        assert 0 == sizes.min() and sizes.max() == largest == sizes[-1]
        assert sizes.sum() <= rows and starts.max() + largest <= rows
        assert (sizes % 8 != 0).any()


@pytest.mark.parametrize("preset", ["tiles", PRESET])
@pytest.mark.parametrize("draw", workloads.DRAWS)
def test_no_rounding_changes_the_choice_of_experts(preset, draw):
    inputs = workloads.get("sparse_moe").inputs(preset, draw, 3)
    x, router = (a.astype(np.float32) for a in inputs[:2])
    logits = np.sort(x @ router, axis=-1)
    assert (logits[..., -2] - logits[..., -3]).min() > 0.3
    assert np.abs(logits).max() < 8  # spacing of bfloat16 below 8: 1/32
    if preset == PRESET:
        chosen = np.argsort(-(x @ router), axis=-1)[..., :2]
        load = np.bincount(chosen.ravel(), minlength=router.shape[1])
        assert load.max() > 1.5 * load.min()


@_of("ragged_dot")
def test_a_batched_product_that_does_less_fails(case):
    x, weights = exact(case).values()
    groups, _, width = x.shape
    ref = expected(case)[1]
    outs = {
        "first matrix only": x @ weights[0],
        "mean matrix": x @ weights.mean(0),
        "matrices of the next group": x @ np.roll(weights, 1, 0),
        "last 1 % of K left out": x[..., :-4] @ weights[:, :-4],
        "one block of K left out": ref - x[..., 128:256] @ weights[:, 128:256],
        "first half of K twice": 2 * x[..., : width // 2] @ weights[:, : width // 2],
        "row blocks swapped": np.roll(ref, 64, 1),
        "column blocks swapped": np.roll(ref, 128, 2),
        "identity-like": np.tile(x, (1, 1, 2)),
    }
    assert not accepted(case, outs)
