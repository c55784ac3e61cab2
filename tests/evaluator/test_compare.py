import numpy as np
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


def test_one_skipped_tile_of_a_million_elements_fails():
    rng = np.random.default_rng(0)
    # As in structured inputs: every block of rows has its own magnitude.
    ref = rng.standard_normal((1024, 1024), np.float32)
    ref[512:640] *= 1e-2
    rounded = ref * (1 + 0.002 * rng.standard_normal(ref.shape, np.float32))
    assert check(rounded, ref).passed
    for rows in (slice(128, 256), slice(512, 640)):  # the second one is small beside the rest
        out = rounded.copy()
        out[rows, 256:384] = 0
        result = check(out, ref)
        assert not result.passed
        assert f"only rows {rows.start} to {rows.stop - 1} (axis 0, size 1024)" in result.summary
        assert "only columns 256 to 383 (axis 1, size 1024)" in result.summary


def test_blocks_in_which_xla_is_wrong_too_pass():
    rng = np.random.default_rng(0)
    noise = 3e-3 * rng.standard_normal((2, 512, 512), np.float32)
    ref = rng.standard_normal((512, 512), np.float32)
    ref[:64] *= 1e-4  # nothing is left there but the noise of a cancelled sum
    assert check(ref + noise[0], ref, xla=ref + noise[1]).passed


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
