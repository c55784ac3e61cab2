"""What happened to one candidate, as far as a reward needs to know."""

from __future__ import annotations

import math
from dataclasses import dataclass

STAGES = ("nothing", "audited", "traced", "compiled", "correct")


@dataclass(frozen=True)
class Outcome:
    """How far one candidate got, and how fast it is.

    Attributes:
        stage: The last stage that it passed: 0 none, 1 audited, 2 traced, 3 compiled, 4 correct.
        correct: Whether it computes the right thing (and compiles).
        speedup: Baseline time over candidate time of a correct candidate, above 0; None for any
            other.
        roofline_fraction: Least possible time over candidate time, above 0; 1 is the roofline of
            the best known algorithm. None where it is not known.
        uncertain: The time is a bound and not an estimate, or races were not looked for.
        suspected: The candidate is suspected of cheating, whatever else is said of it.

    Raises:
        ValueError: If the fields contradict each other or are out of range.
    """

    stage: int
    correct: bool
    speedup: float | None = None
    roofline_fraction: float | None = None
    uncertain: bool = False
    suspected: bool = False

    def __post_init__(self) -> None:
        last = len(STAGES) - 1
        if isinstance(self.stage, bool) or self.stage not in range(last + 1):
            raise ValueError(f"stage is one of 0 to {last} ({', '.join(STAGES)}), not {self.stage}")
        if self.correct and self.stage != last:
            raise ValueError(f"a correct candidate has passed stage {last}, not just {self.stage}")
        if self.stage == last and not (self.correct or self.suspected):
            raise ValueError(
                f"stage {last} means correct: set correct=True, or stage={last - 1} for a "
                "candidate that compiled and is wrong"
            )
        if self.correct and self.speedup is None:
            raise ValueError("a correct candidate needs a speedup (baseline over candidate time)")
        if not self.correct and self.speedup is not None:
            raise ValueError(f"only a correct candidate has a speedup; got {self.speedup}")
        for name in ("speedup", "roofline_fraction"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is a finite number above 0, not {value}")

    @property
    def counts(self) -> bool:
        """Whether its speedup may be paid for: correct and under no suspicion."""
        return self.correct and not self.suspected
