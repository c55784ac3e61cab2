import json
import tomllib

import pytest

from jaxbench_env.taxonomy import Category
from scripts import mutate_kernels

OPERATORS = tomllib.loads(mutate_kernels.OPERATORS.read_text())["operator"]
KERNELS = mutate_kernels.corpus()


def test_operators_have_names_of_their_own():
    assert len({operator["name"] for operator in OPERATORS}) == len(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator["name"])
def test_an_operator_changes_kernels_in_one_known_way(operator):
    assert Category(operator["category"]) is not Category.OTHER
    assert {*operator.get("kernels", ())} <= {kernel.name for kernel in KERNELS}
    made = mutate_kernels.mutants(operator, KERNELS)
    assert made
    assert all(mutant.text != mutant.kernel.text for mutant in made)
    assert len({mutant.text for mutant in made}) == len(made)
    assert not any("VALUE" in mutant.text for mutant in made)


def test_records_have_the_categories_of_their_operators():
    """Run scripts/mutate_kernels.py NAME after changing an operator."""
    known = {
        (operator["name"], value, operator["category"], operator.get("batch", 1))
        for operator in OPERATORS
        for value in operator.get("values", [""])
    }
    for record in map(json.loads, mutate_kernels.RESULTS.read_text().splitlines()):
        one = (record["operator"], record["value"], record["category"], record["batch"])
        assert one in known, f"no operator makes {one}"
