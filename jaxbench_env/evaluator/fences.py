"""The fences that a verdict stands behind, by name, so that each can be tested without the others.

Limits on processes (time, memory, files, network) are not in this list: they are always on.
"""

from __future__ import annotations

from collections.abc import Iterable

FENCES = {
    "audit": "the text is read before it runs: imports, attributes and calls of an allow-list",
    "artefact": "traced programs are checked before use: types, size, constants, custom calls",
    "kernel": "at least half of the program's own work is in Pallas and reaches the output",
    "numerics": "results on secret inputs at several sizes agree with the reference",
    "memory": "a simulated run with poisoned memory, bounds checks and race detection",
    "one_program": "the program that is timed and the one whose numbers are checked are the same",
    "coverage": "at full size every block of the output is written and every input is read",
    "conservation": "work and traffic grow from the checked sizes to the full size as they must",
    "floor": "no time is below what the chip's memory and matrix units allow",
    "predictor": "a time that the replay is not sure of earns at most 1",
}


def without(names: Iterable[str]) -> frozenset[str]:
    """The names of fences to switch off, checked.

    Raises:
        ValueError: For a name that is no fence.
    """
    chosen = frozenset(names)
    unknown = sorted(chosen - FENCES.keys())
    if unknown:
        raise ValueError(f"no fence {unknown[0]!r}; there are {', '.join(FENCES)}")
    return chosen
