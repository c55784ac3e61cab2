"""Which package may import which.

scripts -> baselines -> jaxbench_env -> {workloads, reward}; workloads and reward import nothing of
ours. Two exceptions:

- The command line is the composition root: modules under jaxbench_env/cli may import baselines,
  inside the function that needs it.
- What stands in jaxbench_env/evaluator/children runs alone, with little else on its path: the
  standard library, jax, numpy and ml_dtypes only; `judge.py` there may import workloads too.
"""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BELOW = {
    "scripts": {"baselines", "jaxbench_env", "workloads", "reward"},
    "baselines": {"jaxbench_env", "workloads", "reward"},
    "jaxbench_env": {"workloads", "reward"},
    "workloads": set(),
    "reward": set(),
}
OURS = {*BELOW, "tests"}
CLI = Path("jaxbench_env/cli")
CHILDREN = Path("jaxbench_env/evaluator/children")
NOWHERE = "a package above the top level"
ALONE = {*sys.stdlib_module_names, "jax", "numpy", "ml_dtypes"}


def imports(source, path):
    """Yields (imported package, line, whether inside a function) for every import of a file."""
    package = path.parent.parts

    def visit(node, inside):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0], node.lineno, inside
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                yield (base[0] if base else NOWHERE), node.lineno, inside
            else:
                yield node.module.split(".")[0], node.lineno, inside
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value.split(".")[0], node.lineno, inside
        inside |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source), False)


def beside(line, source):
    """Whether the import in a line is of a part of the trace child."""
    text = source.splitlines()[line - 1].strip()
    parts = ("from . import interpreter", "from .simulate import ", "from .listener import ")
    return text.startswith(parts)


def breaches(source, path):
    """What a file imports and may not."""
    home = path.parts[0]
    for package, line, inside in imports(source, path):
        if CHILDREN in path.parents:
            allowed = ALONE | ({"workloads"} if path.name == "judge.py" else set())
            # Parts of a child are loaded with it, in a package of their own.
            neighbours = package == home and beside(line, source)
            wrong = package not in allowed and not neighbours
        else:
            wrong = package in {*OURS, NOWHERE} - BELOW[home] - {home}
            if package == "baselines" and CLI in path.parents and inside:
                wrong = False
        if wrong:
            yield f"{path}:{line} imports {package}"


def files():
    for package in BELOW:
        yield from (path.relative_to(ROOT) for path in sorted((ROOT / package).rglob("*.py")))


def test_there_is_something_to_check():
    homes = {path.parts[0] for path in files()}
    assert homes >= BELOW.keys() - {"scripts"}
    assert any(CHILDREN in path.parents for path in files())


@pytest.mark.parametrize("path", list(files()), ids=str)
def test_arrows_point_down(path):
    found = list(breaches((ROOT / path).read_text("utf-8"), path))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("workloads/a.py", "import reward"),
        ("workloads/a.py", "from jaxbench_env import env"),
        ("reward/a.py", "from workloads.norm import x"),
        ("reward/a.py", "def f():\n    import workloads"),
        ("jaxbench_env/a.py", "import baselines.kernels"),
        ("jaxbench_env/a.py", "def f():\n    import baselines"),
        ("jaxbench_env/a.py", "import importlib\nimportlib.import_module('baselines.kernels')"),
        ("jaxbench_env/cli/a.py", "import baselines"),
        ("jaxbench_env/cli/a.py", "class A:\n    import baselines"),
        ("jaxbench_env/a.py", "import tests.fixtures"),
        ("jaxbench_env/a.py", "from .. import baselines"),
        ("baselines/a.py", "import scripts"),
        ("jaxbench_env/evaluator/children/a.py", "import gymnasium"),
        ("jaxbench_env/evaluator/children/a.py", "from jaxbench_env.evaluator import result"),
        ("jaxbench_env/evaluator/children/a.py", "from . import zygote"),
        ("jaxbench_env/evaluator/children/a.py", "import workloads"),
        ("jaxbench_env/evaluator/children/judge.py", "import reward"),
    ],
)
def test_an_arrow_that_points_up_is_found(path, source):
    assert len(list(breaches(source, Path(path)))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("workloads/a.py", "import jax, workloads.norm\nfrom . import registry"),
        ("jaxbench_env/a.py", "import gymnasium\nfrom reward import get\nfrom . import env"),
        ("jaxbench_env/evaluator/a.py", "from ..env import x\nfrom .. import spaces"),
        ("jaxbench_env/cli/a.py", "def f():\n    from baselines import kernels"),
        ("baselines/a.py", "import optax, jaxbench_env"),
        ("scripts/a.py", "import baselines, workloads"),
        ("jaxbench_env/evaluator/children/a.py", "import os, jax.extend, numpy, ml_dtypes"),
        ("jaxbench_env/evaluator/children/judge.py", "import workloads"),
    ],
)
def test_an_arrow_that_points_down_is_not(path, source):
    assert not list(breaches(source, Path(path)))
