"""jaxbench_env/syntax.py: trees from many threads."""

import ast
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxbench_env import syntax

TEXT = "\n".join(f"def f{i}(x):\n    return (x + {i}) * [x, (x, {{'a': x}})][0]" for i in range(60))


@pytest.fixture
def collecting():
    """Garbage is collected all the time, with a callback in Python, which lets other threads in."""
    threshold = gc.get_threshold()

    def callback(phase, info):
        sum(range(50))

    gc.callbacks.append(callback)
    gc.set_threshold(20)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks.remove(callback)


def test_threads_do_not_meet_in_the_parser(collecting):
    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(syntax.tree, [TEXT] * 80))
    assert len({ast.dump(tree) for tree in trees}) == 1


@pytest.mark.parametrize(
    ("text", "error"), [("x = (", SyntaxError), ("x = \0", (SyntaxError, ValueError))]
)
def test_what_is_not_python_is_refused_and_the_next_text_is_read(text, error):
    with pytest.raises(error):
        syntax.tree(text)
    assert ast.dump(syntax.tree("x = 1")) == ast.dump(ast.parse("x = 1"))
