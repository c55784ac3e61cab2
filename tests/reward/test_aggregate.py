import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reward

SPEEDUP = st.floats(1e-3, 1e3)
SPEEDUPS = st.lists(st.none() | SPEEDUP, min_size=1, max_size=60)


def test_the_published_geometric_means_come_out():
    expert = [3.91, 3.50, 0.94, 0.86, 2.29, 6.91, 0.96, 1.62]
    autocomp = [2.67, 2.63, 0.85, 2.81, None, None, 0.75, 2.21]
    iterative = [None, None, None, None, None, None, 0.59, 0.52]
    assert reward.geomean(expert) == pytest.approx(2.08, abs=0.01)
    assert reward.geomean(autocomp) == pytest.approx(1.60, abs=0.01)
    assert reward.geomean(iterative) == 1.0


@given(SPEEDUPS)
def test_aggregates_stay_between_their_extremes(speedups):
    floored = [max(1.0, s or 1.0) for s in speedups]
    assert min(floored) * 0.999999 <= reward.geomean(speedups) <= max(floored) * 1.000001
    plain = [s or 1.0 for s in speedups]
    assert min(plain) * 0.999999 <= reward.mean(speedups) <= max(plain) * 1.000001


@given(SPEEDUPS, st.randoms())
def test_order_does_not_matter(speedups, rng):
    mixed = speedups[:]
    rng.shuffle(mixed)
    for aggregate in (reward.geomean, reward.mean, reward.solved):
        assert aggregate(mixed) == pytest.approx(aggregate(speedups), rel=1e-12)


@given(SPEEDUPS)
def test_a_failure_counts_as_one_and_so_does_a_slow_kernel_in_the_geometric_mean(speedups):
    ones = [1.0 if s is None or s < 1 else s for s in speedups]
    assert reward.geomean(ones) == pytest.approx(reward.geomean(speedups))


@given(SPEEDUPS, st.floats(0, 100), st.floats(0, 100))
def test_fast_p_falls_with_p_from_what_is_solved(speedups, p, q):
    low, high = sorted((p, q))
    assert 0 <= reward.fast_p(speedups, high) <= reward.fast_p(speedups, low) <= 1
    assert reward.fast_p(speedups, 0) == reward.solved(speedups) / len(speedups)


def test_fast_p_is_strict():
    assert reward.fast_p([1.0, 1.5, None], 1) == pytest.approx(1 / 3)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_is_the_share_of_all_choices_that_hold_a_correct_one(pair):
    n, c = pair
    for k in range(1, n + 1):
        choices = list(itertools.combinations(range(n), k))
        share = sum(min(choice) < c for choice in choices) / len(choices)
        assert reward.pass_at_k(n, c, k) == pytest.approx(share)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_grows_from_the_share_of_correct_samples_to_certainty(pair):
    n, c = pair
    values = [reward.pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert values == sorted(values) and values[0] == pytest.approx(c / n)
    assert values[-1] == (1.0 if c else 0.0)


@given(SPEEDUPS)
def test_best_so_far_is_the_largest_of_each_beginning(speedups):
    for n, best in enumerate(reward.best_so_far(speedups), 1):
        assert best == max((s for s in speedups[:n] if s is not None), default=None)


def test_per_sample_correctness_counts_candidates_not_workloads():
    assert reward.per_sample_correctness([(1, 1), (0, 3)]) == 0.25


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: reward.geomean([]),
        lambda: reward.geomean([0.0]),
        lambda: reward.geomean([1.0], floor=0),
        lambda: reward.mean([math.inf]),
        lambda: reward.mean([1.0, math.nan]),
        lambda: reward.fast_p([1.0], -1),
        lambda: reward.fast_p([], 1),
        lambda: reward.per_sample_correctness([]),
        lambda: reward.per_sample_correctness([(2, 1)]),
        lambda: reward.pass_at_k(3, 1, 4),
        lambda: reward.pass_at_k(3, 1, 0),
        lambda: reward.pass_at_k(3, 4, 1),
    ],
)
def test_what_makes_no_sense_is_an_error(wrong):
    with pytest.raises(ValueError):
        wrong()
