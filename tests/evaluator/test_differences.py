"""Wrong outputs are described by what is wrong with them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbench_env.evaluator.judge.compare import compare
from jaxbench_env.evaluator.judge.differences import patterns, places
from workloads import Tolerance

REF = np.random.default_rng(0).standard_normal((4, 256, 256)).astype(np.float32)
ALL = slice(None)


def summary(out, ref=REF):
    result = compare(
        np.asarray(out, np.float32), ref, ref * 1.001, Tolerance(), preset="tiles", draw="nominal"
    )
    assert not result.passed
    return result.summary


def changed(*index, value=9):
    out = REF.copy()
    out[index] = value
    return out


def in_bfloat16(steps=64):
    """A sum of products whose accumulator is rounded after every step."""
    import ml_dtypes

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, steps, 64, 64), np.float32)
    total = np.zeros((64, 64), ml_dtypes.bfloat16)
    for left, right in zip(a, b, strict=True):
        total = (total.astype(np.float32) + left @ right).astype(ml_dtypes.bfloat16)
    return total.astype(np.float32), np.einsum("kij,kjl->il", a, b)


def triangle(side):
    return np.where(side(np.ones((256, 256), bool)), REF, REF + 1)


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (np.zeros_like(REF), "all zero"),
        (np.full_like(REF, 0.5), "one constant"),
        (REF * 1.4, "the reference scaled by 1.4"),
        (-REF, "the sign is flipped"),
        (REF.swapaxes(1, 2), "the last two axes are transposed"),
        (np.roll(REF, 1, 1), "rows are shifted by 1"),
        (np.roll(REF, -1, 2), "columns are shifted by -1"),
        (np.roll(REF, 64, 1), "rows are shifted by 64"),
        (changed(ALL, slice(128, 256)), "only the last 128 rows (axis 1, size 256)"),
        (changed(ALL, slice(0, 128)), "only the first 128 rows (axis 1, size 256)"),
        (changed(ALL, ALL, slice(64, 128)), "only columns 64 to 127 (axis 2, size 256)"),
        (changed(2), "only index 2 of axis 0 (size 4)"),
        (changed(ALL, slice(7, None, 8)), "every 8th row from 7 on (axis 1, size 256)"),
        (changed(1, 2, 3, value=np.nan), "NaN in 1 elements; only index 1 of axis 0"),
        (changed(1, 2, 3, value=np.inf), "infinity in 1 elements"),
        (changed(3, value=0), "the wrong elements are zero, as if never written"),
        (triangle(np.tril), "only the upper triangle of the last two axes is wrong (causal mask?)"),
        (triangle(np.triu), "only the lower triangle"),
    ],
)
def test_a_difference_is_named(out, says):
    text = summary(out)
    assert says in text and len(text) < 300


def test_blocks_of_columns_are_named():
    out = REF.reshape(4, 256, 16, 16).copy()
    out[:, :, 1::4] = 0
    assert "every 4th block of 16 columns from 16 on" in summary(out.reshape(REF.shape))


def test_a_transposed_write_of_another_shape_is_named():
    ref = REF[:, :128]
    out = ref.swapaxes(1, 2).reshape(ref.shape)
    assert "the last two axes are transposed" in summary(out, ref)


def test_rounding_in_every_step_is_named():
    out, ref = in_bfloat16()
    assert "as if accumulated in bfloat16" in summary(out, ref)


def test_a_constant_reference_is_not_explained_by_a_shift():
    ref = np.ones((64, 64), np.float32)
    out = ref.copy()
    out[3, 5] = 2
    assert patterns(out, ref, out != ref, 0.1) == [
        "only index 3 of axis 0 (size 64)",
        "only index 5 of axis 1 (size 64)",
    ]


@settings(deadline=None)
@given(st.integers(0, 7), st.integers(1, 8), st.sampled_from([16, 32, 64]), st.booleans())
def test_a_planted_range_of_blocks_is_named(first, count, block, rows):
    last = min(first + count, 8)
    if last - first == 8:
        return
    bad = np.zeros((8 * block, 8 * block), bool)
    bad[first * block : last * block] = True
    found = places(bad if rows else bad.T)
    assert len(found) == 1
    axis, noun, n = (0, "rows", 8 * block) if rows else (1, "columns", 8 * block)
    start, stop = first * block, last * block
    if stop == n:
        want = f"the last {stop - start} {noun}"
    elif start == 0:
        want = f"the first {stop} {noun}"
    else:
        want = f"{noun} {start} to {stop - 1}"
    assert found == [f"only {want} (axis {axis}, size {n})"]


@settings(deadline=None)
@given(st.integers(2, 4), st.sampled_from([1, 8, 32]), st.data())
def test_a_planted_period_of_blocks_is_named(every, block, data):
    phase = data.draw(st.integers(0, every - 1))
    bad = np.zeros((16, 16 * block), bool)
    for start in range(phase * block, 16 * block, every * block):
        bad[:, start : start + block] = True
    (text,) = places(bad)
    assert f"every {every}" in text and f"from {phase * block} on (axis 1" in text
    assert (f"block of {block} columns" in text) == (block > 1)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([0.3, 1.0, 3.0]))
def test_noise_has_no_pattern(seed, size):
    rng = np.random.default_rng(seed)
    noise = size * rng.standard_normal(REF.shape, np.float32)
    out = REF + noise
    assert patterns(out, REF, np.abs(noise) > 0.02, size) == []
