"""Checks a kernel text against what may stand in it."""

from __future__ import annotations

import ast
import importlib
import re
import string
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from jaxbench_env.evaluator.audit import names
from jaxbench_env.evaluator.audit.parse import parse
from jaxbench_env.evaluator.audit.scopes import Place, Scopes
from jaxbench_env.evaluator.result import Status

MAX_LENGTH = 200_000

_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_DUNDER = re.compile(r"__\w+__")
_IMPORTABLE = (
    "a kernel may import jax, jax.numpy, jax.lax, jax.nn, jax.random, jax.experimental.pallas and "
    "its tpu module, functools, math, dataclasses, typing, itertools, collections, enum, operator "
    "and numpy"
)


@dataclass(frozen=True)
class Finding:
    """Why a text was turned away.

    Attributes:
        status: ``SYNTAX_ERROR``, ``REJECTED`` or ``WRONG_SIGNATURE``.
        message: What is wrong and what to write instead, for the author of the kernel.
        line: Line of the text, from 1, if it is one line's fault.
    """

    status: Status
    message: str
    line: int | None = None


def audit(source: str, *, allow_library_kernels: bool = False) -> Finding | None:
    """Reads a kernel text and says what, if anything, keeps it from being run.

    The text is held against lists of what a kernel may import, name and assign to (see
    `names`). This stops honest mistakes early, with a message that says what to do, and
    makes cheap attacks dearer. It is **not** the security boundary: Python is too large for a
    reader of syntax trees to be sure, and the evaluation must stay right when a hostile text
    passes.

    Args:
        source: The text. Anything at all may stand in it; it is never run.
        allow_library_kernels: Whether finished kernels (``jax.experimental.pallas.ops.tpu``,
            tokamax) may be imported. For the expert baseline.

    Returns:
        None if the text may run, else the first thing that is wrong with it.
    """
    if len(source) > MAX_LENGTH:
        return Finding(
            Status.REJECTED,
            f"the text has {len(source):,} characters; at most {MAX_LENGTH:,} are allowed",
        )
    if not source.strip():
        return Finding(Status.SYNTAX_ERROR, "the text is empty; define `workload(...)` in it")
    for number, line in enumerate(source.split("\n", 2)[:2], 1):
        cookie = _COOKIE.match(line)
        if cookie and cookie[1].lower().replace("_", "-") not in ("utf-8", "utf8"):
            message = f"the text declares the encoding {cookie[1]}; remove the line, it is UTF-8"
            return Finding(Status.REJECTED, message, number)
    try:
        tree = parse(source)
    except SyntaxError as error:
        return Finding(Status.SYNTAX_ERROR, f"not valid Python: {error.msg}", error.lineno)
    scopes = Scopes(tree)
    if not scopes.settled:
        message = "aliases of aliases go on for too long; use imported modules by their own names"
        return Finding(Status.REJECTED, message)
    first = min(
        _Audit(scopes, allow_library_kernels).findings(),
        key=lambda found: found.line or 0,
        default=None,
    )
    if first is not None:
        return first
    if "workload" not in scopes.module.bound:
        return Finding(
            Status.WRONG_SIGNATURE,
            "the text does not define `workload`; define `workload(...)` at the top level, with "
            "the arguments given in the task",
        )
    return None


def removed_names(source: str) -> list[str]:
    """Hints for Pallas names that the installed jax does not have any more.

    Args:
        source: A kernel text.

    Returns:
        One sentence for each such name that the text uses, in alphabetical order; none for a
        text that cannot be parsed.
    """
    try:
        scopes = Scopes(parse(source))
    except SyntaxError:
        return []
    used = scopes.imported()
    for place in scopes.places:
        if isinstance(place.node, ast.Attribute):
            used |= scopes.paths(place.node, place.scope)
    hints = []
    for path in sorted(used & names.REMOVED.keys()):
        module, _, member = path.rpartition(".")
        if not _exists(module, member):
            short = "pltpu" if module == names.PALLAS_TPU else "pl"
            hints.append(
                f"{short}.{member} does not exist in the installed jax "
                f"{importlib.import_module('jax').__version__}; use {names.REMOVED[path]}"
            )
    return hints


