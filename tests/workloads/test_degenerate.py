"""Kernels that do less than the whole operator must fail, on every kind of inputs.

Each is computed in plain numpy or jax in float32, so that nothing but what it leaves out can make
it wrong, and is held against the workload's own tolerance.
"""

import functools

import degenerate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workloads

PRESET = degenerate.PRESET
IDS = ("gemm", "rms_norm", "mamba2_scan")
CASES = degenerate.cases(*IDS)

_run, _case, _rms, _passes = (
    degenerate.run,
    degenerate.evaluate,
    degenerate.rms,
    degenerate.passes,
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_rounded_to_the_output_passes(case):
    ref = _case(*case)[2]
    assert _passes(case, jnp.asarray(ref, jnp.bfloat16))


@pytest.mark.parametrize("workload_id", IDS)
def test_what_xla_makes_of_the_reference_passes(workload_id):
    """A tolerance that XLA's own program breaks would fail honest kernels too."""
    cases = [(workload_id, draw, seed) for draw in workloads.DRAWS for seed in range(4)]
    assert not [case for case in cases if not _passes(case, _case(*case)[3])]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_constant_outputs_fail(case):
    ref = _case(*case)[2]
    constants = {
        "zeros": np.zeros_like(ref),
        "ones": np.ones_like(ref),
        "mean": np.full_like(ref, ref.mean()),
        "mean of the last axis": np.broadcast_to(ref.mean(-1, keepdims=True), ref.shape),
        "mean of the axis before": np.broadcast_to(ref.mean(-2, keepdims=True), ref.shape),
        "one row": np.broadcast_to(ref[..., :1, :], ref.shape),
    }
    assert not [name for name, out in constants.items() if _passes(case, out)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_that_ignores_an_input_fails(case):
    workload_id = case[0]
    _, exact, _, _ = _case(*case)
    passed = []
    for i, name in enumerate(workloads.get(workload_id).presets[PRESET].args):
        for what, value in (("zeros", 0.0), ("ones", 1.0), ("mean", exact[i].mean())):
            changed = [*exact]
            changed[i] = np.full_like(exact[i], value)
            if _passes(case, _run(workload_id, changed)):
                passed.append(f"{name} replaced by {what}")
    assert not passed


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_that_leaves_out_a_block_of_the_output_fails(case):
    """The last 64 rows, the last 128 columns, and one tile in the middle."""
    ref = _case(*case)[2]
    for place in (np.s_[..., -64:, :], np.s_[..., -128:], np.s_[..., 64:72, 0:128]):
        for fill in (0.0, ref[place].mean()):
            out = ref.copy()
            out[place] = fill
            assert not _passes(case, out)


def _of(workload_id):
    return degenerate.cases(workload_id)


@pytest.mark.parametrize("case", _of("gemm"), ids=str)
def test_gemm_that_does_less_fails(case):
    _, (a, b), ref, _ = _case(*case)
    k, n = b.shape
    outs = {
        "identity-like": np.tile(a, (1, -(-n // k)))[:, :n],
        "last block of K left out": a[:, :-128] @ b[:-128],
        "one block of K left out": ref - a[:, 256:384] @ b[256:384],
        "first half of K twice": 2 * a[:, : k // 2] @ b[: k // 2],
        "swapped row blocks": np.concatenate([ref[128:256], ref[:128], ref[256:]]),
        "swapped column blocks": np.concatenate(
            [ref[:, 128:256], ref[:, :128], ref[:, 256:]], axis=1
        ),
        "means of blocks of A": a.reshape(-1, 128, k).mean(1).repeat(128, 0) @ b,
    }
    assert not [name for name, out in outs.items() if _passes(case, out)]


@pytest.mark.parametrize("case", _of("rms_norm"), ids=str)
def test_rms_norm_that_does_less_fails(case):
    _, (x, scale), ref, _ = _case(*case)
    eps = workloads.get("rms_norm").constants["eps"]
    half = x[..., : x.shape[-1] // 2]

    def norm(x, mean_square, eps=eps):
        return x / np.sqrt(mean_square + eps) * scale

    square = np.mean(x * x, -1, keepdims=True)
    outs = {
        "identity": x,
        "no statistics": x * scale,
        "no scale": x / np.sqrt(square + eps),
        "no epsilon": norm(x, square, 0.0),
        "a larger epsilon": norm(x, square, 1e-3),
        "statistics of half a row": norm(x, np.mean(half * half, -1, keepdims=True)),
        "statistics of the row before": norm(x, np.roll(square, 1, -2)),
        "statistics of the array": norm(x, square.mean()),
        "mean of absolute values": norm(x, np.mean(np.abs(x), -1, keepdims=True) ** 2),
        "first columns of scale": ref / scale * np.tile(scale[:128], len(scale) // 128),
    }
    if case[1] != "structured":  # rows of few large values hardly have a mean
        outs["layer norm"] = norm(x - x.mean(-1, keepdims=True), np.var(x, -1, keepdims=True))
    assert not [name for name, out in outs.items() if _passes(case, out)]


@functools.partial(jax.jit, static_argnames=("floor", "signed", "decayed"))
def _scan(q, k, v, gate, keep, *, floor=1.0, signed=True, decayed=True):
    """The scan with parts left out; `keep` masks pairs of positions."""
    log_a = jnp.log(jax.nn.sigmoid(gate) + 1e-8)
    cumulative = jnp.cumsum(log_a, -1)
    seq = q.shape[2]
    mask = keep & jnp.tril(jnp.ones((seq, seq), bool))
    difference = cumulative[..., :, None] - cumulative[..., None, :]
    if not decayed:
        difference = jnp.zeros_like(difference)
    scores = jnp.einsum("bhid,bhjd->bhij", q, k)
    scores = scores * jnp.exp(jnp.where(mask, difference, -jnp.inf))
    total = scores.sum(-1, keepdims=True) if signed else jnp.abs(scores).sum(-1, keepdims=True)
    return jnp.einsum("bhij,bhjd->bhid", scores / jnp.maximum(jnp.abs(total), floor), v)


def test_the_scan_of_these_tests_is_the_reference():
    case = ("mamba2_scan", "shifted", 0)
    _, exact, ref, _ = _case(*case)
    seq = exact[0].shape[2]
    np.testing.assert_allclose(
        _scan(*exact, np.ones((seq, seq), bool)), ref, rtol=1e-2, atol=1e-3 * _rms(ref)
    )


@pytest.mark.parametrize("case", _of("mamba2_scan"), ids=str)
def test_a_scan_that_does_less_fails(case):
    _, exact, _, _ = _case(*case)
    value = exact[2]
    seq = value.shape[2]
    rows, columns = np.indices((seq, seq))
    everything = np.ones((seq, seq), bool)
    counts = np.arange(1, seq + 1, dtype=np.float32)[:, None]
    outs = {
        "values": value,
        "running mean": np.cumsum(value, 2) / counts,
        "running sum": np.cumsum(value, 2),
        "no gates": _scan(*exact, everything, decayed=False),
        "unsigned row sums": _scan(*exact, everything, signed=False),
        "no row sums": _scan(*exact, everything, floor=1e30) * 1e30,
        "itself left out": _scan(*exact, rows != columns),
    }
    for chunk in (64, 128, 256, 384):
        outs[f"no state between chunks of {chunk}"] = _scan(
            *exact, rows // chunk == columns // chunk
        )
        outs[f"state of one chunk of {chunk} before"] = _scan(
            *exact, rows // chunk - columns // chunk <= 1
        )
    for band in (16, 64, 128, 256):
        outs[f"band of {band}"] = _scan(*exact, rows - columns < band)
    # Two chunks of 384 are the whole sequence of 768.
    del outs["state of one chunk of 384 before"]
    assert not [name for name, out in outs.items() if _passes(case, out)]
