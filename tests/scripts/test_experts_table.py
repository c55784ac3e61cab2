"""docs/experts.jsonl is of today's library kernels, and docs/experts.md of both tables."""

import sys
from pathlib import Path

import pytest

from baselines import library_kernels
from jaxbench_env import Status

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import report_experts
import report_kernels

AGAIN = "run scripts/report_experts.py"
ROWS = report_kernels.read(report_experts.TABLE)


def test_the_experts_are_those_that_were_published():
    assert sorted(library_kernels.ids()) == sorted(report_kernels.priority()) and len(ROWS) == 8


@pytest.mark.parametrize("name", library_kernels.ids())
def test_the_table_has_a_row_of_todays_library_kernel(name):
    assert name in ROWS, AGAIN
    wanted = report_kernels.mark(name, library_kernels.source(name))
    del wanted["versions"]  # those of the table, whichever are installed
    assert {key: ROWS[name][key] for key in wanted} == wanted, f"{name} has changed: {AGAIN}"
    assert Status(ROWS[name]["status"]).correct, ROWS[name]["message"]


def test_the_page_is_that_of_the_tables():
    written = (report_kernels.DOCS / "experts.md").read_text()
    assert written == report_experts.page(ROWS, report_kernels.read()), AGAIN
    assert "libtpu 0.0.37, jax 0.9.2" in written  # both compilers are named
    assert f"libtpu {ROWS['gemm']['versions']['libtpu']}" in written