def _exists(module: str, member: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names still exist
        return hasattr(importlib.import_module(module), member)


class _Audit:
    """The rules, one method for each kind of node."""

    def __init__(self, scopes: Scopes, allow_library_kernels: bool):
        self._scopes = scopes
        self._library = names.LIBRARY_MODULES if allow_library_kernels else ()
        self._decorators: set[int] = set()
        self._texts: set[int] = set()
        for place in scopes.places:
            node = place.node
            for decorator in getattr(node, "decorator_list", ()):
                self._decorators.add(id(decorator))
            if isinstance(node, ast.Expr):
                self._texts.add(id(node.value))  # docstrings: read by nobody

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong, in no particular order."""
        for place in self._scopes.places:
            check = getattr(self, f"_check_{type(place.node).__name__.lower()}", None)
            messages = list(check(place)) if check else []
            for name in _defined(place.node):
                messages += self._bad_definition(name, place)
            line = getattr(place.node, "lineno", None)
            yield from (Finding(Status.REJECTED, message, line) for message in messages)

    def _check_import(self, place: Place) -> Iterator[str]:
        for alias in place.node.names:
            yield from self._bad_module(alias.name)
        if place.scope.kind == "class":
            yield "imports may not stand in a class body; move them to the top of the file"

    def _check_importfrom(self, place: Place) -> Iterator[str]:
        node = place.node
        if node.level:
            yield f"relative imports are not possible: the text is one file; {_IMPORTABLE}"
            return
        if node.module == "__future__":
            return
        if place.scope.kind == "class":
            yield "imports may not stand in a class body; move them to the top of the file"
        refused = list(self._bad_module(node.module or ""))
        yield from refused
        for alias in node.names if not refused else ():
            if alias.name == "*":
                yield f"`from {node.module} import *` hides what is used; import names one by one"
            else:
                yield from self._bad_path(f"{node.module}.{alias.name}")

    def _check_name(self, place: Place) -> Iterator[str]:
        node, scope = place.node, place.scope
        if node.id.startswith("__"):
            main = isinstance(place.parent, ast.Compare) and node.id == "__name__"
            if not main and not (node.id == "__all__" and isinstance(node.ctx, ast.Store)):
                yield f"names with double underscores may not be used: {node.id}"
            return
        if not isinstance(node.ctx, ast.Load):
            return
        owner = scope.owner(node.id)
        if node.id in names.FORBIDDEN_BUILTINS and (
            owner is None or owner.kind not in ("function", "comprehension")
        ):
            what = {
                "getattr": "write the attribute out: x.name",
                "hasattr": "write for the installed jax; attributes are not asked for by name",
                "setattr": "attributes may not be set by name",
            }.get(node.id, "remove it, or choose another name if it is a variable of yours")
            yield f"the builtin `{node.id}` may not be used: {what}"
        elif node.id == "type" and owner is None and not _one_argument_call(place):
            yield "`type` may only be called with one argument; write a class statement instead"
        yield from self._bad_value(place)

    def _check_attribute(self, place: Place) -> Iterator[str]:
        node = place.node
        yield from self._bad_attribute_name(node.attr, place)
        if not isinstance(node.ctx, ast.Load):
            yield from self._bad_attribute_target(place)
            return
        for path in sorted(self._scopes.paths(node, place.scope)):
            yield from self._bad_path(path)
        yield from self._bad_value(place)
        if node.attr == "format":
            yield from _bad_format(node.value)

    def _check_subscript(self, place: Place) -> Iterator[str]:
        node = place.node
        paths = self._scopes.paths(node.value, place.scope)
        if paths and not isinstance(node.ctx, ast.Load):
            yield f"imported things may not be changed: {min(paths)}[...]"

    def _check_constant(self, place: Place) -> Iterator[str]:
        value = place.node.value
        if (
            isinstance(value, str)
            and _DUNDER.fullmatch(value)
            and id(place.node) not in self._texts
        ):
            if value != "__main__":
                yield f"names with double underscores may not be used, nor strings: {value!r}"

    def _check_matchclass(self, place: Place) -> Iterator[str]:
        for attribute in place.node.kwd_attrs:
            yield from self._bad_attribute_name(attribute, None)

    def _bad_definition(self, name: str, place: Place) -> Iterator[str]:
        if not name.startswith("__"):
            return
        method = isinstance(place.node, ast.FunctionDef) and place.scope.kind == "class"
        if not (method and name in names.METHODS):
            allowed = ", ".join(sorted(names.METHODS))
            yield f"names with double underscores may not be defined ({allowed} may): {name}"

    def _bad_attribute_name(self, name: str, place: Place | None) -> Iterator[str]:
        if name in names.ATTRIBUTES:
            yield f"the attribute `.{name}` may not be used"
        elif name.startswith("__"):
            if place is None or not _super_init(place):
                yield f"names with double underscores may not be used: .{name}"
        elif name.startswith("_") and name not in names.PRIVATE_ATTRIBUTES:
            if place is None or not self._is_self(place):
                yield f"private attributes may not be used: .{name}"

    def _bad_attribute_target(self, place: Place) -> Iterator[str]:
        node = place.node
        paths = self._scopes.paths(node, place.scope)
        if paths:
            yield f"imported things may not be changed: {min(paths)}"
            return
        own = isinstance(node.value, ast.Name) and (
            (owner := place.scope.owner(node.value.id)) is not None
            and owner.others.get(node.value.id) is False
        )
        if not own and not self._is_self(place):
            yield (
                f"`.{node.attr}` may not be assigned to: only self.x in a class of yours, or an "
                "attribute of an object that you made with `name = YourClass(...)`"
            )

    def _is_self(self, place: Place) -> bool:
        base = place.node.value
        if not isinstance(base, ast.Name):
            return False
        owner = place.scope.owner(base.id)
        return owner is not None and owner.this == base.id

    def _bad_value(self, place: Place) -> Iterator[str]:
        """Modules may only be named to get at their members: no other road to those."""
        parent = place.parent
        if isinstance(parent, ast.Attribute):
            return
        for path in sorted(self._scopes.paths(place.node, place.scope)):
            if path in names.DECORATORS:
                if id(place.node) not in self._decorators and not (
                    isinstance(parent, ast.Call)
                    and parent.func is place.node
                    and id(parent) in self._decorators
                ):
                    yield f"{path} may only decorate: {names.DECORATORS[path]}"
            elif path in names.MODULES:
                plain = isinstance(parent, (ast.Assign, ast.AnnAssign)) and all(
                    isinstance(target, ast.Name)
                    for target in getattr(parent, "targets", [getattr(parent, "target", None)])
                )
                if not (plain and place.scope.kind != "class"):
                    yield f"the module {path} may not be passed on; use its members directly"

    def _is_library(self, path: str) -> bool:
        return any(path == p or path.startswith(f"{p}.") for p in self._library)

    def _bad_module(self, path: str) -> Iterator[str]:
        if path == "__future__" or path in names.MODULES or self._is_library(path):
            return
        reason = _reason(path)
        yield f"`{path}` may not be imported{reason}; {_IMPORTABLE}"

    def _bad_path(self, path: str) -> Iterator[str]:
        if self._is_library(path):
            return
        parts = path.split(".")
        module, depth = parts[0], 1
        while depth < len(parts) and f"{module}.{parts[depth]}" in names.MODULES:
            module, depth = f"{module}.{parts[depth]}", depth + 1
        if depth == len(parts) or module not in names.MODULES:
            return  # a module, or an import that is refused where it stands
        member, deeper = f"{module}.{parts[depth]}", parts[depth + 1 :]
        if any(f"{prefix}.".startswith(f"{member}.") for prefix in self._library):
            return
        if not names.MODULES[module].allows(parts[depth]):
            reason = _reason(member)
            yield f"`{member}` may not be used{reason or f': {module} is open only in part'}"
        for name in deeper:
            if name in names.LIBRARY_MUTATORS:
                yield f"imported things may not be changed: {path}"
                break


def _reason(path: str) -> str:
    """What the tables say about a name or the nearest module around it."""
    while path:
        if path in names.REASONS:
            return f": {names.REASONS[path]}"
        path = path.rpartition(".")[0]
    return ""


def _defined(node: ast.AST) -> list[str]:
    """Names that the node defines or passes, other than those in Name nodes."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.arg, ast.keyword)):
        return [node.arg] if node.arg else []
    if isinstance(node, ast.alias):
        return [node.asname] if node.asname else []
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return [node.name] if node.name else []
    if isinstance(node, ast.MatchMapping):
        return [node.rest] if node.rest else []
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    return []


def _one_argument_call(place: Place) -> bool:
    call = place.parent
    return (
        isinstance(call, ast.Call)
        and call.func is place.node
        and len(call.args) == 1
        and not isinstance(call.args[0], ast.Starred)
        and not call.keywords
    )


def _super_init(place: Place) -> bool:
    """Whether the attribute is the ``__init__`` of ``super().__init__``."""
    base = place.node.value
    return (
        place.node.attr == "__init__"
        and isinstance(place.parent, ast.Call)
        and place.parent.func is place.node
        and isinstance(base, ast.Call)
        and isinstance(base.func, ast.Name)
        and base.func.id == "super"
        and not base.args
    )


def _bad_format(receiver: ast.AST) -> Iterator[str]:
    """Format strings can walk attributes: only literal ones without ``.`` and ``[`` may be used."""
    literal = isinstance(receiver, ast.Constant) and isinstance(receiver.value, str)
    if not literal or _walks(receiver.value):
        yield "str.format may walk attributes: use an f-string, or a literal with plain fields"


def _walks(text: str, depth: int = 0) -> bool:
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return False  # format itself will refuse it
    for _, name, spec, _ in fields:
        if name and ("." in name or "[" in name):
            return True
        if spec and (depth > 1 or _walks(spec, depth + 1)):
            return True
    return False
