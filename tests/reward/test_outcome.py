import math

import pytest

from reward import Outcome


@pytest.mark.parametrize("stage", [-1, 5, True, None, "4"])
def test_a_stage_out_of_range_is_refused(stage):
    with pytest.raises(ValueError, match="stage is one of 0 to 4"):
        Outcome(stage=stage, correct=False)


@pytest.mark.parametrize("speedup", [0.0, -1.0, math.nan, math.inf])
def test_a_speedup_is_a_finite_number_above_zero(speedup):
    with pytest.raises(ValueError, match="speedup is a finite number above 0"):
        Outcome(stage=4, correct=True, speedup=speedup)


@pytest.mark.parametrize("fraction", [0.0, -0.5, math.nan, math.inf])
def test_a_roofline_fraction_is_a_finite_number_above_zero(fraction):
    with pytest.raises(ValueError, match="roofline_fraction is a finite number above 0"):
        Outcome(stage=4, correct=True, speedup=1.0, roofline_fraction=fraction)


def test_a_correct_candidate_needs_a_speedup():
    with pytest.raises(ValueError, match="needs a speedup"):
        Outcome(stage=4, correct=True)


def test_only_a_correct_candidate_has_a_speedup():
    with pytest.raises(ValueError, match="only a correct candidate"):
        Outcome(stage=3, correct=False, speedup=2.0)


def test_a_correct_candidate_has_passed_every_stage():
    with pytest.raises(ValueError, match="has passed stage 4"):
        Outcome(stage=3, correct=True, speedup=2.0)


def test_the_last_stage_means_correct_unless_suspected():
    with pytest.raises(ValueError, match="stage 4 means correct"):
        Outcome(stage=4, correct=False)
    assert not Outcome(stage=4, correct=False, suspected=True).counts


def test_a_suspected_candidate_does_not_count():
    assert Outcome(stage=4, correct=True, speedup=2.0).counts
    assert not Outcome(stage=4, correct=True, speedup=2.0, suspected=True).counts


def test_an_outcome_cannot_be_changed():
    with pytest.raises(AttributeError):
        Outcome(stage=0, correct=False).stage = 4
