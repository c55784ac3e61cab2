"""Retention kernels that forget, see the future or normalise otherwise must fail."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_degenerate_conv import (
    accepted,
    blocks_left_out,
    cases,
    constants,
    exact,
    excess,
    expected,
    ignoring_inputs,
    xla_excess,
)

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

every = pytest.mark.parametrize("case", cases("retnet_retention"), ids=str)


@every
def test_honest_results_pass(case):
    ref = expected(case)[1]
    assert xla_excess(case) <= 0.7
    assert excess(case, jnp.asarray(ref, jnp.bfloat16)) <= 1


@every
def test_constant_results_fail(case):
    assert not accepted(case, constants(expected(case)[1]))


@every
def test_a_block_left_out_fails(case):
    ref = expected(case)[1]
    assert not accepted(case, blocks_left_out(ref))
    outs = {}
    for head in range(ref.shape[1]):
        outs[f"head {head}"] = ref.copy()
        outs[f"head {head}"][:, head] = 0
    assert not accepted(case, outs)


@every
def test_ignoring_an_input_fails(case):
    assert not accepted(case, ignoring_inputs(case))


def _powers(heads, seq):
    gamma = 1 - 2.0 ** (-5 - np.arange(heads))
    position = np.arange(seq)
    distance = position[:, None] - position
    return gamma[:, None, None] ** np.abs(distance)


@functools.partial(jax.jit, static_argnames=("floor", "total"))
def _retention(q, k, v, decay, *, floor=1.0, total="absolute"):
    """Retention with parts left out: `decay` is zero where a pair is not to be seen."""
    with jax.default_matmul_precision("highest"):
        scores = jnp.einsum("bhid,bhjd->bhij", q, k) * decay
        of = jnp.abs(scores) if total == "absolute" else scores
        norm = jnp.maximum(jnp.abs(of.sum(-1, keepdims=True)), floor)
        return jnp.einsum("bhij,bhjd->bhid", scores / norm, v)


@every
def test_a_retention_that_does_less_fails(case):
    values = exact(case)
    q, k, value = values.values()
    heads, seq, dim = q.shape[1:]
    rows, columns = np.indices((seq, seq))
    causal = rows >= columns
    power = _powers(heads, seq)
    decay = (power * causal).astype(np.float32)
    run = functools.partial(_retention, q, k, value)
    assert excess(case, run(decay)) <= 0.2
    counts = np.arange(1, seq + 1, dtype=np.float32)[:, None]
    outs = {
        "values": value,
        "running mean": np.cumsum(value, 2) / counts,
        "running sum": np.cumsum(value, 2),
        "no decay": run(np.broadcast_to(causal, decay.shape).astype(np.float32)),
        "decay of one head": run(np.broadcast_to(decay[:1], decay.shape)),
        "decay of the next head": run(np.roll(decay, -1, 0)),
        "one decay step more": run(decay * (1 - 2.0 ** (-5 - np.arange(heads)))[:, None, None]),
        "not causal": run(power.astype(np.float32)),
        "strictly causal": run(decay * (rows != columns)),
        "itself only": run(decay * (rows == columns)),
        "no floor": run(decay, floor=1e-9),
        "no normaliser": run(decay, floor=1e30) * 1e30,
        "another floor": run(decay, floor=2.0),
        "signed sums": run(decay, total="signed"),
        "scaled scores": _retention(q * dim**-0.5, k, value, decay),
    }
    for chunk in (64, 128, 256, 384):
        same = rows // chunk == columns // chunk
        outs[f"no state between chunks of {chunk}"] = run(decay * same)
        # A kernel that carries the state but normalises each chunk by its own sum.
        own = jnp.maximum(jnp.abs(jnp.einsum("bhid,bhjd->bhij", q, k) * decay * same).sum(-1), 1)
        outs[f"sums of the last chunk of {chunk}"] = run(decay, floor=1e30) * 1e30 / own[..., None]
    for chunk in (64, 128, 256):
        near = rows // chunk - columns // chunk <= 1
        outs[f"state of one chunk of {chunk} before"] = run(decay * near)
    for band in (16, 64, 128, 256):
        outs[f"band of {band}"] = run(decay * (rows - columns < band))
    assert not accepted(case, outs)


@every
def test_the_floor_acts_on_a_part_of_the_rows(case):
    q, k, _ = exact(case).values()
    decay = _powers(*q.shape[1:3]) * np.tri(q.shape[2])
    total = np.abs(np.einsum("bhid,bhjd->bhij", q, k) * decay).sum(-1)
    for head in range(q.shape[1]):
        assert 0.1 < (total[:, head] < 1).mean() < 0.9
