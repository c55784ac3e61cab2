import textwrap
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbench_env.extract import extract_source

IMPORTS = "import jax\nimport jax.numpy as jnp\n"
KERNEL = "def kernel(x_ref, o_ref):\n    o_ref[...] = x_ref[...]\n"
WORKLOAD = "def workload(x):\n    return kernel_call(kernel, jnp.exp(x))\n"
SOURCE = IMPORTS + "\n\n" + KERNEL + "\n\n" + WORKLOAD


def fenced(source, mark="```", info="python"):
    return f"{mark}{info}\n{source}{mark}\n"


@pytest.mark.parametrize("mark", ["```", "~~~", "````", "~~~~~"])
@pytest.mark.parametrize(
    "info",
    ["python", "py", "", "Python3", 'python title="kernel.py"', " python", "{.python}", "jax"],
)
def test_a_fenced_block_is_the_source(mark, info):
    answer = f"Here it is:\n\n{fenced(SOURCE, mark, info)}\nIt uses 512-wide blocks.\n"
    assert extract_source(answer) == SOURCE


def test_plain_source_is_the_source():
    assert extract_source(SOURCE) == SOURCE
    assert extract_source("\n\n" + SOURCE + "\n\n") == SOURCE


def test_line_ends_of_windows_become_ours():
    assert extract_source(fenced(SOURCE).replace("\n", "\r\n")) == SOURCE
    assert extract_source(SOURCE.replace("\n", "\r\n")) == SOURCE


@pytest.mark.parametrize("indent", ["  ", "    ", "\t", "> "])
def test_an_indented_block_loses_its_indentation(indent):
    answer = "1. The kernel:\n\n" + textwrap.indent(fenced(SOURCE), indent, lambda line: True)
    assert extract_source(answer) == SOURCE


def test_an_indented_fence_around_code_that_is_not():
    assert extract_source("  ```python\n" + SOURCE + "  ```") == SOURCE


def test_code_indented_more_than_its_fence():
    assert extract_source(fenced(textwrap.indent(SOURCE, "    "))) == SOURCE


def test_an_unclosed_block_goes_as_far_as_it_goes():
    cut = SOURCE[:-20]
    assert extract_source("Here:\n```python\n" + cut) == cut + "\n"


def test_fences_that_do_not_stand_alone_on_their_lines():
    assert extract_source("Here it is: ```python\n" + SOURCE.rstrip() + "```") == SOURCE


def test_the_last_block_that_defines_workload_is_taken():
    first = SOURCE.replace("exp", "log")
    answer = f"{fenced(first)}\nNo: log should be exp.\n{fenced(SOURCE)}\nRun it with:\n" + fenced(
        "workload(jnp.ones(8))\n"
    )
    assert extract_source(answer) == SOURCE


def test_blocks_of_other_languages_are_left_out():
    answer = (
        fenced("pip install jax\n", info="bash") + fenced(KERNEL) + fenced("8.1 ms\n", info="text")
    )
    assert extract_source(answer) == KERNEL


def test_a_block_that_defines_workload_brings_the_blocks_that_it_needs():
    answer = (
        f"Imports:\n{fenced(IMPORTS)}Kernel:\n{fenced(KERNEL)}An aside:\n{fenced('y = 3')}"
        f"Entry:\n{fenced(WORKLOAD)}"
    )
    assert extract_source(answer) == "\n\n".join([IMPORTS, KERNEL, WORKLOAD]).replace(
        "\n\n\n", "\n\n"
    )


def test_helpers_may_follow():
    answer = fenced(WORKLOAD) + "with\n" + fenced(IMPORTS + KERNEL)
    source = extract_source(answer)
    assert source.startswith("def workload") and "import jax\n" in source and "def kernel" in source


def test_what_helpers_need_comes_along():
    answer = (
        fenced("BLOCK = 512\n")
        + fenced("def helper(x):\n    return x + BLOCK\n")
        + fenced("def workload(x):\n    return helper(x)\n")
    )
    assert extract_source(answer).split("\n")[0] == "BLOCK = 512"


def test_a_complete_block_brings_nothing():
    answer = fenced("import jax\nOTHER = 1\n") + fenced("def workload(x):\n    return x\n")
    assert extract_source(answer) == "def workload(x):\n    return x\n"


def test_blocks_without_workload_are_joined():
    assert extract_source(fenced(IMPORTS) + "then\n" + fenced(KERNEL)) == IMPORTS + "\n" + KERNEL


@pytest.mark.parametrize("outer", ["```", "````", "~~~"])
def test_a_block_inside_a_document_is_found(outer):
    answer = f"{outer}markdown\n# The kernel\n\n{fenced(SOURCE)}\nThat is all.\n{outer}\n"
    assert extract_source(answer) == SOURCE


@pytest.mark.parametrize("indent", ["", "    "])
def test_fences_in_a_docstring_belong_to_the_code(indent):
    doc = textwrap.indent('"""Example:\n\n```\nworkload(x)\n```\n"""\n', "    ")
    source = "def workload(x):\n" + doc + "    return x\n"
    if not indent:
        source = '"""A kernel.\n\n```\nworkload(x)\n```\n"""\n' + source
    assert extract_source("Here:\n" + fenced(source) + "Done.") == source


