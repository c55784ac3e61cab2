from pathlib import Path

import pytest

from jaxbench_env.canonical import canonical_hash

KERNEL = '''"""Doc."""
import jax
BLOCK = 512  # rows
TUNABLES = {"BLOCK": (256, 512)}

def constraints(BLOCK):
    return {"fits": BLOCK <= 512}

def workload(x):
    """Doc."""
    # why
    return f"{x!r:>{BLOCK}}" "a", {**x}, lambda *a, b=None: x[1:, ...]
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # rows", ""),
        ('"""Doc."""\nimport', "import"),
        ('    """Doc."""\n', ""),
        ("    # why\n", "\n\n"),
        ("BLOCK = 512", "BLOCK=(0x200)"),
        ('"BLOCK": (256, 512)', '"BLOCK": (512,)'),
        ("BLOCK <= 512", "BLOCK < 4"),
        ('TUNABLES = {"BLOCK": (256, 512)}', ""),
    ],
)
def test_what_changes_no_kernel_changes_no_hash(old, new):
    assert old in KERNEL
    assert canonical_hash(KERNEL.replace(old, new)) == canonical_hash(KERNEL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BLOCK = 512", "BLOCK = 512.0"),
        ("BLOCK = 512", "BLOCK = True"),
        ("import jax", "import jax as j"),
        ("x!r", "x!s"),
        ("{**x}", "{None: x}"),
        ("b=None", "b=..."),
        ("*a,", "*,"),
        ("x[1:", "x[:1"),
        ('"a"', "'b'"),
        # no plain description of a space
        ('{"BLOCK": (256, 512)}', "f(x)"),
        ("BLOCK <= 512", "jax.numpy"),
    ],
)
def test_what_changes_a_kernel_changes_its_hash(old, new):
    assert old in KERNEL
    assert canonical_hash(KERNEL.replace(old, new)) != canonical_hash(KERNEL)


def test_every_version_of_python_makes_the_same_of_a_text():
    expected = "66a87b5a95f879ec6a0c857f978b180b1eb1da4bd4c3f0c998857a4b84531bdb"
    assert canonical_hash(KERNEL) == expected


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "def f(:", "(" * 1000, "TUNABLES = {[]: 1}"])
def test_any_text_has_a_hash(text):
    assert len(canonical_hash(text)) == 64
    assert canonical_hash(text) == canonical_hash(text)


def test_different_kernels_differ():
    folder = Path(__file__).parent / "honest" / "kernels"
    texts = {path.read_text() for path in folder.glob("*.py")}
    assert len({canonical_hash(text) for text in texts}) == len(texts) > 10
