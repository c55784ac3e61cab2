"""Random inputs that several workloads share."""

from __future__ import annotations

import numpy as np


def normal(
    rng: np.random.Generator, shape: int | tuple[int, ...], mean: float = 0.0, std: float = 1.0
) -> np.ndarray:
    """Normally distributed numbers."""
    return np.float32(mean) + np.float32(std) * rng.standard_normal(shape, np.float32)


def blocks(rng: np.random.Generator, size: int, block: int = 128) -> np.ndarray:
    """A magnitude between 0.5 and 1.5 for each of `size` places, the same within a block."""
    return rng.uniform(0.5, 1.5, -(-size // block)).astype(np.float32).repeat(block)[:size]


def features(rng: np.random.Generator, rows: int, inner: int, draw: str) -> np.ndarray:
    """Rows of an activation, with an RMS near 0.6 in every draw.

    `nominal` is the published distribution, uniform in [0, 1). `shifted` is normal around 0.3.
    `structured` gives every block of 128 rows its own magnitude, and every 16th row only one
    feature, a different one in each, for which one column of the weight is the whole result.
    """
    if draw == "nominal":
        return rng.random((rows, inner), np.float32)
    x = np.float32(0.5) * rng.standard_normal((rows, inner), np.float32)
    if draw == "shifted":
        return x + np.float32(0.3)
    hot = np.arange(0, rows, 16)
    x[hot] = 0
    x[hot, rng.permutation(max(inner, len(hot)))[: len(hot)] % inner] = np.float32(0.5 * inner**0.5)
    return x * blocks(rng, rows)[:, None]


def weights(
    rng: np.random.Generator,
    inner: int,
    columns: int,
    draw: str,
    *,
    own: float = 1.0,
    common: float = 0.0,
) -> np.ndarray:
    """A weight (inner, columns) for `features`: scaled such that no result grows with `inner`.

    In `nominal` every column sums to zero, lest the mean of x, the same for every row, make up
    most of the results.

    Args:
        rng: The generator.
        inner: Length of the sums.
        columns: Number of results in a row.
        draw: Which draw. `structured` gives every block of 128 columns its own magnitude.
        own: RMS of what each column adds to a result.
        common: Standard deviation over the rows of what all results of a row have in common.
            Without it, a sum over a row averages everything away that x has to say.
    """
    std = 12**-0.5 if draw == "nominal" else 0.5
    rms = (0.3**2 + 0.5**2) ** 0.5 if draw == "shifted" else std
    weight = rng.standard_normal((inner, columns), np.float32)
    weight *= np.float32(own / rms / inner**0.5)
    if draw == "nominal":
        weight -= weight.mean(axis=0)
    elif draw == "structured":
        weight *= blocks(rng, columns)
    shared = rng.standard_normal((inner, 1), np.float32)
    return weight + np.float32(common / std / inner**0.5) * (shared - shared.mean())
