"""docs/kernels.jsonl is of today's kernels, and what scripts/report_kernels.py makes of it."""

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest

import workloads
from baselines import kernels
from jaxbench_env import EvalResult, Stage, Status
from jaxbench_env.evaluator.result import NumericCheck, Times

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import report_kernels

AGAIN = "run scripts/report_kernels.py"
ROWS = report_kernels.read()


@pytest.mark.parametrize("name", kernels.ids())
def test_the_table_has_a_row_of_todays_kernel(name):
    assert name in ROWS, AGAIN
    wanted = report_kernels.mark(name, kernels.source(name))
    del wanted["versions"]  # those of the table, whichever are installed
    assert {key: ROWS[name][key] for key in wanted} == wanted, f"{name} has changed: {AGAIN}"
    assert ROWS[name]["shortcut"] == report_kernels.shortcut(kernels.source(name)), AGAIN


def test_the_table_has_no_other_rows_and_one_compiler():
    assert ROWS.keys() == {*kernels.ids()}, AGAIN
    assert len({json.dumps(row["versions"]) for row in ROWS.values()}) == 1, AGAIN


def test_the_page_is_that_of_the_table():
    assert (report_kernels.DOCS / "kernels.md").read_text() == report_kernels.page(ROWS), AGAIN


def test_every_kernel_is_right_and_not_slower_than_xla():
    for name, row in ROWS.items():
        assert Status(row["status"]).correct, f"{name}: {row['message']}"
        assert report_kernels.speedup(row) >= 0.95, name
        assert row["full"] is None or row["full"]["passed"], f"{name}: {row['full']['message']}"


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(report_kernels, "TABLE", tmp_path / "kernels.jsonl")
    return tmp_path / "kernels.jsonl"


TEXT = kernels.source("gemm")
RIGHT = EvalResult(
    Status.OK,
    Stage.CORRECT,
    speedup=2.0,
    times=Times(candidate_ms=1.0, baseline_ms=2.0, roofline_ms=0.5),
)


def test_rows_become_stale_with_the_text_and_the_evaluator(table):
    assert report_kernels.stale(report_kernels.read().get("gemm"), "gemm", TEXT)
    report_kernels.keep(report_kernels.described(workloads.get("gemm"), TEXT, RIGHT))
    row = report_kernels.read()["gemm"]
    assert not report_kernels.stale(row, "gemm", TEXT) and report_kernels.speedup(row) == 2.0
    for name, value in (("kernel", "0"), ("protocol", 0), ("workload_version", 0)):
        assert report_kernels.stale({**row, name: value}, "gemm", TEXT)
    report_kernels.keep({**row, "id": "no_longer_there"})
    assert list(report_kernels.read()) == ["gemm"]


def test_a_summary_counts_what_is_missing_as_1(table):
    report_kernels.keep(report_kernels.described(workloads.get("gemm"), TEXT, RIGHT))
    rows = report_kernels.read()
    facts = report_kernels.summary(rows)
    assert facts["geomean"] == pytest.approx(2 ** (1 / 50)) == facts["geomean_without_shortcuts"]
    assert facts["geomean_priority"] == pytest.approx(2 ** (1 / 8))
    assert facts["faster_than_uncertainty"] == facts["right"] == 1 and facts["minimum"] == 2.0
    rows["gemm"]["shortcut"] = "half the work"
    facts = report_kernels.summary(rows)
    assert facts["geomean_shortcuts_as_1"] == 1 == facts["geomean_without_shortcuts"]
    assert "- `gemm`: half the work" in report_kernels.page(rows)
    rows["gemm"]["speedup"] = math.exp(report_kernels.uncertainty()) - 1e-6
    assert report_kernels.summary(rows)["faster_than_uncertainty"] == 0
    without = report_kernels.page({})
    assert without.count("| no kernel |") + without.count("| not evaluated |") == 50


def test_the_comparison_at_the_published_size_decides_where_there_is_one():
    workload = workloads.get("gemm")
    check = NumericCheck("v6e", "nominal", True, 0, 1, 0, 1, 0)
    passed = dataclasses.replace(
        RIGHT, speedup=3.0, numerics=(check,), durations={"full": 7.0, "total": 9.0}
    )
    row = report_kernels.described(workload, TEXT, dataclasses.replace(RIGHT, speedup=1.0))
    row["full"] = report_kernels.whole(workload, passed, 9.0)
    assert row["full"]["passed"] and row["full"]["seconds"] == 7.0
    assert report_kernels.speedup(row) == 3.0
    # the kernel is right, and nothing was compared
    row["full"] = report_kernels.whole(workload, RIGHT, 9.0)
    assert not row["full"]["passed"] and report_kernels.speedup(row) == 1.0
    wrong = EvalResult(Status.INCORRECT, Stage.COMPILED, "wrong at the end | of it")
    row["full"] = report_kernels.whole(workload, wrong, 9.0)
    assert not row["full"]["passed"]
    assert "incorrect: wrong at the end / of it" in report_kernels.page({"gemm": row})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"""Doc.\n\nShortcut: sums are\nfolded.\n\nVMEM: 1"""', "sums are folded."),
        ('"""Doc.\n\nShortcut: all\n"""', "all"),
        ('"""Doc without."""', ""),
    ],
)
def test_shortcuts_are_read_from_the_docstring(text, says):
    assert report_kernels.shortcut(text) == says
