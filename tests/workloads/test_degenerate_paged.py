"""Attention over pages that does less than the whole operator must fail, on every kind of inputs.

Page tables, lengths and offsets are integers, which no type may round, so the cases are made here.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workloads
from jaxbench_env.evaluator.judge.compare import compare

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

PRESET = "varied"
IDS = ("paged_attention", "ragged_paged_attention")
CASES = [(i, draw, seed) for i in IDS for draw in workloads.DRAWS for seed in (0, 1)]

every = pytest.mark.parametrize("case", CASES, ids=str)


@functools.cache
def _reference(workload_id, preset):
    workload = workloads.get(workload_id)
    return jax.jit(functools.partial(workload.reference, workload.presets[preset].config))


def _run(workload_id, inputs, preset=PRESET):
    with jax.default_matmul_precision("highest"):
        out = _reference(workload_id, preset)(*map(jnp.asarray, inputs))
    return np.asarray(out).astype(np.float64)


def _widened(inputs):
    return tuple(a if a.dtype == np.int32 else a.astype(np.float32) for a in inputs)


@functools.cache
def _case(workload_id, draw, seed, preset=PRESET):
    """Inputs with float32 in place of bfloat16, the reference, and XLA's own result."""
    inputs = workloads.get(workload_id).inputs(preset, draw, seed)
    exact = _widened(inputs)
    return exact, _run(workload_id, exact, preset), _run(workload_id, inputs, preset)


def _check(case, out):
    """What the judge says about one output."""
    _, ref, xla = _case(*case)
    assert out.shape == ref.shape
    tolerance = workloads.get(case[0]).tolerance
    return compare(out, ref, xla, tolerance, preset=PRESET, draw=case[1])


def _that_pass(case, outs):
    return [name for name, out in outs.items() if _check(case, np.asarray(out)).passed]


@functools.partial(jax.jit, static_argnames="interleaved")
def _attend(q, keys, values, table, mask, scale, interleaved=False):
    """Attention of q (n, queries, Hq, D) over the pages of `table`, where mask (n, queries, L)."""
    count, _, q_heads, dim = q.shape
    heads = keys.shape[2]
    k = keys[table].reshape(count, -1, heads, dim)
    v = values[table].reshape(count, -1, heads, dim)
    head = jnp.arange(q_heads)
    head = head % heads if interleaved else head // (q_heads // heads)
    with jax.default_matmul_precision("highest"):
        scores = jnp.einsum("nihd,njhd->nhij", q, k[:, :, head]) * scale
        weights = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e30), axis=-1)
        return jnp.einsum("nhij,njhd->nihd", weights, v[:, :, head])


class _Pages:
    """One case, taken apart, to be computed with some of it changed."""

    def __init__(self, case):
        self.workload_id = case[0]
        exact = _case(*case)[0]
        self.scale = workloads.get(self.workload_id).constants["scale"]
        if self.workload_id == "paged_attention":
            self.queries, self.keys, self.values, self.lengths, self.table, offsets = exact
            self.used = len(self.lengths)
            self.offsets = offsets
            self.q = self.queries[offsets[:-1]][:, None]
        else:
            self.queries, pages, self.lengths, self.table, _, used = exact
            self.keys, self.values = pages[:, :, 0::2], pages[:, :, 1::2]
            self.used = int(used[0])
            self.q = self.queries.reshape(len(self.lengths), -1, *self.queries.shape[1:])
        self.slots = self.keys.shape[1]
        self.columns = np.arange(self.table.shape[1] * self.slots)

    def mask(self, lengths, rows=None):
        """Which key each query sees; `rows` are the queries' positions."""
        queries = self.q.shape[1]
        if rows is None:
            rows = lengths[:, None] - queries + np.arange(queries)
        inside = self.columns < lengths[:, None, None]
        return inside & (self.columns <= rows[:, :, None])

    def compute(self, **change):
        parts = {
            "q": self.q,
            "keys": self.keys,
            "values": self.values,
            "table": self.table,
            "mask": self.mask(self.lengths),
            "scale": np.float32(self.scale),
        }
        used = change.pop("used", self.used)
        out = np.array(_attend(**{**parts, **change}))
        out[used:] = 0
        return out[:, 0] if self.workload_id == "paged_attention" else np.concatenate(out)


