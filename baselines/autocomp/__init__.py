"""Autocomp: beam search over plans and their implementations."""

from baselines.autocomp.policy import Autocomp

__all__ = ["Autocomp"]
