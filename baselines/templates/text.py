"""What a kernel text says about its tunables, and the text with other values."""

from __future__ import annotations

import ast
import hashlib
import itertools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxbench_env import syntax
from jaxbench_env.canonical import canonical_hash, is_arithmetic

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}
_MOST_BITS = 64  # of a shift, and the largest exponent
_BUILTINS = (abs, all, any, bool, divmod, float, int, len, max, min, pow, range, round, sum, zip)


class TemplateError(ValueError):
    """A text is no template, or not this one; says what to change, and where."""


@dataclass(frozen=True)
class _Literal:
    """A tunable's value in the text: what it is, and where, as offsets in UTF-8 bytes."""

    value: Any
    start: int
    end: int


class Template:
    """A kernel text with tunables.

    The function ``constraints`` of the text is run in this process, and nothing else of the text
    is: alone, with the text's literal constants and some builtins. It is arithmetic without access
    to attributes or modules, but it could take for ever: give texts of people, not of models.

    Attributes:
        text: The text.
        domains: By name of a tunable, the values that it may have.
        defaults: By name of a tunable, the value that it has in the text.
        key: Hash of the text without comments, docstrings and the values of the tunables: the same
            for all that `source` makes of it.

    Args:
        text: A kernel text with ``TUNABLES`` and, maybe, ``constraints``.

    Raises:
        TemplateError: If there are no tunables in the text, if a domain is malformed or lacks the
            constant's own value, or if the parameters of ``constraints`` are not the tunables.
    """

    def __init__(self, text: str):
        self.text = text
        tree = _parsed(text)
        self._assigned = _assignments(tree)
        self.domains = _domains(self._assigned)
        self._literals = _literals(text, self.domains)
        self.defaults = {name: literal.value for name, literal in self._literals.items()}
        for name, value in self.defaults.items():
            if position(self.domains[name], value) is None:
                raise TemplateError(
                    f"TUNABLES: the text has {name} = {value!r}, which is not in its domain "
                    f"{self.domains[name]!r}; add it there"
                )
        self._constraints = _constraints(tree, tuple(self.domains))
        self.key = self._key(text, self._literals)

    def source(self, values: Mapping[str, Any]) -> str:
        """The text with other values: literals of tunables are replaced, nothing else is.

        A literal whose value does not change stays as it is written.
        """
        return _replaced(self.text, self._literals, {**self.defaults, **values})

    def read(self, text: str) -> dict[str, Any]:
        """The values of the tunables in a text of this template.

        Raises:
            TemplateError: If the text is of another kernel. Comments and layout may differ.
        """
        literals = _literals(text, self.domains)
        if self._key(text, literals) != self.key:
            raise TemplateError(
                "the text is not of this kernel: more than the values of the tunables differs"
            )
        return {name: literal.value for name, literal in literals.items()}

    def violations(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Sentences of ``constraints`` that do not hold at some values.

        Raises:
            TemplateError: If ``constraints`` fails, or returns something else than it should.
        """
        if self._constraints is None:
            return ()
        scope = {"__builtins__": {f.__name__: f for f in _BUILTINS}}
        scope |= _constants(self._assigned, values)
        try:
            exec(self._constraints, scope)
            found = scope["constraints"](**values)
        except Exception as error:
            raise TemplateError(
                f"constraints() fails at {dict(values)}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, dict) or not all(isinstance(key, str) and key for key in found):
            raise TemplateError(
                "constraints() returns a dict from sentences to whether they hold, not "
                f"{found!r:.200}"
            )
        return tuple(sentence for sentence, holds in found.items() if not holds)

    def _key(self, text: str, literals: Mapping[str, _Literal]) -> str:
        blank = _replaced(text, literals, dict.fromkeys(literals, 0))
        return hashlib.sha256(f"{[*literals]} {canonical_hash(blank)}".encode()).hexdigest()


def is_template(text: str) -> bool:
    """Whether a text declares tunables, well or not."""
    try:
        return "TUNABLES" in _assignments(_parsed(text))
    except TemplateError:
        return False


def position(domain: tuple[Any, ...], value: Any) -> int | None:
    """Where a value is in a domain; 1, 1.0 and True are not the same."""
    same = [index for index, one in enumerate(domain) if repr(one) == repr(value)]
    return same[0] if same else None


def _parsed(text: str) -> ast.Module:
    try:
        return syntax.tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TemplateError(f"the text is not Python: {error}") from None


def _assignments(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Of the module's lines ``name = value``, the values by name."""
    found: dict[str, list[ast.expr]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(statement.value)
    return found


def _domains(assigned: Mapping[str, list[ast.expr]]) -> dict[str, tuple[Any, ...]]:
    """The dict TUNABLES of a text, checked."""
    if "TUNABLES" not in assigned:
        raise TemplateError(
            'the text has no tunables; declare them: TUNABLES = {"BLOCK": (256, 512)}'
        )
    node = assigned["TUNABLES"][-1]
    where = f"TUNABLES (line {node.lineno})"
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError):
        raise TemplateError(f"{where} is no literal: write numbers, strings and tuples") from None
    if not isinstance(found, dict) or not found:
        raise TemplateError(f"{where} is a dict from names of constants to domains, not {found!r}")
    for name, domain in found.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise TemplateError(f"{where}: {name!r} is no name of a constant")
        if not isinstance(domain, tuple) or not domain:
            raise TemplateError(f"{where}: {name}'s domain is a tuple of values, not {domain!r}")
        for value in domain:
            if not _has_literal(value):
                raise TemplateError(
                    f"{where}: {name} has {value!r}; values are numbers, strings, None and tuples"
                )
        if len({repr(value) for value in domain}) != len(domain):
            raise TemplateError(f"{where}: {name}'s domain has a value twice: {domain!r}")
    return found


def _has_literal(value: Any) -> bool:
    """Whether ``repr`` of a value is a literal of the same value."""
    if isinstance(value, tuple):
        return all(map(_has_literal, value))
    finite = not isinstance(value, float) or math.isfinite(value)
    return finite and isinstance(value, (bool, int, float, str, type(None)))


def _literals(text: str, names: Mapping[str, Any]) -> dict[str, _Literal]:
    """Where a text has the values of tunables."""
    assigned = _assignments(_parsed(text))
    lines = text.encode().splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    found = {}
    for name in names:
        if len(assigned.get(name, ())) != 1:
            raise TemplateError(
                f"TUNABLES: there is no module-level line `{name} = <literal>`, or more than one"
            )
        (node,) = assigned[name]
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            raise TemplateError(
                f"line {node.lineno}: {name} is a tunable, so its value is a literal, not "
                f"`{ast.unparse(node)}`"
            ) from None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        found[name] = _Literal(value, start, end)
    return found


def _replaced(text: str, literals: Mapping[str, _Literal], values: Mapping[str, Any]) -> str:
    data = text.encode()
    for name, literal in sorted(literals.items(), key=lambda item: -item[1].start):
        if repr(values[name]) != repr(literal.value):
            data = data[: literal.start] + repr(values[name]).encode() + data[literal.end :]
    return data.decode()


def _constants(assigned: Mapping[str, list[ast.expr]], values: Mapping[str, Any]) -> dict[str, Any]:
    """The module's constants where the tunables have some values."""
    known = dict(values)
    for name, nodes in assigned.items():
        if name not in values:
            try:
                known[name] = _constant(nodes[-1], known)
            except (ValueError, TypeError, ArithmeticError):
                continue
    return known


def _constant(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of a literal, of a name that is known, or of arithmetic with them.

    Raises:
        ValueError, TypeError, ArithmeticError: If it is anything else.
    """
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _constant(node.left, known), _constant(node.right, known)
        if isinstance(node.op, (ast.Pow, ast.LShift)) and abs(right) > _MOST_BITS:
            raise ValueError(f"{right} is too much")
        if not all(isinstance(side, (int, float)) for side in (left, right)):
            raise ValueError("arithmetic is of numbers")
        return _OPERATORS[type(node.op)](left, right)
    return ast.literal_eval(node)


def _constraints(tree: ast.Module, names: tuple[str, ...]) -> str | None:
    """The text of the function ``constraints``; None if there is none."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = [function for function in functions if function.name == "constraints"]
    if not found:
        return None
    function = found[-1]
    where = f"constraints (line {function.lineno})"
    parameters = tuple(argument.arg for argument in function.args.args)
    if parameters != names:
        raise TemplateError(
            f"{where} has the parameters {', '.join(parameters) or 'of none'}; they are the "
            f"tunables in their order: {', '.join(names)}"
        )
    if not is_arithmetic(function):
        raise TemplateError(
            f"{where} is arithmetic with its arguments and the text's constants: no attributes, "
            "imports, decorators or `while`"
        )
    return ast.unparse(function)
