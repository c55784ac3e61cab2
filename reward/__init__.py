"""What an outcome is worth: pure functions from an `Outcome` to a number."""

from reward.functions import RewardFunction, get, names, paper, speedup, staged
from reward.outcome import Outcome

__all__ = ["Outcome", "RewardFunction", "get", "names", "paper", "speedup", "staged"]
