"""Pair updates that do less than the whole operator must fail, on every kind of inputs.

Outputs that are constant, ignore an input or leave out a block are tested for every workload in
test_degenerate.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_degenerate import _case, _passes, _rms
from test_degenerate_attention import SLOW_TILES, xla_check

import workloads

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

ID = "triangle_multiplication"
CASES = [(ID, draw, seed) for draw in workloads.DRAWS for seed in (0, 1)]
EPS = workloads.get(ID).constants["eps"]

every = pytest.mark.parametrize("case", CASES, ids=str)


def _project(act, projection, gate):
    return (act @ projection) * jax.nn.sigmoid(act @ gate)


def _update(exact, what=""):
    """The update with one part, `what`, left out or done otherwise."""
    act, mask, left_w, right_w, left_g, right_g, scale, out_w, out_g = map(jnp.asarray, exact)
    masked = act if what == "no mask" else act * mask
    left, right = _project(masked, left_w, left_g), _project(masked, right_w, right_g)
    if what == "no gate on the left":
        left = masked @ left_w / 2
    if what == "no gate on the right":
        right = masked @ right_w / 2
    if what == "mask on the left alone":
        right = _project(act, right_w, right_g)
    if what == "mask of the other direction":
        left = _project(act * mask.swapaxes(0, 1), left_w, left_g)
    if what == "left and right swapped":
        left, right = right, left
    if what == "left on both sides":
        right = left
    keep = jnp.arange(len(act))
    blocks = {
        "first 8 of the sum left out": keep >= 8,
        "8 in the middle of the sum left out": (keep < 48) | (keep >= 56),
        "one of the sum left out": keep != 2,
        "every other of the sum": keep % 2 == 0,
    }
    if what in blocks:
        left = left * blocks[what][:, None]
    if what == "incoming edges":
        product = jnp.einsum("kic,kjc->ijc", left, right)
    elif what == "both inner":
        product = jnp.einsum("ikc,kjc->ijc", left, right)
    elif what == "product of means":
        product = left.mean(1)[:, None] * right.mean(1)[None] * len(act)
    elif what == "sum over the channels too":
        product = jnp.einsum("ikc,jkd->ij", left, right)[..., None] + 0 * left
    else:
        product = jnp.einsum("ikc,jkc->ijc", left, right)
    if what == "layer norm":
        product = product - product.mean(-1, keepdims=True)
    square = jnp.mean(product**2, -1, keepdims=True)
    half = product.shape[-1] // 2
    squares = {
        "no norm": jnp.ones_like(square),
        "statistics of the array": jnp.broadcast_to(square.mean(), square.shape),
        "statistics of a row": jnp.broadcast_to(square.mean(1, keepdims=True), square.shape),
        "statistics of the row before": jnp.roll(square, 1, 0),
        "statistics of half the channels": jnp.mean(product[..., :half] ** 2, -1, keepdims=True),
        "sum instead of mean": square * product.shape[-1],
    }
    eps = {"no epsilon": 0.0, "a larger epsilon": 1e-4, "a smaller epsilon": 1e-8}
    product = product / jnp.sqrt(squares.get(what, square) + eps.get(what, EPS))
    product = product if what == "no scale" else product * scale
    out = product if what == "no output projection" else product @ out_w
    if what == "no output gate":
        return out / 2
    gated = act * mask if what == "output gate with mask" else act
    return out * jax.nn.sigmoid(gated @ out_g)


ALWAYS = (
    "no mask",
    "mask on the left alone",
    "mask of the other direction",
    "no gate on the left",
    "no gate on the right",
    "left and right swapped",
    "left on both sides",
    "first 8 of the sum left out",
    "8 in the middle of the sum left out",
    "one of the sum left out",
    "every other of the sum",
    "incoming edges",
    "both inner",
    "product of means",
    "sum over the channels too",
    "layer norm",
    "no norm",
    "statistics of the array",
    "statistics of a row",
    "statistics of the row before",
    "statistics of half the channels",
    "sum instead of mean",
    "no scale",
    "no output projection",
    "no output gate",
    "output gate with mask",
)
# Only structured rows are small enough for epsilon.
EPSILONS = ("no epsilon", "a larger epsilon", "a smaller epsilon")


def _shortcuts(case):
    exact = _case(*case)[1]
    whats = ALWAYS + EPSILONS if case[1] == "structured" else ALWAYS
    with jax.default_matmul_precision("highest"):
        outs = {what: np.asarray(_update(exact, what)) for what in whats}
    return {**outs, "activations": exact[0], "masked activations": exact[0] * exact[1]}


def test_the_update_of_these_tests_is_the_reference():
    _, exact, ref, _ = _case(ID, "shifted", 0)
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(_update(exact), ref, rtol=1e-3, atol=1e-4 * _rms(ref))


@every
def test_an_update_that_does_less_fails(case):
    assert not [what for what, out in _shortcuts(case).items() if _passes(case, out)]


@pytest.mark.parametrize("preset", SLOW_TILES)
@pytest.mark.parametrize("draw", workloads.DRAWS)
def test_what_xla_makes_of_the_reference_passes_with_a_margin(draw, preset):
    for seed in range(4):
        check = xla_check(ID, preset, draw, seed)
        assert check.max_ratio <= 0.7 * check.limit


def test_gates_open_and_close_and_masks_hide():
    workload = workloads.get(ID)
    for draw in workloads.DRAWS:
        inputs = dict(
            zip(workload.presets["varied"].args, workload.inputs("varied", draw, 0), strict=True)
        )
        act, mask = (inputs[n].astype(np.float32) for n in ("pair_act", "mask"))
        gates = 1 / (1 + np.exp(-(act @ inputs["out_gate_w"].astype(np.float32))))
        assert (gates < 0.2).mean() > 0.05 and (gates > 0.8).mean() > 0.05
        assert set(np.unique(mask)) == {0.0, 1.0}
        assert 0.1 < (mask == 0).mean() < 0.5
