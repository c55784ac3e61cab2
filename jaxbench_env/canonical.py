"""Which kernel texts are the same kernel: a hash of a text that comments do not change."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator

from jaxbench_env import syntax

# Fields of syntax trees that differ between versions of Python for the same text.
_PASSED_OVER = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})
_MODULE_LEVEL = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


@functools.lru_cache(maxsize=4096)
def canonical_hash(source: str) -> str:
    """SHA-256, hexadecimal, of what a kernel text says.

    Comments, docstrings and layout do not change it, nor does what describes a kernel's search
    space without being part of the kernel: a module-level ``TUNABLES = <literal>`` and a
    function ``constraints`` that is plain arithmetic (`is_arithmetic`). Every version of Python
    makes the same of a text. Lines that a verdict names are those of the text it was made of.

    Args:
        source: Any text. One that is not Python is hashed as it is.
    """
    digest = hashlib.sha256()
    try:
        tree = syntax.tree(source)
        tree.body = [statement for statement in tree.body if not _describes_space(statement)]
        for token in _tokens(tree):
            digest.update(token.encode(errors="surrogatepass") + b"\0")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return hashlib.sha256(b"text\0" + source.encode(errors="surrogatepass")).hexdigest()
    return digest.hexdigest()


def is_arithmetic(function: ast.FunctionDef) -> bool:
    """Whether a function can only compute with its arguments and with names.

    It has no attributes, imports, decorators, ``while`` or names with two underscores, so that with
    a few harmless builtins it reaches nothing outside (it may still take long).
    """
    outside = (ast.Attribute, ast.Import, ast.ImportFrom, ast.While, ast.Global, ast.Nonlocal)
    outside += (ast.ClassDef, ast.Await, ast.Yield, ast.YieldFrom, ast.Try, ast.With)
    for node in ast.walk(function):
        name = node.id if isinstance(node, ast.Name) else ""
        if isinstance(node, outside) or "__" in name:
            return False
    return not function.decorator_list


def _describes_space(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return statement.name == "constraints" and is_arithmetic(statement)
    if not isinstance(statement, ast.Assign):
        return False
    (target, *others) = statement.targets
    if others or not isinstance(target, ast.Name) or target.id != "TUNABLES":
        return False
    try:
        ast.literal_eval(statement.value)
    except (ValueError, TypeError):
        return False
    return True


def _tokens(node: ast.AST) -> Iterator[str]:
    """A tree as texts, the same in every version of Python."""
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        if name in _PASSED_OVER or value is None and not isinstance(node, ast.Constant):
            continue
        if name == "body" and isinstance(node, _MODULE_LEVEL) and _is_docstring(value):
            value = value[1:]
        if isinstance(node, ast.JoinedStr):  # some versions add empty parts
            value = [part for part in value if getattr(part, "value", None) != ""]
        yield f".{name}"
        if isinstance(value, ast.AST):
            yield from _tokens(value)
        elif not isinstance(value, list):
            yield f"{type(value).__name__} {value!r}"
        else:
            yield f"[{len(value)}"
            for item in value:
                # Keys of dicts may be None, names of `global` are texts.
                yield from _tokens(item) if isinstance(item, ast.AST) else (repr(item),)


def _is_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    constant = first.value if isinstance(first, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)