def _shortcuts(case):
    pages = _Pages(case)
    count, per_seq = pages.table.shape
    slots, lengths = pages.slots, pages.lengths
    full = np.full_like(lengths, per_seq * slots)
    least = pages.q.shape[1]
    mask = pages.mask(lengths)
    identity = np.arange(count * per_seq).reshape(count, per_seq)
    last_page = (lengths - 1) // slots * slots
    columns = pages.columns
    changes = {
        "identity page table": {"table": identity},
        "page table of the sequence before": {"table": np.roll(pages.table, 1, 0)},
        "pages in reverse order": {"table": pages.table[:, ::-1]},
        "pages shifted by one": {"table": np.roll(pages.table, 1, 1)},
        "pages sorted": {"table": np.sort(pages.table, 1)},
        "first page everywhere": {"table": pages.table[:, :1].repeat(per_seq, 1)},
        "lengths ignored": {"mask": pages.mask(full, lengths[:, None] * 0 + full[0])},
        "one position too many": {"mask": pages.mask(lengths + 1)},
        "one position too few": {"mask": pages.mask(np.maximum(lengths - 1, least))},
        "whole pages": {"mask": pages.mask(-(-lengths // slots) * slots, full[:, None])},
        "last page left out": {
            "mask": mask & (columns < np.maximum(last_page, slots)[:, None, None])
        },
        "first page left out": {"mask": mask & (columns >= slots)},
        "every other page": {"mask": mask & (columns // slots % 2 == 0)},
        "mean length": {"mask": pages.mask(np.full_like(lengths, lengths.mean()))},
        "lengths of the sequence before": {"mask": pages.mask(np.roll(lengths, 1))},
        "mean of the values": {"scale": np.float32(0)},
        "mean of all slots": {"scale": np.float32(0), "mask": np.ones_like(mask)},
        "half of the scale": {"scale": np.float32(pages.scale / 2)},
        "no scale": {"scale": np.float32(1)},
        "interleaved heads": {"interleaved": True},
        "first key head": {"keys": pages.keys[:, :, :1].repeat(pages.keys.shape[2], 2)},
        "first value head": {"values": pages.values[:, :, :1].repeat(pages.keys.shape[2], 2)},
        "keys and values swapped": {"keys": pages.values, "values": pages.keys},
        "heads of the queries swapped": {"q": pages.q[:, :, ::-1]},
        "queries of the sequence before": {"q": np.roll(pages.q, 1, 0)},
    }
    for what, value in (("zeros", 0), ("ones", 1), ("their mean", None)):
        for part in ("q", "keys", "values"):
            array = getattr(pages, part)
            fill = array.mean() if value is None else value
            changes[f"{part} replaced by {what}"] = {part: np.full_like(array, fill)}
    if pages.workload_id == "paged_attention":
        ends = pages.offsets[1:] - 1
        changes["first rows of the queries"] = {"q": pages.queries[:count, None]}
        changes["last row of each sequence"] = {"q": pages.queries[ends][:, None]}
    else:
        start = np.arange(least)[None, :].repeat(count, 0)
        changes |= {
            "not causal": {"mask": pages.mask(lengths, full[:, None])},
            "queries at the start": {"mask": pages.mask(lengths, start)},
            "queries one position later": {
                "mask": pages.mask(lengths, lengths[:, None] - least + 1 + start)
            },
            "queries in reverse order": {"q": pages.q[:, ::-1]},
        }
        if pages.used < count:
            changes["unused blocks computed"] = {"used": count}
        changes["one block too few"] = {"used": pages.used - 1}
    return {name: pages.compute(**change) for name, change in changes.items()}


@pytest.mark.parametrize("workload_id", IDS)
@pytest.mark.parametrize("draw", workloads.DRAWS)
def test_the_attention_of_these_tests_is_the_reference(workload_id, draw):
    case = (workload_id, draw, 0)
    ref = _case(*case)[1]
    np.testing.assert_allclose(_Pages(case).compute(), ref, rtol=1e-3, atol=1e-4 * ref.std())


@every
def test_attention_that_does_less_fails(case):
    assert not _that_pass(case, _shortcuts(case))


@every
def test_constant_outputs_fail(case):
    ref = _case(*case)[1]
    assert np.isfinite(ref).all() and ref.std() > 0.1
    outs = {
        "zeros": np.zeros_like(ref),
        "ones": np.ones_like(ref),
        "mean": np.full_like(ref, ref.mean()),
        "mean of the channels": np.broadcast_to(ref.mean(-1, keepdims=True), ref.shape),
        "mean of the heads": np.broadcast_to(ref.mean(-2, keepdims=True), ref.shape),
        "mean of the rows": np.broadcast_to(ref.mean(0, keepdims=True), ref.shape),
        "first row": np.broadcast_to(ref[:1], ref.shape),
        "first head": np.broadcast_to(ref[:, :1], ref.shape),
    }
    assert not _that_pass(case, outs)


@every
def test_a_kernel_that_leaves_out_a_part_of_the_output_fails(case):
    ref = _case(*case)[1]
    row = int(np.flatnonzero(ref.any(axis=(1, 2)))[-1])  # the last one that is not zero throughout
    for place in (np.s_[row], np.s_[:, -1], np.s_[..., 64:], np.s_[0, 0]):
        for fill in (0.0, ref[place].mean()):
            out = ref.copy()
            out[place] = fill
            assert not _check(case, out).passed


@every
def test_the_reference_rounded_to_the_output_passes(case):
    assert _check(case, _case(*case)[1].astype(jnp.bfloat16)).passed


@pytest.mark.parametrize("preset", ["varied", pytest.param("tiles", marks=pytest.mark.slow)])
@pytest.mark.parametrize("workload_id", IDS)
def test_what_xla_makes_of_the_reference_passes_with_a_margin(workload_id, preset):
    for draw in workloads.DRAWS:
        for seed in range(4):
            _, ref, xla = _case(workload_id, draw, seed, preset)
            tolerance = workloads.get(workload_id).tolerance
            check = compare(xla, ref, xla, tolerance, preset=preset, draw=draw)
            assert check.max_ratio <= 0.7 * check.limit, (draw, seed)


@pytest.mark.parametrize("preset", ["tiles", "varied"])
@pytest.mark.parametrize("workload_id", IDS)
def test_tables_lengths_and_offsets_are_those_of_a_cache(workload_id, preset):
    workload = workloads.get(workload_id)
    args, config = workload.presets[preset].args, workload.presets[preset].config
    least = config["T"] if workload_id == "ragged_paged_attention" else 1
    for draw in workloads.DRAWS:
        inputs = dict(zip(args, workload.inputs(preset, draw, 3), strict=True))
        table, lengths, offsets = (inputs[n] for n in ("page_indices", "kv_lens", "cu_q_lens"))
        assert sorted(table.ravel()) == list(range(table.size))
        assert lengths.min() >= least and lengths.min() < lengths.max() <= config["L"]
        assert offsets[0] == 0 and (np.diff(offsets) >= 0).all()
        assert offsets[-1] <= len(inputs["queries"])
        if draw == "structured":
            assert {least, config["L"]} <= set(lengths)
            assert any(n % config["page_size"] == 0 for n in lengths if n < config["L"])
            assert any(n % config["page_size"] == 1 for n in lengths if n > 1)
