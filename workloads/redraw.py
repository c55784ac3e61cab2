"""New inputs from given ones, for workloads whose file says only how to make one set of them."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes  # noqa: F401  (gives numpy the name bfloat16)
import numpy as np

BLOCKS = 8  # rows of a `structured` array fall into so many blocks
MARK = 1e6  # finite values beyond this are marks, such as -1e9 in a mask


def redraw(
    arrays: Sequence[np.ndarray], rng: np.random.Generator, draw: str
) -> tuple[np.ndarray, ...]:
    """Draws inputs that are distributed like the given ones.

    Arrays of integers and truth values stay as they are: page tables, lengths and masks have
    structure. The values of every floating array are shuffled, which keeps their distribution.
    Then, without taking a value out of an interval around zero or across it (a probability stays
    one, a variance positive):

    - ``"nominal"``: nothing more.
    - ``"shifted"``: halved, and moved by half of their standard deviation, away from zero where
      all have one sign. A constant array, such as a bias of zeros, becomes noise around it, so
      that a kernel which leaves it out is wrong.
    - ``"structured"``: blocks of rows get their own magnitudes between 1/4 and 1, so that a block
      left out, or swapped with another, stands out.

    Infinite values, NaN and marks keep their value.

    Args:
        arrays: Inputs as the file makes them.
        rng: Where randomness comes from.
        draw: ``"nominal"``, ``"shifted"`` or ``"structured"``.
    """
    return tuple(_redraw(np.asarray(array), rng, draw) for array in arrays)


def _redraw(array: np.ndarray, rng: np.random.Generator, draw: str) -> np.ndarray:
    if array.dtype.kind in "biu" or not array.size:
        return array
    flat = array.reshape(-1).copy()
    rng.shuffle(flat)
    if draw == "nominal":
        return flat.reshape(array.shape)
    values = flat.astype(np.float32)
    usual = np.abs(values) < MARK  # false for NaN
    if not usual.any():
        return flat.reshape(array.shape)
    if draw == "shifted":
        changed = _shifted(values, values[usual], rng)
    else:
        changed = (values.reshape(_rows(array.shape)) * _magnitudes(array.shape, rng)).reshape(-1)
    return np.where(usual, changed, values).astype(array.dtype).reshape(array.shape)


def _shifted(values: np.ndarray, usual: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    std, mean = float(usual.std(dtype=np.float64)), float(usual.mean(dtype=np.float64))
    if std > 1e-6 * abs(mean):
        return values * np.float32(0.5) + np.float32(np.copysign(0.5 * std, mean))
    if mean == 0:
        return np.float32(0.5) * rng.standard_normal(values.shape, np.float32)
    return values * rng.uniform(0.5, 1, values.shape).astype(np.float32)


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of an array: all axes but the last are rows; those of a vector are."""
    if len(shape) < 2:
        return (int(np.prod(shape)), 1)
    return (int(np.prod(shape[:-1])), shape[-1])


def _magnitudes(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    rows, _ = _rows(shape)
    block = -(-rows // BLOCKS)
    magnitudes = rng.uniform(0.25, 1, -(-rows // block)).astype(np.float32)
    return magnitudes.repeat(block)[:rows, None]
