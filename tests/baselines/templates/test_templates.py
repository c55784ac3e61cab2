import ast
import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.templates import Template, TemplateError, TemplateSpace, is_template
from jaxbench_env.canonical import canonical_hash

TEXT = '''"""Ünïcode before the literals: offsets are bytes."""
A = 256; ß = "é"; B = ("x", "parallel")  # the order
LIMIT = 100 * 2**20
HALF = A // 2
C = None
TUNABLES = {"A": (128, 256), "B": (("x", "parallel"), ("y",)), "C": (None, True, 1, 1.0)}


def constraints(A, B, C):
    small = A * 2**10 < LIMIT
    return {"A is small": small, "half": HALF == A // 2, "no y at 256": A < 256 or B[0] != "y"}


def workload(x):
    return A, B, C
'''


def constants(text):
    scope = {}
    exec(text, scope)
    return {name: scope[name] for name in "ABC"}


def test_a_space_has_the_text_as_its_default():
    space = TemplateSpace(TEXT)
    assert space.names == ("A", "B", "C") and space.size == 16
    assert space.nvec.tolist() == [2, 2, 4] and space.default in space
    assert space.source(space.default) == TEXT


def test_every_member_is_a_text_and_back():
    space = TemplateSpace(TEXT, seed=0)
    texts = [space.source(action) for action in space.actions()]
    assert len({*texts}) == 16
    for action, text in zip(space.actions(), texts, strict=True):
        assert space.action(text).tolist() == action.tolist()
        found = constants(text)
        assert repr(found) == repr(space.values(action))
        # nothing but the literals has changed
        again = TemplateSpace(text)
        assert again.template.key == space.template.key
        assert canonical_hash(again.source(space.default)) == canonical_hash(TEXT)
        lines = zip(text.splitlines(), TEXT.splitlines(), strict=True)
        assert [n for n, (new, old) in enumerate(lines) if new != old] in ([], [1], [4], [1, 4])


def test_violations_are_of_the_member_and_not_of_the_text():
    space = TemplateSpace(TEXT)
    for action in space.actions():
        values = space.values(action)
        expected = ["no y at 256"] if values["A"] == 256 and values["B"] == ("y",) else []
        assert space.violations(action) == expected
    assert len(list(space.actions(valid=True))) == 12
    assert len(list(space.actions(valid=False))) == 4


def test_sampling_is_reproducible_and_keeps_its_word():
    first, second = TemplateSpace(TEXT, seed=3), TemplateSpace(TEXT, seed=3)
    for _ in range(20):
        action = first.sample_valid()
        assert action.tolist() == second.sample_valid().tolist() and not first.violations(action)
        action = first.sample_violation()
        assert action.tolist() == second.sample_violation().tolist() and first.violations(action)
    assert any(first.violations(first.sample()) for _ in range(100))


def test_a_space_travels():
    space = TemplateSpace(TEXT, seed=1)
    space.violations(space.default)
    for other in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert other == space and other.template.text == TEXT
        assert other.sample().tolist() == copy.deepcopy(space).sample().tolist()


def test_a_text_of_another_kernel_is_refused():
    space = TemplateSpace(TEXT)
    assert space.action(TEXT.replace("  # the order", "")).tolist() == space.default.tolist()
    with pytest.raises(TemplateError, match="not of this kernel"):
        space.action(TEXT.replace("return A, B", "return B, A"))
    with pytest.raises(TemplateError, match="not in its domain"):
        space.action(TEXT.replace("A = 256", "A = 300"))
    with pytest.raises(TemplateError, match="no module-level line `A"):
        space.action("B = 1")


