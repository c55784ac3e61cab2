"""Attention that does less than the whole operator must fail, on every kind of inputs.

Outputs that are constant, ignore an input or leave out a block are tested for every workload in
test_degenerate.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_degenerate import PRESET, _case, _passes, _rms

import workloads
from jaxbench_env.evaluator.judge.compare import compare

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

DENSE = ("flash_attention", "gqa_attention", "sparse_attention", "flex_attention")
BANDS = (1, 16, 64, 128, 256)


def _cases(*ids):
    return [(i, draw, seed) for i in ids for seed, draw in enumerate(workloads.DRAWS)]


@functools.cache
def _reference(workload_id, preset):
    workload = workloads.get(workload_id)
    return jax.jit(functools.partial(workload.reference, workload.presets[preset].config))


def xla_check(workload_id, preset, draw, seed):
    """What the judge says about XLA's own result in the workload's dtypes."""
    workload = workloads.get(workload_id)
    inputs = workload.inputs(preset, draw, seed)
    reference = _reference(workload_id, preset)
    with jax.default_matmul_precision("highest"):
        ref = reference(*(jnp.asarray(a, jnp.float32) for a in inputs))
        xla = reference(*map(jnp.asarray, inputs))
    return compare(xla, ref, xla, workload.tolerance, preset=preset, draw=draw)


SLOW_TILES = ["varied", pytest.param("tiles", marks=pytest.mark.slow)]


@pytest.mark.parametrize("preset", SLOW_TILES)
@pytest.mark.parametrize("draw", workloads.DRAWS)
@pytest.mark.parametrize("workload_id", (*DENSE, "mla_attention"))
def test_what_xla_makes_of_the_reference_passes_with_a_margin(workload_id, draw, preset):
    for seed in range(4):
        check = xla_check(workload_id, preset, draw, seed)
        assert check.max_ratio <= 0.7 * check.limit


def _positions(seq):
    return np.indices((seq, seq))


@jax.jit
def _attend(q, k, v, mask, bias, scale):
    """Softmax attention of arrays (..., heads, S, D) in float32."""
    with jax.default_matmul_precision("highest"):
        scores = jnp.einsum("...id,...jd->...ij", q, k) * scale + bias
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
        return jnp.einsum("...ij,...jd->...id", weights, v)


def _masks(seq):
    """Masks other than the causal one, by name."""
    rows, columns = _positions(seq)
    causal = columns <= rows
    masks = {
        "not causal": np.ones_like(causal),
        "the next position too": columns <= rows + 1,
        "without the position itself": columns < rows,
        "without the first 64 positions": causal & (columns >= 64),
        "without the first position": causal & (columns > 0),
        "the first 16 positions and a band of 128": causal
        & ((columns < 16) | (rows - columns < 128)),
        "without one tile of the last scores": causal
        & ~((rows // 64 == (seq - 1) // 64) & (columns // 64 == 1)),
        "every other block of 64": causal & ((rows // 64 - columns // 64) % 2 == 0),
    }
    for size in BANDS:
        if size < seq:
            masks[f"band of {size}"] = causal & (rows - columns < size)
    for size in (64, 128):
        masks[f"blocks of {size} on the diagonal"] = causal & (rows // size == columns // size)
    return masks


def _heads_first(workload_id, array):
    return array.swapaxes(1, 2) if workload_id == "gqa_attention" else array


def _dense(workload_id, exact):
    """Query, key, value as (..., heads, S, D) with repeated keys, the bias and the scale."""
    q, k, v = (_heads_first(workload_id, a) for a in exact[:3])
    group = q.shape[-3] // k.shape[-3]
    bias = exact[3] if len(exact) > 3 else np.float32(0)
    scale = workloads.get(workload_id).constants["scale"]
    return q, k.repeat(group, -3), v.repeat(group, -3), bias, np.float32(scale)


def _dense_shortcuts(workload_id, exact):
    q, k, v, bias, scale = _dense(workload_id, exact)
    seq = v.shape[-2]
    rows, columns = _positions(seq)
    causal = columns <= rows
    counts = np.arange(1, seq + 1, dtype=np.float32)[:, None]
    attend = functools.partial(_attend, bias=bias, scale=scale)
    largest = 1e4 * scale  # only the key with the largest logit counts
    outs = {name: attend(q, k, v, mask) for name, mask in _masks(seq).items()}
    outs |= {
        "the values themselves": v,
        "running mean": np.cumsum(v, -2) / counts,
        "running sum": np.cumsum(v, -2),
        "keys as queries": attend(k, k, v, causal),
        "heads swapped": attend(q[..., ::-1, :, :], k, v, causal),
        "keys of the block before": attend(q, np.roll(k, 64, -2), v, causal),
        "values of the block before": attend(q, k, np.roll(v, 64, -2), causal),
        "half of the channels": attend(q[..., :64], k[..., :64], v, causal),
        "half of the scale": _attend(q, k, v, causal, bias, scale / 2),
        "twice the scale": _attend(q, k, v, causal, bias, scale * 2),
        "D instead of its root": _attend(q, k, v, causal, bias, scale * 128**-0.5),
        "largest logit alone": _attend(q, k, v, causal, 1e4 * bias, largest),
    }
    if q.ndim == 4:
        outs["keys of the first in the batch"] = attend(q, k[:1].repeat(len(k), 0), v, causal)
    if exact[1].shape != exact[0].shape:
        heads = _heads_first(workload_id, exact[1]).shape[-3]
        order = np.arange(q.shape[-3]) % heads * (q.shape[-3] // heads)
        outs["interleaved heads"] = attend(q, k[..., order, :, :], v[..., order, :, :], causal)
        first = np.zeros_like(order)
        outs["one key head"] = attend(q, k[..., first, :, :], v[..., first, :, :], causal)
        outs["one value head"] = attend(q, k, v[..., first, :, :], causal)
    if bias.ndim:
        outs |= {
            "no bias": _attend(q, k, v, causal, np.float32(0), scale),
            "bias alone": _attend(q, k, v, causal, bias, np.float32(0)),
            "bias before the scale": _attend(q, k, v, causal, bias * scale, scale),
            "bias transposed": _attend(q, k, v, causal, bias.swapaxes(1, 2), scale),
            "bias of the next head": _attend(q, k, v, causal, np.roll(bias, 1, 0), scale),
            "bias of the row before": _attend(q, k, v, causal, np.roll(bias, 1, 1), scale),
            "mean bias of a row": _attend(q, k, v, causal, bias.mean(-1, keepdims=True), scale),
            "mean bias of a distance": _attend(q, k, v, causal, _toeplitz(bias), scale),
        }
    return {name: _heads_first(workload_id, np.asarray(out)) for name, out in outs.items()}


def _toeplitz(bias):
    """Every entry below the diagonal replaced by the mean of its diagonal."""
    distance = np.subtract.outer(*2 * [np.arange(bias.shape[-1])]).ravel()
    below = distance >= 0
    counts = np.bincount(distance[below])
    out = np.zeros((len(bias), distance.size), np.float32)
    for flat, source in zip(out, bias.reshape(len(bias), -1), strict=True):
        mean = np.bincount(distance[below], source[below]) / counts
        flat[below] = mean[distance[below]]
    return out.reshape(bias.shape)


@pytest.mark.parametrize("workload_id", DENSE)
def test_the_attention_of_these_tests_is_the_reference(workload_id):
    _, exact, ref, _ = _case(workload_id, "shifted", 0)
    q, k, v, bias, scale = _dense(workload_id, exact)
    rows, columns = _positions(v.shape[-2])
    out = _heads_first(workload_id, np.asarray(_attend(q, k, v, columns <= rows, bias, scale)))
    np.testing.assert_allclose(out, ref, rtol=1e-3, atol=1e-4 * _rms(ref))


@pytest.mark.parametrize("case", _cases(*DENSE), ids=str)
def test_attention_that_does_less_fails(case):
    outs = _dense_shortcuts(case[0], _case(*case)[1])
    assert not [name for name, out in outs.items() if _passes(case, out)]


@pytest.mark.parametrize("workload_id", (*DENSE, "mla_attention"))
def test_every_position_counts(workload_id):
    """No later block of 64 positions may be negligible on the draw that has whole stretches."""
    case = (workload_id, "structured", 0)
    _, exact, ref, _ = _case(*case)
    seq = workloads.get(workload_id).sizes[PRESET]["S"]
    rows, columns = _positions(seq)
    for start in range(0, seq, 64):
        mask = (columns <= rows) & ((columns // 64 != start // 64) | (columns == rows))
        if workload_id == "mla_attention":
            out = _mla(*exact, mask)
        else:
            q, k, v, bias, scale = _dense(workload_id, exact)
            out = _heads_first(workload_id, np.asarray(_attend(q, k, v, mask, bias, scale)))
        assert not _passes(case, out), start


ROPE_THETA = workloads.get("mla_attention").constants["rope_theta"]
LATENT_SCALE = 192**-0.5


def _rotate(x, positions, theta, halves=False):
    """Rotation of neighbouring columns of (B, S, heads, rope), or of the two halves."""
    rope = x.shape[-1]
    angle = positions[:, None] * np.float64(theta) ** (-np.arange(0, rope, 2) / rope)
    cos, sin = np.cos(angle)[:, None].astype(x.dtype), np.sin(angle)[:, None].astype(x.dtype)
    if halves:
        a, b = x[..., : rope // 2], x[..., rope // 2 :]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


def _mla(
    x, q_down, q_up, kv_down, k_up, v_up, out_proj, mask,
    *, rotate_query=True, rotate_key=True, content=1.0, rotary=1.0,
    scale=LATENT_SCALE, theta=ROPE_THETA, halves=False, shared_value=False,
):  # fmt: skip
    """Latent attention in numpy with parts left out or done otherwise."""
    sizes = workloads.get("mla_attention").sizes[PRESET]
    batch, seq, _ = x.shape
    heads, nope, rope = sizes["H"], sizes["nope"], sizes["rope"]
    positions = np.arange(seq)
    q = (x @ q_down @ q_up).reshape(batch, seq, heads, nope + rope)
    latent, k_rope = np.split(x @ kv_down, [sizes["kvl"]], -1)
    q_nope, q_rope, k_rope = q[..., :nope], q[..., nope:], k_rope[:, :, None]
    k_nope = (latent @ k_up).reshape(batch, seq, heads, nope)
    value = (latent @ v_up).reshape(batch, seq, heads, -1)
    if shared_value:
        value = value[:, :, :1].repeat(heads, 2)
    if rotate_query:
        q_rope = _rotate(q_rope, positions, theta, halves)
    if rotate_key:
        k_rope = _rotate(k_rope, positions, theta, halves)
    k_rope = k_rope.repeat(heads, 2)
    query = np.concatenate([np.float32(content) * q_nope, np.float32(rotary) * q_rope], -1)
    key = np.concatenate([k_nope, k_rope], -1)
    query, key, value = (a.swapaxes(1, 2) for a in (query, key, value))
    out = np.asarray(_attend(query, key, value, mask, np.float32(0), np.float32(scale)))
    return out.swapaxes(1, 2).reshape(batch, seq, -1) @ out_proj


def _mla_shortcuts(exact):
    seq = exact[0].shape[1]
    rows, columns = _positions(seq)
    causal = columns <= rows
    outs = {name: _mla(*exact, mask) for name, mask in _masks(seq).items()}
    changes = {
        "running mean": {"scale": 0.0},
        "no rotation": {"rotate_query": False, "rotate_key": False},
        "keys not rotated": {"rotate_key": False},
        "queries not rotated": {"rotate_query": False},
        "halves rotated instead of neighbours": {"halves": True},
        "another base of the angles": {"theta": 1000.0},
        "no content part": {"content": 0.0},
        "no rotary part": {"rotary": 0.0},
        "scale of the content part alone": {"scale": 128**-0.5},
        "no scale": {"scale": 1.0},
        "values of the first head": {"shared_value": True},
    }
    outs |= {name: _mla(*exact, causal, **change) for name, change in changes.items()}
    outs["projected values"] = _mla(*exact, rows == columns)
    outs["running sum of projected values"] = np.cumsum(outs["projected values"], 1)
    outs["identity"] = exact[0]
    return outs


def test_the_latent_attention_of_these_tests_is_the_reference():
    _, exact, ref, _ = _case("mla_attention", "shifted", 0)
    rows, columns = _positions(exact[0].shape[1])
    np.testing.assert_allclose(_mla(*exact, columns <= rows), ref, rtol=1e-3, atol=1e-3 * _rms(ref))


@pytest.mark.parametrize("case", _cases("mla_attention"), ids=str)
def test_latent_attention_that_does_less_fails(case):
    outs = _mla_shortcuts(_case(*case)[1])
    assert not [name for name, out in outs.items() if _passes(case, out)]
