import json
from collections import Counter
from pathlib import Path

import pytest

from jaxbench_env import EvalResult, Status
from jaxbench_env.taxonomy import Category, classify

MUTANTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "mutants.jsonl").read_text().splitlines()
]
HELD_OUT = 3  # the batch that was run after the classifier was finished; see scripts/mutations.toml


def category(record):
    fields = ("status", "failed_in", "message", "details")
    return classify(EvalResult.from_dict({name: record[name] for name in fields}))


def accuracy(records):
    return sum(category(r) == r["category"] for r in records) / len(records)


def test_there_are_real_messages_of_every_category():
    counts = Counter(record["category"] for record in MUTANTS)
    assert sum(counts.values()) >= 450
    assert {*counts} == {*Category} - {Category.OTHER}
    assert len({record["message"] for record in MUTANTS}) >= 200
    assert len({record["sha256"] for record in MUTANTS}) == len(MUTANTS), "a mutant counts twice"


def test_the_classifier_is_right_about_mutants():
    assert accuracy(MUTANTS) >= 0.97


def test_the_classifier_is_right_about_mutants_that_it_was_not_written_for():
    held_out = [record for record in MUTANTS if record["batch"] == HELD_OUT]
    assert len(held_out) >= 70
    assert accuracy(held_out) >= 0.95


@pytest.mark.parametrize("kind", sorted({record["category"] for record in MUTANTS}))
def test_no_category_is_given_away(kind):
    given = [record for record in MUTANTS if category(record) == kind]
    meant = [record for record in MUTANTS if record["category"] == kind]
    right = sum(record["category"] == kind for record in given)
    assert right / len(given) >= 0.75 and right / len(meant) >= 0.75


@pytest.mark.parametrize("status", list(Status))
def test_every_failure_has_a_category_and_no_success_has(status):
    assert (classify(EvalResult(status)) is None) == status.correct


def test_quoted_lines_of_the_kernel_do_not_count():
    details = (
        "Traceback (kernel lines only):\n"
        '  File "kernel.py", line 7, in workload\n'
        "    out_specs=pl.BlockSpec(block_shape, index_map), scratch_shapes=[undefined]\n"
        "ValueError: cannot reshape array of shape (8, 8)\n"
    )
    message = "tracing at preset v6e failed: ValueError: cannot reshape array of shape (8, 8)"
    result = EvalResult(Status.TRACE_ERROR, message=message, details=details)
    assert classify(result) is Category.TRACING
