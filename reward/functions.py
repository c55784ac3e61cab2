"""Reward functions, and how to find one by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from reward.outcome import Outcome

RewardFunction = Callable[[Outcome], float]


def speedup(outcome: Outcome) -> float:
    """Speedup over XLA, and 1.0 on failure. The default reward.

    A failure therefore pays *more* than a correct kernel that is slower than XLA: a policy that
    sees only this number is told to submit nothing rather than something slow. Use `staged` where
    that would stop learning before it starts.

    Returns:
        Baseline time over candidate time of a correct candidate, at most 1.0 where the time is
        uncertain; 1.0 for everything else. Above 0, no upper bound.
    """
    if not outcome.counts:
        return 1.0
    assert outcome.speedup is not None  # Outcome's own invariant
    return min(float(outcome.speedup), 1.0) if outcome.uncertain else float(outcome.speedup)


def paper(outcome: Outcome) -> float:
    """Speedup floored at 1.0: wrong and slower-than-XLA are worth the same.

    This is what the JAXBench paper (arXiv 2607.20466) puts into its geometric means.

    Returns:
        ``max(1, speedup(outcome))``. At least 1.0, no upper bound.
    """
    return max(1.0, speedup(outcome))


def staged(outcome: Outcome) -> float:
    """Grows with how far the candidate got, then with its speed.

    Suspected of cheating: -1. Failed: a tenth for each stage passed (0.0 to 0.3). Correct:
    ``0.5 + 0.5 s / (1 + s)`` for a speedup ``s``, which is 0.75 at XLA's own time; an uncertain
    time counts as at most ``s = 1``. So every correct kernel, however slow, is worth more than
    every failure.

    Returns:
        A finite number between -1 and 1, both included.
    """
    if outcome.suspected:
        return -1.0
    if not outcome.correct:
        return outcome.stage / 10
    s = speedup(outcome)
    # For large s the form s / (1 + s) loses its last digits: 1 - 1 / (1 + s) stays monotone.
    return 0.5 + 0.5 * (1.0 - 1.0 / (1.0 + s))


_FUNCTIONS: dict[str, RewardFunction] = {f.__name__: f for f in (speedup, paper, staged)}


def names() -> tuple[str, ...]:
    """Names that `get` knows, the default first."""
    return tuple(_FUNCTIONS)


def get(function: str | RewardFunction) -> RewardFunction:
    """Finds a reward function by its name; a function of one's own is returned as it is.

    Raises:
        ValueError: For an unknown name, with the nearest known one.
        TypeError: For anything else that cannot be called.
    """
    if callable(function):
        return function
    if not isinstance(function, str):
        raise TypeError(
            f"a reward is a name ({', '.join(_FUNCTIONS)}) or a function from Outcome to float, "
            f"not {function!r}"
        )
    if function in _FUNCTIONS:
        return _FUNCTIONS[function]
    near = difflib.get_close_matches(function, _FUNCTIONS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known rewards: {', '.join(_FUNCTIONS)}"
    raise ValueError(f"no reward {function!r}; {hint}")
