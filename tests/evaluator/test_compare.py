import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jaxbench_env.evaluator.judge.compare import compare
from workloads import Tolerance

REF = np.random.default_rng(0).standard_normal((4, 64, 64)).astype(np.float32)


def check(out, ref=REF, xla=None, **kwargs):
    xla = ref * np.float32(1.001) if xla is None else xla
    return compare(out, ref, xla, Tolerance(**kwargs), preset="tiles", draw="nominal")


def test_the_reference_itself_passes():
    result = check(REF)
    assert result.passed and result.max_ratio == 0 and result.summary == ""


def changed(*index, value=9):
    out = REF.copy()
    out[index] = value
    return out


ALL = slice(None)


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (np.zeros_like(REF), "all zero"),
        (np.full_like(REF, 0.5), "one constant"),
        (REF * 1.4, "scaled by 1.4"),
        (REF.swapaxes(1, 2), "last two axes are transposed"),
        (changed(ALL, slice(32, 64)), "indices 32 to 63 of axis 1"),
        (changed(2), "only index 2 of axis 0"),
        (changed(ALL, slice(7, None, 8)), "every 8 indices, from 7"),
        (changed(1, 2, 3, value=np.nan), "1 elements are NaN or infinite"),
    ],
)
def test_a_difference_is_described(out, says):
    result = check(out)
    assert not result.passed
    assert says in result.summary


def test_a_non_finite_value_passes_only_where_the_reference_has_it():
    ref = REF.copy()
    ref[0, 0, :3] = np.inf, -np.inf, np.nan
    assert check(ref, ref).passed
    for wrong in (np.nan, -np.inf, 3.0):
        out = ref.copy()
        out[0, 0, 0] = wrong
        assert not check(out, ref).passed
    assert not check(np.full_like(ref, np.nan), ref).passed


def test_small_errors_everywhere_fail_by_their_rms():
    noise = np.random.default_rng(1).standard_normal(REF.shape).astype(np.float32)
    out = REF + 0.006 * noise
    assert check(out, xla=REF + 0.003 * noise).passed
    result = check(out, xla=REF + 0.001 * noise)
    assert not result.passed and "lower precision" in result.summary


def test_the_floor_applies_where_xla_is_exact():
    noise = np.random.default_rng(1).standard_normal(REF.shape).astype(np.float32)
    assert check(REF + 0.0015 * noise, xla=REF).passed
    assert not check(REF + 0.0025 * noise, xla=REF).passed


values = arrays.arrays(
    np.float32, (3, 4), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)
)


@settings(deadline=None)
@given(values, values, values)
def test_it_never_raises_and_never_passes_another_shape_of_nan(out, ref, xla):
    result = compare(out, ref, xla, Tolerance(), preset="p", draw="d")
    if result.passed:
        assert (np.isfinite(out) == np.isfinite(ref)).all()
