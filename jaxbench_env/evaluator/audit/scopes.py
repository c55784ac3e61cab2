"""Which name means what, in a text that is only read and never run.

The analysis follows Python's scoping rules and no control flow: a name stands for everything that
is ever bound to it in its scope, so that what it may mean is never missed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_ROUNDS = 20
MAX_MEANINGS = 50

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(eq=False)
class Scope:
    """One module, function, lambda, comprehension or class body.

    Attributes:
        kind: ``"module"``, ``"function"``, ``"comprehension"`` or ``"class"``.
        parent: The scope around it.
        bound: Names that are bound in it.
        aliases: Name -> dotted paths of the imported things that it may stand for.
        this: First parameter, if it is a method.
        others: Name -> whether it is bound to something other than a new instance of a class of
            the text itself.
    """

    kind: str
    parent: Scope | None = None
    bound: set[str] = field(default_factory=set)
    aliases: dict[str, set[str]] = field(default_factory=dict)
    this: str | None = None
    others: dict[str, bool] = field(default_factory=dict)
    global_names: set[str] = field(default_factory=set)
    nonlocal_names: set[str] = field(default_factory=set)

    def around(self) -> Iterator[Scope]:
        """The scopes in which a name used here is looked up, innermost first."""
        yield self
        scope = self.parent
        while scope is not None:
            if scope.kind != "class":  # methods do not see the names of the class body
                yield scope
            scope = scope.parent

    def owner(self, name: str) -> Scope | None:
        """The scope whose binding a use of the name here means; None for builtins."""
        scopes = list(self.around())
        for scope in scopes:
            if name in scope.global_names:
                break
            if name in scope.bound and name not in scope.nonlocal_names:
                return scope
        return scopes[-1] if name in scopes[-1].bound else None


@dataclass(frozen=True)
class Place:
    """A node of the syntax tree with its parent and the scope in which it is evaluated."""

    node: ast.AST
    parent: ast.AST | None
    scope: Scope


class Scopes:
    """The scopes of one module, and every node in its place.

    Attributes:
        module: The outermost scope.
        places: All nodes, outer ones before inner ones.
        settled: False if aliases of aliases went on for more than ``MAX_ROUNDS``, or one name has
            more than ``MAX_MEANINGS``.
    """

    def __init__(self, tree: ast.Module):
        self.module = Scope("module")
        self.places: list[Place] = []
        self._bindings: list[tuple[Scope, str, ast.AST, ast.AST | None]] = []
        self._imports: list[tuple[Scope, str, str]] = []
        self._collect(tree)
        self._bind()
        self.settled = self._follow_aliases()

    def paths(self, node: ast.AST, scope: Scope) -> set[str]:
        """Dotted paths of the imported things that ``name`` or ``name.attr...`` may stand for."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return set()
        roots = self._aliases(node.id, scope)
        return {".".join([root, *reversed(attributes)]) for root in roots}

    def imported(self) -> set[str]:
        """Paths of everything that is imported, by whatever name."""
        return {path for _, _, path in self._imports}

    def _aliases(self, name: str, scope: Scope) -> set[str]:
        owner = scope.owner(name)
        if owner is None:
            return set()
        found = owner.aliases.get(name, set())
        if owner.kind == "class" and owner.parent is not None:
            # Before its binding, a name in a class body still means the one outside.
            found = found | self._aliases(name, owner.parent)
        return found

    def _collect(self, tree: ast.Module) -> None:
        stack: list[Place] = [Place(tree, None, self.module)]
        while stack:
            place = stack.pop()
            self.places.append(place)
            self._record(place)
            stack.extend(reversed(list(self._children(place))))

    def _children(self, place: Place) -> Iterator[Place]:
        node, scope = place.node, place.scope
        inner = scope
        outside: list[ast.AST | None] = []
        if isinstance(node, _FUNCTIONS):
            inner = Scope("function", scope)
            arguments = node.args
            outside = [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            if scope.kind == "class" and every:
                inner.this = every[0].arg
            if not isinstance(node, ast.Lambda):
                outside += [*node.decorator_list, node.returns, *_type_parameters(node)]
        elif isinstance(node, ast.ClassDef):
            inner = Scope("class", scope)
            outside = [*node.bases, *node.keywords, *node.decorator_list]
            outside += _type_parameters(node)
        elif isinstance(node, _COMPREHENSIONS):
            inner = Scope("comprehension", scope)
            outside = [node.generators[0].iter]
        elif isinstance(node, ast.arg) and scope.parent is not None:
            inner = scope.parent  # annotations are evaluated where the function is defined
        for child in _parts(node):
            if any(child is other for other in outside):
                yield Place(child, node, scope)
            else:
                yield Place(child, node, inner)

    def _record(self, place: Place) -> None:
        node, scope = place.node, place.scope
        bind = self._bindings.append
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            value = _assigned_value(node, place.parent)
            if isinstance(place.parent, ast.NamedExpr):
                while scope.kind == "comprehension" and scope.parent is not None:
                    scope = scope.parent
            bind((scope, node.id, node, value))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bind((scope, node.name, node, None))
        elif isinstance(node, ast.arg):
            bind((scope, node.arg, node, None))
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            bind((scope, node.name, node, None))
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bind((scope, node.rest, node, None))
        elif isinstance(node, ast.Global):
            scope.global_names.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            scope.nonlocal_names.update(node.names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            prefix = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name, path = alias.asname, prefix + alias.name
                if name is None:
                    name = alias.name if prefix else alias.name.split(".")[0]
                    bound_path = path if prefix else name
                else:
                    bound_path = path
                self._imports += [(scope, name, path)]
                bind((scope, name, node, None))
                scope.aliases.setdefault(name, set()).add(bound_path)

    def _bind(self) -> None:
        for scope, name, _, _ in self._bindings:
            if name in scope.global_names:
                self.module.bound.add(name)
            elif name not in scope.nonlocal_names:
                scope.bound.add(name)
        classes = {n for _, n, node, _ in self._bindings if isinstance(node, ast.ClassDef)}
        classes -= {n for _, n, node, _ in self._bindings if not isinstance(node, ast.ClassDef)}
        for scope, name, _, value in self._bindings:
            owner = scope.owner(name) or self.module
            new = (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Name)
                and value.func.id in classes
            )
            owner.others[name] = owner.others.get(name, False) or not new
            if owner is not scope and name in scope.aliases:  # an import under global or nonlocal
                owner.aliases.setdefault(name, set()).update(scope.aliases[name])

    def _follow_aliases(self) -> bool:
        assigned = [(s, n, v) for s, n, _, v in self._bindings if v is not None]
        for _ in range(MAX_ROUNDS):
            changed = False
            for scope, name, value in assigned:
                found = self.paths(value, scope)
                if found:
                    owner = scope.owner(name) or self.module
                    known = owner.aliases.setdefault(name, set())
                    changed |= not found <= known
                    known |= found
                    if len(known) > MAX_MEANINGS:
                        return False
            if not changed:
                return True
        return False


def _type_parameters(node: ast.AST) -> list[ast.AST]:
    """``[T: bound]`` of Python 3.12: evaluated outside of the function or class."""
    return getattr(node, "type_params", [])


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The children, with a function's arguments taken apart: defaults belong elsewhere."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.arguments):
            yield from ast.iter_child_nodes(child)
        elif isinstance(child, ast.comprehension) and isinstance(node, _COMPREHENSIONS):
            yield from ast.iter_child_nodes(child)
        else:
            yield child


def _assigned_value(name: ast.Name, parent: ast.AST | None) -> ast.AST | None:
    """The right-hand side, where the name alone is what is assigned to."""
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        return parent.value
    return None
