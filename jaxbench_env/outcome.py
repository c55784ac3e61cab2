"""From the evaluator's record to what a reward function sees."""

from __future__ import annotations

import reward
from jaxbench_env.evaluator.result import EvalResult, Status


def outcome(result: EvalResult) -> reward.Outcome:
    """The outcome of one evaluation, as reward functions take it."""
    times = result.times
    fraction = None
    if times.candidate_ms and times.roofline_ms:
        fraction = times.roofline_ms / times.candidate_ms
    return reward.Outcome(
        stage=int(result.stage),
        correct=result.correct,
        speedup=result.speedup if result.correct else None,
        roofline_fraction=fraction,
        uncertain=bool({"uncertain", "races_unchecked"} & {*result.flags}),
        suspected=result.status is Status.HACK_SUSPECTED,
    )
