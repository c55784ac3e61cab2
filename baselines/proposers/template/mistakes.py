"""Mistakes as people and models make them, put into a kernel text that is right.

Each is a real edit of the text, and the text then really fails: removed names, calls of another
version, wrong block shapes, lost sums. A mistake that a text offers no place for cannot be made.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jaxbench_env import syntax


@dataclass(frozen=True)
class Mistake:
    """One way to go wrong.

    Attributes:
        name: Its name.
        kind: ``"api"``, ``"layout"``, ``"unsupported"``, ``"signature"`` or ``"numerics"``.
        edits: Finds what to replace: pairs of a node of the text and what stands there instead.
            Nothing, where the text has no place for it.
    """

    name: str
    kind: str
    edits: Callable[[ast.Module, str], list[tuple[ast.AST, str]]]

    def make(self, text: str) -> str | None:
        """The text with the mistake; None if it has no place for it."""
        edits = self.edits(syntax.tree(text), text)
        wrong = _edited(text, edits)
        return wrong if wrong != text else None


def made(names: tuple[str, ...], text: str) -> str:
    """The text with the mistakes of those names; those without a place are left out."""
    for name in names:
        text = BY_NAME[name].make(text) or text
    return text


def possible(text: str) -> list[str]:
    """Names of the mistakes that a text has a place for."""
    return [mistake.name for mistake in MISTAKES if mistake.make(text) is not None]


def _edited(text: str, edits: list[tuple[ast.AST, str]]) -> str:
    """The text with nodes replaced; the last ones first, so that places stay right."""
    data = text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, new in sorted(edits, key=lambda e: (e[0].lineno, e[0].col_offset), reverse=True):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        data = data[:start] + new.encode() + data[end:]
    return data.decode()


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a name such as ``pl.BlockSpec``, in the order of the text."""
    found = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == name)
    return iter(sorted(found, key=lambda node: (node.lineno, node.col_offset)))


def _renamed(old: str, new: str) -> Callable[[ast.Module, str], list[tuple[ast.AST, str]]]:
    """A name in all places."""

    def edits(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
        nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute))
        return [(node, new) for node in nodes if ast.unparse(node) == old]

    return edits


def _keyword(call: str, old: str, new: str) -> Callable[[ast.Module, str], list]:
    """The keyword of a call."""

    def edits(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
        for node in _calls(tree, call):
            for keyword in node.keywords:
                if keyword.arg == old:
                    return [(keyword, f"{new}={_text(text, keyword.value)}")]
        return []

    return edits


def _text(text: str, node: ast.AST) -> str:
    return ast.get_source_segment(text, node) or ""


def _specs(tree: ast.Module) -> Iterator[tuple[ast.Tuple, ast.Lambda]]:
    """Shape and index map of the block specs that are written out."""
    for call in _calls(tree, "pl.BlockSpec"):
        if len(call.args) == 2:
            shape, index_map = call.args
            if isinstance(shape, ast.Tuple) and isinstance(index_map, ast.Lambda):
                yield shape, index_map


def _swapped_spec(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for shape, index_map in _specs(tree):
        return [(shape, _text(text, index_map)), (index_map, _text(text, shape))]
    return []


def _short_index(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for _, index_map in _specs(tree):
        if isinstance(index_map.body, ast.Tuple) and len(index_map.body.elts) > 1:
            kept = ", ".join(_text(text, e) for e in index_map.body.elts[:-1])
            return [(index_map.body, f"({kept},)")]
    return []


def _extra_parameter(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for _, index_map in _specs(tree):
        parameters = ast.unparse(index_map.args)
        body = _text(text, index_map.body)
        body = f"({body})" if isinstance(index_map.body, ast.Tuple) and body[0] != "(" else body
        return [(index_map, f"lambda unused, {parameters}: {body}")] if parameters else []
    return []


def _odd_block(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    """Blocks of a size that is no multiple of a tile, where the kernel chooses them."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "_block" and len(node.args.args) == 2:
            last = node.body[-1]
            if isinstance(last, ast.Return) and last.value is not None:
                return [(last.value, f"{node.args.args[1].arg} - 4")]
    return []


def _reads(tree: ast.Module) -> Iterator[ast.Subscript]:
    """Reads of whole blocks, such as ``x_ref[...]``."""
    for node in ast.walk(tree):
        whole = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if whole and node.slice.value is ... and isinstance(node.ctx, ast.Load):
            yield node


def _stores(tree: ast.Module) -> Iterator[ast.Assign]:
    """Stores to a block of an output."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            name = ast.unparse(node.targets[0].value)
            if name.startswith(("out", "o_")) and name.endswith("ref"):
                yield node


def _old_load(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for node in _reads(tree):
        return [(node, f"pl.load({_text(text, node.value)}, (slice(None), slice(None)))")]
    return []


def _sorted_store(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for node in _stores(tree):
        return [(node.value, f"jnp.sort({_text(text, node.value)}, axis=-1)")]
    return []


def _doubled_store(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for node in _stores(tree):
        return [(node.value, f"2 * ({_text(text, node.value)})")]
    return []


def _lost_sum(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            if isinstance(node.op, ast.Add):
                new = f"{_text(text, node.target)} = {_text(text, node.value)}"
                return [(node, new)]
    return []


def _short_grid(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "grid"
            and isinstance(node.value, ast.Tuple)
        ):
            for element in node.value.elts:
                if isinstance(element, ast.BinOp):
                    return [(element, f"{_text(text, element)} - 1")]
    return []


def _float32_result(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for node in _calls(tree, "jax.ShapeDtypeStruct"):
        if len(node.args) == 2:
            return [(node.args[1], "jnp.float32")]
    return []


_OTHERS = {
    "jnp.mean": "jnp.sum",
    "lax.rsqrt": "jnp.sqrt",
    "jax.lax.rsqrt": "jnp.sqrt",
    "jnp.exp": "jnp.exp2",
    "jnp.maximum": "jnp.minimum",
    "jnp.tanh": "jnp.sin",
}


def _other_function(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for old, new in _OTHERS.items():
        for node in _calls(tree, old):
            return [(node.func, new)]
    return []


def _old_dot(tree: ast.Module, text: str) -> list[tuple[ast.AST, str]]:
    for node in _calls(tree, "jnp.dot"):
        return [(node.func, "pl.dot")]
    return []


MISTAKES = (
    Mistake(
        "old compiler parameters",
        "api",
        _renamed("pltpu.CompilerParams", "pltpu.TPUCompilerParams"),
    ),
    Mistake("old memory space", "api", _renamed("pltpu.VMEM", "pltpu.TPUMemorySpace.VMEM")),
    Mistake("old load", "api", _old_load),
    Mistake("old dot", "api", _old_dot),
    Mistake("block spec of old", "api", _swapped_spec),
    Mistake("misspelt keyword", "api", _keyword("pl.pallas_call", "out_specs", "out_spec")),
    Mistake("extra parameter of an index map", "api", _extra_parameter),
    Mistake("index map one short", "api", _short_index),
    Mistake("odd block", "layout", _odd_block),
    Mistake("sort in the kernel", "unsupported", _sorted_store),
    Mistake("float32 result", "signature", _float32_result),
    Mistake("grid one short", "numerics", _short_grid),
    Mistake("lost sum", "numerics", _lost_sum),
    Mistake("other function", "numerics", _other_function),
    Mistake("doubled result", "numerics", _doubled_store),
)

BY_NAME = {mistake.name: mistake for mistake in MISTAKES}
