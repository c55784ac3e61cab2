"""Comparison of a result with its reference, and what to tell about the difference."""

from __future__ import annotations

import numpy as np

from jaxbench_env.evaluator.result import NumericCheck
from workloads import Tolerance

_SCALED_WITHIN = 0.02  # relative RMS error left after the best scale


def compare(
    out: np.ndarray,
    ref: np.ndarray,
    xla: np.ndarray,
    tolerance: Tolerance,
    *,
    preset: str,
    draw: str,
) -> NumericCheck:
    """Compares one output with the reference.

    Args:
        out: The candidate's output, any floating dtype.
        ref: The reference from a float32 computation, same shape.
        xla: What XLA makes of the reference in the workload's own dtypes, same shape.
        tolerance: The workload's tolerance (see `workloads.Tolerance` for the rule).
        preset: Name for the record.
        draw: Name for the record.
    """
    out, ref, xla = (np.asarray(a, np.float32) for a in (out, ref, xla))
    finite = np.isfinite(ref)
    scale = _rms(ref[finite]) or 1e-30
    with np.errstate(all="ignore"):
        error = np.abs(out - ref)
        ratio = error / (scale + np.abs(ref))
        # A non-finite value is right only where the reference has the same one.
        same = np.isnan(ref) & np.isnan(out) | (out == ref)
        ratio = np.where(finite & np.isfinite(out), ratio, np.where(same, 0, np.inf))
    usable = np.isfinite(ratio) & finite
    rms_error = _rms(error[usable]) / scale if usable.any() else float("inf")
    xla_usable = finite & np.isfinite(xla)
    xla_error = _rms(xla[xla_usable] - ref[xla_usable]) / scale
    rms_limit = max(tolerance.floor, tolerance.xla_factor * xla_error)
    bad = ratio > tolerance.rel
    worst = float(ratio.max(initial=0.0))
    passed = worst <= tolerance.rel and rms_error <= rms_limit
    return NumericCheck(
        preset=preset,
        draw=draw,
        passed=passed,
        # JSON has no infinity; a float64 near its end says the same.
        max_ratio=min(worst, 1e300),
        limit=tolerance.rel,
        rms_error=min(rms_error, 1e300),
        rms_limit=rms_limit,
        mismatched=float(bad.mean()) if bad.size else 0.0,
        summary="" if passed else _summary(out, ref, ratio, bad, rms_error, rms_limit),
    )


def _rms(values: np.ndarray) -> float:
    if not values.size:
        return 0.0
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _summary(out, ref, ratio, bad, rms_error, rms_limit) -> str:
    """Where the outputs differ, how many elements do, and what the difference looks like."""
    count = int(bad.sum())
    if not count:
        return (
            f"every element is within tolerance, but the RMS error {rms_error:.2e} is above "
            f"{rms_limit:.2e}: something is computed at lower precision than XLA does"
        )
    place = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
    parts = [
        f"{count:,} of {bad.size:,} elements differ ({count / bad.size:.1%}), worst at {place}: "
        f"got {out[place]:.6g}, want {ref[place]:.6g}"
    ]
    return "; ".join(parts + _patterns(out, ref, bad))


def _patterns(out, ref, bad) -> list[str]:
    """Names for the shapes that mistakes usually have."""
    found = []
    not_finite = int((~np.isfinite(out)).sum())
    if not_finite:
        found.append(f"{not_finite:,} elements are NaN or infinite")
    elif not out.any():
        found.append("the output is all zero")
    elif out.size > 1 and np.ptp(out) == 0:
        found.append("the output is one constant")
    else:
        found += _scaled(out, ref) + _transposed(out, ref)
    return found + _places(bad)


def _scaled(out, ref) -> list[str]:
    wide, reference = out.astype(np.float64), ref.astype(np.float64)
    factor = float(np.vdot(wide, reference) / np.vdot(wide, wide))
    if factor == 0 or abs(factor - 1) < 0.01 or not np.isfinite(reference).all():
        return []
    close = _rms(factor * wide - reference) < _SCALED_WITHIN * _rms(reference)
    return [f"the output is the reference scaled by {1 / factor:.4g}"] if close else []


def _transposed(out, ref) -> list[str]:
    if out.ndim < 2 or out.shape[-1] != out.shape[-2]:
        return []
    flipped = np.swapaxes(out, -1, -2)
    close = _rms(flipped - ref) < _SCALED_WITHIN * _rms(ref)
    return ["the last two axes are transposed"] if close else []


def _places(bad) -> list[str]:
    """Axes along which the wrong elements are confined, as ranges or as a period."""
    found = []
    for axis in range(bad.ndim):
        others = tuple(i for i in range(bad.ndim) if i != axis)
        wrong = np.flatnonzero(bad.any(axis=others))
        size = bad.shape[axis]
        if len(wrong) in (0, size):
            continue
        first, last = int(wrong[0]), int(wrong[-1])
        if last - first + 1 == len(wrong):
            where = f"index {first}" if first == last else f"indices {first} to {last}"
            found.append(f"only {where} of axis {axis} (size {size})")
        else:
            found.append(_periodic(wrong, axis, size))
    return found


def _periodic(wrong: np.ndarray, axis: int, size: int) -> str:
    """Describes wrong indices that do not form one range."""
    starts = wrong[np.flatnonzero(np.diff(wrong, prepend=-2) > 1)]
    gaps = np.diff(starts)
    if len(starts) > 2 and (gaps == gaps[0]).all():
        return (
            f"axis {axis} (size {size}) is wrong every {int(gaps[0])} indices, "
            f"from {int(starts[0])} on"
        )
    return f"{len(wrong)} of {size} indices of axis {axis}, the first being {int(wrong[0])}"
