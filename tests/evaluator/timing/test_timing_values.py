import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxbench_env.evaluator.timing.values import (
    HALF,
    UNKNOWN,
    WORD,
    Affine,
    Horizon,
    NotAffine,
    divide,
    shift,
)

WORDS = st.integers(-(1 << 31), (1 << 31) - 1)
STEPS = st.integers(-5000, 5000).filter(bool)


def wrap(value):
    return ((value + HALF) & WORD) - HALF


OPERATIONS = {
    "add": lambda x, k: wrap(x + k),
    "subtract": lambda x, k: wrap(k - x),
    "multiply": lambda x, k: wrap(x * (k & 255)),
    "shift left": lambda x, k: wrap(x << (k & 7)),
    "shift right": lambda x, k: (x & WORD) >> (k & 7),
    "shift right signed": lambda x, k: x >> (k & 7),
    "low bits": lambda x, k: x & ((1 << (k & 15)) - 1),
    "less": lambda x, k: x < k,
    "at most": lambda x, k: x <= k,
    "equal": lambda x, k: x == k,
    "not equal": lambda x, k: x != k,
    "at least, unsigned": lambda x, k: (x & WORD) >= (k & WORD),
    "middle bits": lambda x, k: x & ((1 << (k & 15)) - 1) << (k >> 4 & 7),
    "all but low bits": lambda x, k: x & -(1 << (k & 15)),
    "low bits set": lambda x, k: x | (k & 15),
    "low bits flipped": lambda x, k: x ^ (k & 15),
    "two fields": lambda x, k: (x << 8) | (k & 255),
    "fields of one": lambda x, k: (wrap(x & 15) << 12) | (x >> 4 & 255),
    "at most 7": lambda x, k: min(x & 255, 7 + (k & 3)),
    "quotient": lambda x, k: divide(x, 1 + (k & 15), False, True),
    "remainder": lambda x, k: divide(x, 1 + (k & 15), True, True),
}


def at(result, repetitions):
    """The value of a result after some repetitions of each loop."""
    if not isinstance(result, Affine):
        return result
    return result.value + sum(step * repetitions[loop] for loop, step in result.steps.items())


@pytest.mark.parametrize("name", OPERATIONS)
@given(value=WORDS, step=STEPS, outer=STEPS | st.just(0), other=WORDS, near=st.booleans())
def test_an_affine_result_is_right_for_every_repetition_within_the_horizon(
    name, value, step, outer, other, near
):
    operation = OPERATIONS[name]
    if near:  # so that comparisons change their outcome within reach
        other = wrap(value + other % 64 * step)
    loops = [Horizon(), Horizon()]
    start = Affine.make(value, dict(zip(loops, (step, outer), strict=True)))
    try:
        result = operation(start, other)
    except NotAffine:
        return
    ends = [min(loop.repetitions, 200) for loop in loops]
    for first in {0, 1, 2, ends[0] // 2, ends[0] - 1, ends[0]}:
        for second in {0, 1, ends[1] // 2, ends[1]}:
            if not (0 <= first <= ends[0] and 0 <= second <= ends[1]):
                continue
            repetitions = dict(zip(loops, (first, second), strict=True))
            if abs(at(start, repetitions)) < 1 << 31:  # registers are kept wrapped
                assert at(result, repetitions) == operation(at(start, repetitions), other)


@given(WORDS, STEPS, STEPS, st.integers(0, 99))
def test_a_loop_that_is_over_leaves_the_growth_of_the_other(value, step, outer, repetitions):
    inner_loop, outer_loop = Horizon(), Horizon()
    both = Affine(value, {inner_loop: step, outer_loop: outer})
    moved = both.moved(inner_loop, repetitions)
    assert (moved.value, moved.steps) == (value + step * repetitions, {outer_loop: outer})


def test_the_horizon_of_a_loop_test_is_the_last_iteration_that_continues():
    horizon = Horizon()
    assert (Affine(3, {horizon: 1}) >= 10) is False
    assert horizon.repetitions == 6  # 3 .. 9


def test_a_slot_parity_repeats_only_over_whole_pairs():
    horizon = Horizon()
    assert (Affine(4, {horizon: 2}) & 1) == 0
    assert horizon.repetitions == Horizon.UNBOUNDED


@pytest.mark.parametrize(
    "use",
    [
        lambda x: {x: 1},
        lambda x: bool(x),
        lambda x: [0, 1][x],
        lambda x: x | 1,
        lambda x: 1 << x,
        lambda x: x * x,
        lambda x: shift(1, x, "sshll"),
        lambda x: divide(7, x, False, True),
    ],
)
def test_uses_that_are_not_sums_are_refused(use):
    with pytest.raises(NotAffine):
        use(Affine(1, {Horizon(): 1}))


def test_unknown_spreads_except_where_it_does_not_matter():
    assert (UNKNOWN + 1) is UNKNOWN
    assert (1 - UNKNOWN) is UNKNOWN
    assert (UNKNOWN < 3) is UNKNOWN
    assert (UNKNOWN == UNKNOWN) is UNKNOWN
    assert (False & UNKNOWN) is False
    assert (UNKNOWN | True) is True
    assert (UNKNOWN ^ True) is UNKNOWN
    assert (Affine(1, {Horizon(): 1}) + UNKNOWN) is UNKNOWN
    with pytest.raises(TypeError):
        bool(UNKNOWN)


def test_division():
    assert divide(17, 5, False, False) == 3
    assert divide(17, 5, True, False) == 2
    assert divide(1, 0, False, False) is UNKNOWN
    assert divide(-1, 2, False, False) == (WORD >> 1)
    assert divide(-1, 2, False, True) is UNKNOWN


@pytest.mark.parametrize(
    ("op", "value", "amount", "expected"),
    [
        ("sshll", 1, 31, -(1 << 31)),
        ("sshll", 1, 32, 0),
        ("sshrl", -1, 28, 15),
        ("sshra", -8, 1, -4),
        ("sshra", -8, 40, -1),
        ("sshrl", 5, 10**9, 0),
    ],
)
def test_shifts_by_a_register(op, value, amount, expected):
    assert shift(value, amount, op) == expected