@pytest.mark.parametrize(
    "action", [[0, 0], [0, 0, 4], [0, -1, 0], [0.0, 0.0, 0.0], "abc", None, [[0, 0, 0]]]
)
def test_what_is_no_member_is_explained(action):
    with pytest.raises(TemplateError, match="A below 2, B below 2, C below 4"):
        TemplateSpace(TEXT).source(action)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("TUNABLES = {", "OTHER = {", "has no tunables"),
        ("def workload(x):", "def workload(x:", "not Python"),
        ("def workload(x):", f"B = {'1+' * 9000}1\n\ndef workload(x):", "not Python"),
        ('"A": (128, 256)', '"A": (128, 255)', "A = 256, which is not in its domain"),
        ('"A": (128, 256)', '"A": [128, 256]', "A's domain is a tuple"),
        ('"A": (128, 256)', '"A": ()', "A's domain is a tuple"),
        ('"A": (128, 256)', '"A": (128, 256, 128)', "a value twice"),
        ('"A": (128, 256)', '"A": (128, 2 * 128)', "no literal"),
        ('"A": (128, 256)', '"A": (128, 256, {1})', "numbers, strings, None and tuples"),
        ('"A": (128, 256)', '"A": (256, 1e999)', "numbers, strings, None and tuples"),
        ('"A": (128, 256)', "1: (128, 256)", "no name of a constant"),
        ('{"A"', '{1: {2}[0], "A"', "no literal"),
        ("A = 256;", "A = 2 * 128;", "line 2: A is a tunable, so its value is a literal"),
        ("A = 256;", "A: int = 256;", "no module-level line `A"),
        ("A = 256;", "A = 256; A = 128;", "or more than one"),
        ("constraints(A, B, C)", "constraints(B, A, C)", "tunables in their order: A, B, C"),
        ("constraints(A, B, C)", "constraints()", "has the parameters of none"),
        ("A < 256 or", "A.real < 256 or", "no attributes"),
        ("A < 256 or", "__import__('os') or", "no attributes"),
    ],
)
def test_a_malformed_text_is_explained(old, new, says):
    assert old in TEXT
    with pytest.raises(TemplateError, match=says):
        TemplateSpace(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("A < 256 or", "A / 0 or", "fails at .*ZeroDivisionError"),
        ("A < 256 or", "open('x') or", "fails at .*NameError"),
        ("A < 256 or", "workload(A) or", "fails at .*NameError"),
        ("return {", "return 1 or {", "returns a dict"),
        ('"half"', "2", "returns a dict"),
    ],
)
def test_constraints_that_fail_are_explained(old, new, says):
    space = TemplateSpace(TEXT.replace(old, new))
    with pytest.raises(TemplateError, match=says):
        space.violations(space.default)


def test_spaces_without_what_is_asked_for_say_so():
    space = TemplateSpace("A = 1\nTUNABLES = {'A': (1, 2)}\n")
    assert space.violations([0]) == []
    with pytest.raises(TemplateError, match="breaks a constraint"):
        space.sample_violation()
    large = TemplateSpace(
        "".join(f"A{i} = 0\n" for i in range(5))
        + "TUNABLES = {"
        + ", ".join(f"'A{i}': {tuple(range(10))}" for i in range(5))
        + "}\n"
    )
    with pytest.raises(TemplateError, match="100,000 members"):
        next(large.actions())
    assert large.sample_valid() in large


def test_a_text_is_a_template_or_not():
    assert is_template(TEXT) and not is_template("x = 1") and not is_template("def (")
    assert is_template("TUNABLES = 1")


literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


@given(
    st.dictionaries(
        st.sampled_from(["A", "BLOCK_M", "ä", "_x"]),
        st.lists(literals, min_size=1, max_size=4, unique_by=repr),
        min_size=1,
    ),
    st.data(),
)
def test_any_literals_survive(domains, data):
    """Whatever the values are: texts hold them exactly, and the space reads them back."""
    domains = {name: tuple(values) for name, values in domains.items()}
    defaults = {name: data.draw(st.sampled_from(values)) for name, values in domains.items()}
    lines = [f"é = 'ü'; {name} = ({value!r})  # {name} = 1" for name, value in defaults.items()]
    text = "\n".join([*lines, f"TUNABLES = {domains!r}", "x = A if 'A' in globals() else 0", ""])
    space = TemplateSpace(text)
    action = np.array([data.draw(st.integers(0, n - 1)) for n in space.nvec.tolist()])
    made = space.source(action)
    assert space.action(made).tolist() == action.tolist()
    scope = {}
    exec(made, scope)
    assert repr({name: scope[name] for name in domains}) == repr(space.values(action))
    same = Template(made)
    assert same.key == space.template.key
    assert ast.dump(ast.parse(same.source(defaults))) == ast.dump(ast.parse(text))
