"""The tables that ship belong to today's kernels and to today's evaluator."""

import pytest

import workloads
from baselines import kernels, records
from baselines.templates import TemplateSpace
from jaxbench_env import recorded
from jaxbench_env.canonical import canonical_hash
from jaxbench_env.evaluator.evaluator import PROTOCOL

AGAIN = "record it again with scripts/tune_all.py"


def values(row):
    """As a kernel text has them: JSON knows no tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in row["values"].items()}


def test_tables_are_small_and_made_by_one_compiler():
    assert records.ids() == tuple(sorted(kernels.ids()))
    tables = [recorded.read(records.path(name)) for name in records.ids()]
    assert len({str(table.header["versions"]) for table in tables}) == 1
    assert sum(table.path.stat().st_size for table in tables) < 4 << 20


@pytest.mark.parametrize("name", records.ids())
def test_a_table_is_of_todays_kernel_and_evaluator(name):
    table, workload = recorded.read(records.path(name)), workloads.get(name)
    assert table.header["protocol"] == PROTOCOL, AGAIN
    assert table.header["workload_version"] == workload.version, AGAIN
    space = TemplateSpace(kernels.source(name))
    for row in table.rows.values():
        text = space.source(space.encode(values(row)))
        assert canonical_hash(text) == row["kernel"], f"{name} has changed: {AGAIN}"


@pytest.mark.parametrize("name", records.ids())
def test_the_kernel_itself_is_recorded(name):
    result = records.evaluator().evaluate(workloads.get(name), kernels.source(name))
    assert result.correct, result.message


@pytest.mark.parametrize("name", records.ids())
def test_the_values_that_ship_are_the_best_recorded(name):
    table = recorded.read(records.path(name))
    results = [table.result(kernel) for kernel in table.rows]
    own = table.result(canonical_hash(kernels.source(name)))
    best = max(result.speedup for result in results if result.correct)
    # Less is not worth another program.
    assert own.speedup >= 0.997 * best, f"run `jaxbench tune {name} --write`"


def test_the_whole_space_of_one_kernel_is_recorded():
    workload, space = workloads.get("rms_norm"), TemplateSpace(kernels.source("rms_norm"))
    assert all(records.evaluator().knows(workload, space.source(a)) for a in space.actions())
