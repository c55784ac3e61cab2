"""What reports show of people's kernels is what the tables in docs say."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import ship_references
from jaxbench_env.report import references


def test_the_shipped_speedups_are_those_of_the_tables():
    again = "run scripts/ship_references.py"
    assert references.kernels() == json.loads(json.dumps(ship_references.shipped())), again
