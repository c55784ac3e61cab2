"""Policies to measure others by, and the kernels that they start from.

>>> from baselines import policies
>>> sorted(policies())
['autocomp', 'best_of_n', 'expert', 'iterative', 'iterative_context', 'template_search']
"""

from __future__ import annotations

import difflib

from baselines.policy import Candidate, ChainPolicy, Episode, Evaluated, Policy

__all__ = ["Candidate", "ChainPolicy", "Episode", "Evaluated", "Policy", "policies", "policy"]


def policies() -> dict[str, type[Policy]]:
    """The policies of this package by name."""
    from baselines.autocomp import Autocomp
    from baselines.best_of_n import BestOfN
    from baselines.expert import Expert
    from baselines.iterative import Iterative, IterativeContext
    from baselines.template_search import TemplateSearch

    every = (BestOfN, Iterative, IterativeContext, Autocomp, Expert, TemplateSearch)
    return {one.name: one for one in every}


def policy(name: str) -> type[Policy]:
    """A policy by its name.

    Raises:
        ValueError: For an unknown name, with the nearest known one.
    """
    known = policies()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise ValueError(f"no policy {name!r}; {hint}")
    return known[name]
