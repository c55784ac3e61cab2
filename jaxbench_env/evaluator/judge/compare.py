"""Comparison of a result with its reference, and what to tell about the difference."""

from __future__ import annotations

import numpy as np

from jaxbench_env.evaluator.judge.differences import describe, places
from jaxbench_env.evaluator.result import NumericCheck
from workloads import Tolerance

_BLOCK = (8, 128)  # rows and columns: the chip's tile
# A block's RMS error may be so many times XLA's own there, plus shares of the block's and of the
# whole output's RMS. One that was never computed is off by its whole RMS.
_BLOCK_XLA, _BLOCK_OWN, _BLOCK_WHOLE = 8.0, 0.5, 2e-4


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

    Besides the rule of `workloads.Tolerance` no block of 8 x 128 elements may be as wrong as if it
    had not been computed: elements that are small beside the rest of the output would hide it.

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
    skipped = _skipped_blocks(error, ref, xla, scale)
    passed = worst <= tolerance.rel and rms_error <= rms_limit and not skipped.any()
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
        summary="" if passed else _summary(out, ref, ratio, bad, skipped, rms_error, rms_limit),
    )


def _rms(values: np.ndarray) -> float:
    if not values.size:
        return 0.0
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _summary(out, ref, ratio, bad, skipped, rms_error, rms_limit) -> str:
    """Where the outputs differ, how many elements do, and what the difference looks like."""
    if bad.any():
        worst = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
        return describe(out, ref, bad, worst, rms_error)
    if skipped.any():
        rows, columns = np.argwhere(skipped)[0] * _block(ref.shape)
        first = np.unravel_index(int(rows) * _plane(ref.shape)[1] + int(columns), ref.shape)
        text = (
            f"{int(skipped.sum()):,} of {skipped.size:,} blocks of small elements are as wrong as "
            f"if they had not been computed, the first at {tuple(map(int, first))}"
        )
        return "; ".join([text, *places(_spread(skipped, ref.shape))])
    return (
        f"every element is within tolerance, but the RMS error {rms_error:.2e} is above "
        f"{rms_limit:.2e}: something is computed at lower precision than XLA does, as if "
        "accumulated in bfloat16"
    )


def _plane(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of an output: all axes but the last are rows, short ones are one line."""
    size = int(np.prod(shape))
    if not size or len(shape) < 2 or shape[-1] < 16:
        return 1, size
    return size // shape[-1], shape[-1]


def _block(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = _plane(shape)
    return min(_BLOCK[0], max(rows, 1)), min(_BLOCK[1], max(columns, 1))


def _skipped_blocks(error, ref, xla, scale) -> np.ndarray:
    """Which blocks are as wrong as if they had not been computed: bool (rows, columns)."""
    with np.errstate(all="ignore"):
        wrong, own, whole = (_block_rms(values, ref.shape) for values in (error, xla - ref, ref))
        limit = _BLOCK_XLA * own + _BLOCK_OWN * whole + _BLOCK_WHOLE * scale
        return wrong > limit  # false where anything is not finite: the elements tell then


def _block_rms(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    rows, columns = _block(shape)
    plane = values.reshape(_plane(shape))
    if not plane.size:
        return np.zeros((0, 0), np.float32)
    for axis, step in ((1, columns), (0, rows)):
        starts = np.arange(0, plane.shape[axis], step)
        total = np.add.reduceat(np.square(plane) if axis == 1 else plane, starts, axis=axis)
        counts = np.diff(starts, append=plane.shape[axis]).astype(np.float32)
        plane = total / (counts if axis == 1 else counts[:, None])
    return np.sqrt(plane)


def _spread(blocks: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Blocks as the elements that they hold, in the output's shape."""
    (rows, columns), (high, wide) = _block(shape), _plane(shape)
    return blocks.repeat(rows, 0)[:high].repeat(columns, 1)[:, :wide].reshape(shape)
