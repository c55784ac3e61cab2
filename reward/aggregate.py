"""What many outcomes say together: pure functions from speedups and counts to one number.

A speedup is baseline time over candidate time of a workload's best correct candidate, or None
where nothing is correct.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def geomean(speedups: Iterable[float | None], floor: float = 1.0) -> float:
    """Geometric mean with every speedup floored, as the JAXBench paper aggregates.

    Args:
        speedups: One for each workload; None counts as the floor.
        floor: Least value of each, above 0.

    Raises:
        ValueError: If there are none, or the floor or a speedup is not above 0.
    """
    values = _checked(speedups)
    if not floor > 0:
        raise ValueError(f"the floor is above 0, not {floor}")
    return math.exp(math.fsum(math.log(max(floor, v or floor)) for v in values) / len(values))


def mean(speedups: Iterable[float | None]) -> float:
    """Arithmetic mean of the rewards `reward.speedup`: None counts as 1, a slow kernel as it is.

    Raises:
        ValueError: If there are none, or one is not above 0.
    """
    values = _checked(speedups)
    return math.fsum(1.0 if v is None else v for v in values) / len(values)


def solved(speedups: Iterable[float | None]) -> int:
    """How many workloads have a correct candidate."""
    return sum(v is not None for v in speedups)


def fast_p(speedups: Iterable[float | None], p: float) -> float:
    """Share of workloads whose best is correct and faster than p times (KernelBench).

    ``p=0`` is the share that is solved.

    Raises:
        ValueError: If there are none, one is not above 0, or p is below 0.
    """
    values = _checked(speedups)
    if not p >= 0:
        raise ValueError(f"p is at least 0, not {p}")
    return sum(v is not None and v > p for v in values) / len(values)


def per_sample_correctness(counts: Iterable[tuple[int, int]]) -> float:
    """Share of all candidates that are correct, over all workloads together.

    Args:
        counts: For each workload how many of its candidates are correct, and how many there are.

    Raises:
        ValueError: If there is no candidate, or more are correct than there are.
    """
    counts = list(counts)
    for correct, samples in counts:
        if not 0 <= correct <= samples:
            raise ValueError(f"{correct} of {samples} candidates cannot be correct")
    total = sum(samples for _, samples in counts)
    if not total:
        raise ValueError("no candidates")
    return sum(correct for correct, _ in counts) / total


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is correct (arXiv 2107.03374).

    ``1 - C(samples - correct, k) / C(samples, k)``. It supposes independent samples: for policies
    that learn from verdicts it describes what they made, not what k more would bring.

    Raises:
        ValueError: Unless ``1 <= k <= samples`` and ``0 <= correct <= samples``.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k is from 1 to the number of samples, {samples}, not {k}")
    if not 0 <= correct <= samples:
        raise ValueError(f"{correct} of {samples} samples cannot be correct")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def best_so_far(speedups: Iterable[float | None]) -> list[float | None]:
    """The largest speedup up to each sample; None until one is correct."""
    best: float | None = None
    found = []
    for value in speedups:
        if value is not None and (best is None or value > best):
            best = value
        found.append(best)
    return found


def _checked(speedups: Iterable[float | None]) -> Sequence[float | None]:
    values = list(speedups)
    if not values:
        raise ValueError("no speedups")
    for value in values:
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"a speedup is a finite number above 0, not {value}")
    return values
