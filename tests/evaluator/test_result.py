import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reward
from jaxbench_env import EvalResult, Stage, Status, feedback, outcome
from jaxbench_env.evaluator.result import Memory, NumericCheck, Provenance, Times

numbers = st.floats(0, 1e9) | st.none()
checks = st.builds(
    NumericCheck,
    st.text(max_size=5), st.text(max_size=5), st.booleans(),
    *[st.floats(0, 1e9)] * 5, st.text(max_size=9),
)  # fmt: skip
results = st.builds(
    EvalResult,
    status=st.sampled_from(Status),
    stage=st.sampled_from(Stage),
    message=st.text(max_size=40),
    details=st.text(max_size=40),
    line=st.integers(-3, 99) | st.none(),
    flags=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    speedup=numbers,
    times=st.builds(Times, numbers, numbers, numbers, uncertain=st.booleans()),
    memory=st.builds(Memory, st.integers(0, 1 << 40) | st.none()),
    numerics=st.lists(checks, max_size=2).map(tuple),
    counters=st.dictionaries(st.text(max_size=5), st.floats(0, 1e12), max_size=3),
    provenance=st.builds(Provenance, protocol=st.integers(0, 9), seed=st.integers(0, 1 << 63)),
    durations=st.dictionaries(st.text(max_size=5), st.floats(0, 1e3), max_size=3),
)


@given(results)
def test_a_result_survives_json(result):
    assert EvalResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


@given(results)
def test_durations_can_be_left_out(result):
    record = result.to_dict(durations=False)
    assert "durations" not in record
    assert EvalResult.from_dict(record).durations == {}


@pytest.mark.parametrize("record", [{}, {"status": "fine"}, {"status": "ok", "stage": "mars"}])
def test_what_is_no_result_is_refused(record):
    with pytest.raises(ValueError):
        EvalResult.from_dict(record)


def test_statuses_are_ordered_by_how_far_a_candidate_got():
    order = [Status.SYNTAX_ERROR, Status.TRACE_ERROR, Status.NO_KERNEL, Status.COMPILE_ERROR]
    order += [Status.INCORRECT, Status.SLOWER, Status.OK]
    assert sorted(order, key=lambda s: s.rank) == order
    assert [s for s in Status if s.correct] == [Status.SLOWER, Status.OK]


def test_an_outcome_says_what_the_result_says():
    times = Times(candidate_ms=2.0, baseline_ms=6.0, roofline_ms=1.0)
    result = EvalResult(Status.OK, Stage.CORRECT, speedup=3.0, times=times)
    assert outcome(result) == reward.Outcome(4, True, 3.0, 0.5)
    wrong = EvalResult(Status.INCORRECT, Stage.COMPILED, times=times)
    assert outcome(wrong) == reward.Outcome(3, False, None, 0.5)
    assert outcome(EvalResult(Status.HACK_SUSPECTED)).suspected


@given(results)
def test_feedback_is_text_for_any_result(result):
    assert result.status.value in feedback(result, "a\nb\n")


def test_feedback_quotes_the_line_and_keeps_the_compilers_text():
    details = "MosaicError: first line\n  %0 = tpu.matmul"
    result = EvalResult(
        Status.COMPILE_ERROR, message="rejected: MosaicError: first line", details=details, line=2
    )
    text = feedback(result, "import jax\nbad(line)\n")
    assert "Line 2: bad(line)" in text and details in text
    assert text.count("first line") == 1