def test_a_block_whose_end_was_forgotten_before_the_next():
    answer = "```python\n" + IMPORTS + "\nand now the kernel\n\n" + fenced(SOURCE)
    assert extract_source(answer) == SOURCE


@pytest.mark.parametrize(
    "answer",
    [
        f"<think>\nFirst try:\n{fenced('def workload(x): pass')}\n</think>\n{fenced(SOURCE)}",
        f"A draft:\n{fenced('def workload(x): pass')}</think>\n{fenced(SOURCE)}",
        f"<think>an unclosed draft:\n```python\nx = 1\n</think>\n{fenced(SOURCE)}",
        f"<thinking>hm</thinking>{fenced(SOURCE)}<thinking>\n{fenced('def workload(x): pass')}",
        f"<think>\nworkload = 3\n</think>\n\n{SOURCE}",
    ],
)
def test_reasoning_is_dropped(answer):
    assert extract_source(answer) == SOURCE


def test_reasoning_that_was_cut_off_is_no_answer():
    assert extract_source(f"<think>\nMaybe\n{fenced(SOURCE)}\nbut no, that") == ""


def test_a_tag_in_quotes_is_only_talked_about():
    source = 'TAG = "</think>"\n' + SOURCE
    assert extract_source("The tag `<think>` is kept:\n" + fenced(source)) == source


@pytest.mark.parametrize(
    "before", ["", "Sure! Here's the kernel (in Pallas):\n\n", "# Kernel\n\nIt's fast.\n"]
)
@pytest.mark.parametrize(
    "after", ["", "\nThis isn't slow: it uses (8, 128) tiles.\n", "\nDone!\nBye."]
)
def test_prose_around_code_without_fences_is_dropped(before, after):
    assert extract_source(before + SOURCE + after) == SOURCE


def test_a_mistake_in_code_without_fences_drops_none_of_it():
    wrong = IMPORTS + "\ndef kernel(x_ref):\n    x_ref = = 1\n\n" + WORKLOAD
    assert extract_source("Sure:\n\n" + wrong) == wrong


def test_code_without_fences_that_was_cut_off_is_kept():
    cut = SOURCE[:-20]
    assert extract_source("Sure:\n\n" + cut) == cut + "\n"
    assert extract_source(IMPORTS + "\ndef kernel(x_ref, o") == IMPORTS + "\ndef kernel(x_ref, o\n"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " \n ",
        "Sorry.",
        "Sorry",
        "I cannot do that.",
        "answer: 42",
        "```\n```",
        "```python\n\n```",
    ],
)
def test_an_answer_without_code_gives_nothing(answer):
    assert extract_source(answer) == ""


pieces = [
    *"`~ \n\t>'\"#()=:\r",
    "```",
    "~~~",
    "python",
    "def workload(x):\n",
    "<think>",
    "</think>",
]
messy = st.lists(st.sampled_from(pieces)).map("".join)


@settings(deadline=None)
@given(st.text() | messy | st.text(alphabet=st.characters()))
def test_it_never_raises(answer):
    assert isinstance(extract_source(answer), str)


identifiers = st.sampled_from("abcxyz")
statements = st.sampled_from(
    [
        "import jax",
        "x = [\n    1,\n\n    2,\n]",
        'TEXT = """a\n\n    b\n"""',
        "class A:\n    b: int = 1\n\n    def c(self):\n        return self.b",
        "# a comment",
        "if True:\n    y = 'it''s'",
        "@staticmethod\ndef f(): return '`'",
        "z = '''\n~~~\n'''",
    ]
)
sources = st.tuples(st.lists(statements, max_size=5), st.lists(statements, max_size=2)).map(
    lambda parts: "\n\n".join([*parts[0], "def workload(x):\n    return x", *parts[1]]) + "\n"
)


@settings(deadline=None)
@given(sources)
def test_plain_source_stays_as_it_is(source):
    assert extract_source(source) == source
    assert extract_source(extract_source(source)) == source


@settings(deadline=None)
@given(
    sources,
    st.sampled_from(["```", "~~~~", "`````"]),
    st.sampled_from(["", "python", "py", "python3 linenums=1"]),
    st.sampled_from(["", "Here is my kernel.\n\n", "a `b` c\n"]),
    st.sampled_from(["", "\nIt's done.\n", "\n```bash\npython kernel.py\n```\n"]),
)
def test_what_is_put_in_fences_comes_out(source, mark, info, before, after):
    assert extract_source(before + fenced(source, mark, info) + after) == source


@pytest.mark.parametrize(
    "answer",
    [
        "```a\n" * 40_000,
        "```\n" * 50_000,
        "```python\nx = (\n```\n" * 4_000,
        "from x import " + "import " * 30_000,
        "import a\n" * 20_000 + "hm hm",
        "<think>" * 30_000,
        "x = 1\nthis is prose\n" * 10_000 + "def workload(x): pass",
        "(" * 200_000,
        " " * 200_000 + "`",
    ],
)
def test_hostile_answers_take_seconds_at_most(answer):
    started = time.process_time()  # not what others take of the machine
    extract_source(answer)
    assert time.process_time() - started < 10
