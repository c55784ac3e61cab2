"""Python source out of what a language model answered."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from jaxbench_env.evaluator.audit.parse import parse

MAX_PARSED = 200_000
MAX_DEPTH = 4
MAX_CLOSERS = 6
MAX_TRIES = 40

_FENCE = re.compile(r"(?P<indent>[ \t>]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>[^\n]*?)[ \t]*$")
_LATE_FENCE = re.compile(r"[^`]*[^`\s][ \t]*(?P<mark>```)(?P<info>python3?|py)[ \t]*$", re.I)
_DEFINES = re.compile(
    r"^(?:def[ \t]+workload\b|workload[ \t]*(?::[^=\n]*)?=(?!=)"
    r"|from[ \t]+[\w.]+[ \t]+import[ \t][^\n]*\bworkload\b)",
    re.M,
)
# Lines that are hardly prose, and lines with which code may begin if it does so further down.
_CODE = re.compile(
    r"import[ \t]+[\w.]+([ \t]+as[ \t]+\w+)?(,[ \t]*[\w.]+)*[ \t]*(#.*)?$"
    r"|from[ \t]+[\w.]+[ \t]+import[ \t]+[\w(*]"
    r"|(async[ \t]+)?def[ \t]+\w+[ \t]*[(\[]|class[ \t]+\w+[ \t]*[:(\[]|@\w+"
)
_PERHAPS_CODE = re.compile(r"\w+[ \t]*(:[ \t]*[\w.\[\], |]+)?=[^=]|[rRuU]?(\"\"\"|''')|#(?!#)")
_TAG = r"(?:(?<![\"'`])<{0}>|<{0}>(?![\"'`]))"  # one between quotes is only talked about
_WORDS = "(?:think|thinking|reasoning)"
_REASONING_END = re.compile(_TAG.format("/" + _WORDS))
_REASONING = re.compile(rf"{_TAG.format(_WORDS)}.*?(?:{_REASONING_END.pattern}|\Z)", re.S)
_OTHER_LANGUAGES = frozenset(
    "bash sh shell zsh console terminal text txt plaintext output log json jsonl yaml yml toml "
    "markdown md diff patch mlir llvm hlo c cpp c++ cuda rust math latex tex mermaid html "
    "xml".split()
)
_STATEMENTS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AugAssign,
    ast.For,
    ast.While,
    ast.If,
    ast.With,
    ast.Try,
)


@dataclass(frozen=True)
class _Block:
    """One fenced block: the first word after its fence, and its text without the fences."""

    language: str
    text: str


def extract_source(answer: str) -> str:
    r"""Takes the kernel's source out of a model's answer.

    - An answer that is Python and defines ``workload`` is the source.
    - Reasoning (``<think>...</think>``, also without its beginning, or its end) is dropped.
    - Of fenced blocks (backticks or tildes, any info string, indented or not, nested, the last
      one perhaps unclosed) the last one that defines ``workload`` is taken: a model that corrects
      itself does so further down. If names that it uses are defined in other blocks (an
      "imports" block, a "helpers" block), those blocks come along, earlier ones before it and,
      for what no earlier one defines, later ones after it.
    - If no block defines ``workload``, all Python blocks are joined in their order: the answer is
      likely cut off, and the evaluator's message should be about what is there.
    - Without fences, lines of prose before and after the code are dropped.

    A text that was cut off is kept as far as it goes. Line ends become ``\n``, blank lines around
    the source are dropped, and it ends with one line end.

    Args:
        answer: The model's answer, any string.

    Returns:
        The source, or an empty string for an answer without code. Never raises.
    """
    text = answer.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    tree = _parsed(text)
    if tree is not None and _is_code(tree) and _DEFINES.search(text):
        return _tidy(text)
    text = _without_reasoning(text)
    blocks = [block for block in _blocks(text.split("\n")) if block.text.strip()]
    if blocks:
        return _tidy(_choose(blocks))
    return _tidy(_unfenced(text))


def _tidy(source: str) -> str:
    lines = source.rstrip().split("\n")
    while lines and not lines[0].strip():
        del lines[0]
    return "\n".join(lines) + "\n" if lines else ""


def _parsed(text: str) -> ast.Module | None:
    if len(text) > MAX_PARSED:
        return None
    try:
        return parse(text)
    except SyntaxError:
        return None


def _is_code(tree: ast.Module) -> bool:
    """Whether it does something: "Sorry" is a valid Python expression too."""
    return any(isinstance(statement, _STATEMENTS) for statement in tree.body)


def _without_reasoning(text: str) -> str:
    text = _REASONING.sub("", text)
    ends = list(_REASONING_END.finditer(text))  # the beginning stood in the prompt
    return text[ends[-1].end() :] if ends else text


def _blocks(lines: list[str], depth: int = 0) -> Iterator[_Block]:
    """The fenced blocks of a text, those inside blocks of other text included."""
    at = 0
    while at < len(lines):
        fence = _opening(lines[at])
        if fence is None:
            at += 1
            continue
        end = _closing(lines, at, fence)
        inside = _strip_indent(lines[at + 1 : end], _width(fence))
        if end == len(lines) and inside and not _FENCE.match(inside[-1]):
            # The closing fence may stand at the end of the last line of code.
            inside[-1] = inside[-1].rstrip().removesuffix(fence["mark"])
        language = _language(fence["info"])
        nested = next(
            (i for i, line in enumerate(inside) if (f := _opening(line)) and f["info"]), None
        )
        if nested is None or depth >= MAX_DEPTH or _parsed("\n".join(inside)) is not None:
            yield _Block(language, "\n".join(inside))
        else:
            # A document that holds blocks, or a block whose end was forgotten before the next.
            if language not in _OTHER_LANGUAGES:
                yield _Block(language, "\n".join(inside[:nested]))
            yield from _blocks(inside[nested:], depth + 1)
        at = end + 1


def _opening(line: str) -> re.Match[str] | None:
    fence = _FENCE.match(line) or _LATE_FENCE.match(line)
    if fence is None or (fence["mark"][0] == "`" and "`" in fence["info"]):
        return None
    return fence


def _width(fence: re.Match[str]) -> int:
    return len(fence.groupdict().get("indent") or "")


def _language(info: str) -> str:
    words = re.split(r"[\s,:={]+", info.strip().lstrip("{.").lower(), maxsplit=1)
    return words[0]


def _closing(lines: list[str], start: int, opening: re.Match[str]) -> int:
    """Index of the line that closes the block, or the number of lines if none does.

    The first closing fence after which the block is valid Python (a docstring may hold fences
    itself); if there is none, the one that matches when nested fences are counted.
    """
    mark, indent = opening["mark"], _width(opening)
    depth, counted, tried = 0, len(lines), 0
    for at in range(start + 1, len(lines)):
        fence = _FENCE.match(lines[at])
        if not fence or fence["mark"][0] != mark[0] or len(fence["mark"]) < len(mark):
            continue
        if fence["info"]:
            depth += "`" not in fence["info"]
            continue
        if depth == 0 and counted == len(lines):
            counted = at
        depth = max(depth - 1, 0)
        if tried < MAX_CLOSERS and _width(fence) < indent + 4:
            tried += 1
            tree = _parsed("\n".join(_strip_indent(lines[start + 1 : at], indent)))
            if tree is not None and (_is_code(tree) or at == counted):
                return at
        if tried >= MAX_CLOSERS and counted < len(lines):
            break
    return counted


def _strip_indent(lines: list[str], width: int) -> list[str]:
    """Takes away the fence's own indentation, and what all lines have in common beyond it."""
    full = [line for line in lines if line.strip(" \t>")]
    width = min([width, *(len(line) - len(line.lstrip(" \t>")) for line in full)])
    lines = [line[width:] for line in lines]
    if full and full[0][width : width + 1] in (" ", "\t"):
        lines = textwrap.dedent("\n".join(lines)).split("\n")
    return lines


