"""What outcomes are worth: pure functions from an `Outcome` to a number, and from many to one."""

from reward.aggregate import (
    best_so_far,
    fast_p,
    geomean,
    mean,
    pass_at_k,
    per_sample_correctness,
    solved,
)
from reward.functions import RewardFunction, get, names, paper, speedup, staged
from reward.outcome import Outcome

__all__ = [
    "Outcome",
    "RewardFunction",
    "best_so_far",
    "fast_p",
    "geomean",
    "get",
    "mean",
    "names",
    "paper",
    "pass_at_k",
    "per_sample_correctness",
    "solved",
    "speedup",
    "staged",
]
