import ast
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reward
from reward import Outcome, paper, speedup, staged

positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
failed = st.builds(Outcome, stage=st.integers(0, 3), correct=st.just(False))
correct = st.builds(
    Outcome,
    stage=st.just(4),
    correct=st.just(True),
    speedup=positive,
    roofline_fraction=st.none() | positive,
    uncertain=st.booleans(),
)
suspected = st.builds(
    Outcome, stage=st.integers(0, 4), correct=st.just(False), suspected=st.just(True)
) | st.builds(
    Outcome, stage=st.just(4), correct=st.just(True), speedup=positive, suspected=st.just(True)
)
outcomes = failed | correct | suspected


def test_speedup_is_baseline_over_candidate():
    assert speedup(Outcome(stage=4, correct=True, speedup=2.5)) == 2.5
    assert speedup(Outcome(stage=4, correct=True, speedup=0.25)) == 0.25


@given(failed | suspected)
def test_a_failure_is_worth_one_to_speedup_and_paper(outcome):
    assert speedup(outcome) == paper(outcome) == 1.0


def test_an_uncertain_time_pays_at_most_one():
    fast = Outcome(stage=4, correct=True, speedup=9.0, uncertain=True)
    slow = Outcome(stage=4, correct=True, speedup=0.5, uncertain=True)
    assert (speedup(fast), speedup(slow)) == (1.0, 0.5)
    assert paper(fast) == 1.0
    assert staged(fast) == staged(Outcome(stage=4, correct=True, speedup=1.0))


def test_paper_floors_a_slow_kernel_at_one():
    assert paper(Outcome(stage=4, correct=True, speedup=0.25)) == 1.0
    assert paper(Outcome(stage=4, correct=True, speedup=2.5)) == 2.5


@given(outcomes)
def test_staged_is_finite_and_bounded(outcome):
    value = staged(outcome)
    assert math.isfinite(value)
    assert -1.0 <= value <= 1.0


@given(suspected, failed | correct)
def test_staged_gives_the_suspected_less_than_anyone_else(cheat, other):
    assert staged(cheat) == -1.0 < staged(other)


@given(failed, failed)
def test_staged_grows_with_the_stage(one, other):
    assert (staged(one) < staged(other)) == (one.stage < other.stage)


@given(failed, correct)
def test_staged_prefers_the_slowest_correct_kernel_to_any_failure(failure, success):
    assert staged(failure) < staged(success)


@given(positive, positive)
def test_staged_never_falls_as_the_speedup_grows(one, other):
    slow, fast = sorted((one, other))
    assert staged(Outcome(4, True, slow)) <= staged(Outcome(4, True, fast))


@given(st.floats(0.01, 100), st.floats(1.01, 10))
def test_staged_tells_speedups_of_practice_apart(s, factor):
    assert staged(Outcome(4, True, s)) < staged(Outcome(4, True, s * factor))


@given(outcomes)
def test_every_reward_is_a_plain_float(outcome):
    for name in reward.names():
        assert type(reward.get(name)(outcome)) is float


def test_the_default_is_named_first():
    assert reward.names() == ("speedup", "paper", "staged")
    assert reward.get("speedup") is speedup


def test_a_function_of_ones_own_is_taken_as_it_is():
    def mine(outcome):
        return 0.0

    assert reward.get(mine) is mine


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="no reward 'spedup'; did you mean 'speedup'?"):
        reward.get("spedup")
    with pytest.raises(ValueError, match="known rewards: speedup, paper, staged"):
        reward.get("zzzzzz")


def test_neither_a_name_nor_a_function_is_refused():
    with pytest.raises(TypeError, match="from Outcome to float, not 3"):
        reward.get(3)


def test_reward_imports_neither_jax_nor_gymnasium_nor_numpy():
    for path in Path(reward.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots = {(node.module or "").split(".")[0]}
            else:
                continue
            assert not roots & {"jax", "gymnasium", "numpy", "jaxbench_env", "workloads"}, path