def _choose(blocks: list[_Block]) -> str:
    defining = [i for i, block in enumerate(blocks) if _DEFINES.search(block.text)]
    if not defining:
        return "\n\n".join(
            block.text.strip("\n") for block in blocks if block.language not in _OTHER_LANGUAGES
        )
    chosen = defining[-1]
    parts = {chosen: blocks[chosen].text}
    bound, missing = _names(blocks[chosen].text)
    others = [*range(chosen - 1, -1, -1), *range(chosen + 1, len(blocks))]
    for i in others:
        binds, needs = _names(blocks[i].text)
        if binds & missing:
            parts[i] = blocks[i].text
            bound |= binds
            missing = (missing | needs) - bound
    return "\n\n".join(parts[i].strip("\n") for i in sorted(parts))


def _names(source: str) -> tuple[set[str], set[str]]:
    """Names that a block binds at its top level, and names that it uses and binds nowhere."""
    tree = _parsed(source)
    if tree is None:
        return set(), set()
    everywhere, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else everywhere).add(node.id)
        elif isinstance(node, ast.arg):
            everywhere.add(node.arg)
        else:
            everywhere |= _bound_by(node)
    top = set()
    for statement in tree.body:
        top |= _bound_by(statement)
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            top |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)} & everywhere
    return top, used - everywhere - set(vars(builtins)) - {"CONFIG"}


def _bound_by(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return set()


def _unfenced(text: str) -> str:
    """The code in a text without fences: prose before its first and after its last line goes."""
    tree = _parsed(text)
    if tree is not None:
        return text if _is_code(tree) else ""
    lines = text.split("\n")
    code = [i for i, line in enumerate(lines) if _CODE.match(line)]
    if not code and not _DEFINES.search(text):
        return ""
    starts = [i for i, li in enumerate(lines) if _CODE.match(li) or _PERHAPS_CODE.match(li)]
    tries = MAX_TRIES
    for start in starts:
        end = len(lines)
        while tries > 0:
            tries -= 1
            found = "\n".join(lines[start:end])
            wrong = _first_error(found)
            if wrong is None:
                if _DEFINES.search(found) or not _DEFINES.search(text):
                    return found
                break
            end = start + wrong
            if wrong == 0:
                break
            if lines[end][:1] in ("", " ", "\t", ")", "]", "}") or _CODE.match(lines[end]):
                # Not prose: an error inside the code, or the place where it was cut off.
                if start in code:
                    return "\n".join(lines[start:])
                break
    return "\n".join(lines[(code or starts)[0] :])


def _first_error(text: str) -> int | None:
    """Index of the line at which the parser gives up, None if it does not."""
    if len(text) > MAX_PARSED:
        return 0
    try:
        parse(text)
    except SyntaxError as error:
        return min(max((error.lineno or 1) - 1, 0), text.count("\n"))
    return None
