"""Parsing Python text that somebody else wrote, without harm to the process that parses it."""

from __future__ import annotations

import ast
import re
import warnings

from jaxbench_env import syntax

MAX_BRACKETS = 100
MAX_INDENT = 200
MAX_CHAIN = 1000
MAX_PREFIXES = 50

# One alternative per kind of token, longest first. A string that is never closed ends at its line
# (or, triple-quoted, with the text): the parser will say so.
_TOKEN = re.compile(
    r"""
    (?P<string>(?:'''(?:[^\\]|\\.)*?(?:'''|\Z)) | (?:\"\"\"(?:[^\\]|\\.)*?(?:\"\"\"|\Z))
             | (?:'(?:[^'\\\n]|\\.)*(?:'|$)) | (?:"(?:[^"\\\n]|\\.)*(?:"|$)))
  | (?P<comment>\#[^\n]*)
  | (?P<word>[^\W\d]\w*)
  | (?P<number>[0-9][0-9A-Za-z_.]*)
  | (?P<newline>\\?\n)
  | (?P<open>[(\[{])
  | (?P<close>[)\]}])
  | (?P<end>[,;])
  | (?P<operator>\*\*|//|<<|>>|->|[-+*/%@&|^~<>=!:.]=?)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_OPERATOR_WORDS = {"not", "and", "or", "if", "else", "in", "is", "lambda", "await", "for", "yield"}


def parse(source: str) -> ast.Module:
    """Parses untrusted text.

    Warnings about the text (invalid escapes and the like) are kept quiet. Texts that nest so deep
    that the parser would exhaust the C stack are refused before it sees them.

    Args:
        source: Python source text, of any content and length.

    Raises:
        SyntaxError: For every text that is not Python, whatever the parser itself raises; `msg`
            says what is wrong and `lineno` where, if that is known.
    """
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        raise SyntaxError("the text holds a null byte", (None, line, None, None))
    try:
        source.encode("utf-8")
    except UnicodeEncodeError as error:
        line = source.count("\n", 0, error.start) + 1
        raise SyntaxError("the text is not valid Unicode", (None, line, None, None)) from None
    _refuse_deep(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return syntax.tree(source)
        except SyntaxError:
            raise
        except (RecursionError, MemoryError):
            raise SyntaxError("the text nests too deep for Python's parser") from None
        except (ValueError, OverflowError) as error:
            raise SyntaxError(str(error)) from None


def _refuse_deep(source: str) -> None:
    """Raises SyntaxError where brackets, indentation, prefixes or chains go beyond reason.

    A chain is a row of operators, attributes, subscripts or calls without a comma between
    (``a + b + ...``, ``f()()...``): each one is a level of the syntax tree.
    """
    line, chains, prefixes = 1, [0], 0

    def refuse(what: str) -> None:
        raise SyntaxError(f"the text nests too deep: {what}", (None, line, None, None))

    if re.search(rf"^[ \t\f]{{{MAX_INDENT + 1}}}[ \t\f]*[^\s#]", source, re.MULTILINE):
        refuse(f"a line indented by more than {MAX_INDENT}")
    for token in _TOKEN.finditer(source):
        kind, text = token.lastgroup, token.group()
        operator = kind == "operator" or (kind == "word" and text in _OPERATOR_WORDS)
        if kind in ("comment", "newline"):
            if text == "\n" and len(chains) == 1:
                chains[0] = prefixes = 0
        elif kind == "open":
            chains.append(0)
            prefixes = 0
            if len(chains) > MAX_BRACKETS:
                refuse(f"more than {MAX_BRACKETS} open brackets")
        elif kind == "end":
            chains[-1] = prefixes = 0
        elif operator or kind == "close":
            if kind == "close" and len(chains) > 1:
                chains.pop()
            chains[-1] += 1
            prefixes = prefixes + 1 if operator else 0
            if chains[-1] > MAX_CHAIN:
                refuse(f"more than {MAX_CHAIN} operators in one expression")
            if prefixes > MAX_PREFIXES:
                refuse(f"more than {MAX_PREFIXES} operators in a row")
        else:
            prefixes = 0
        line += text.count("\n")
