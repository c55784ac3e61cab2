"""Syntax trees, made by one thread at a time.

`ast.parse` counts the depth of the tree in a place that all threads share, before Python 3.11.8 and
3.12.2: where garbage is collected while it builds a tree, another thread may get in between, and
one of them ends with SystemError (https://github.com/python/cpython/issues/106905).
"""

from __future__ import annotations

import ast
import os
import threading

_lock = threading.Lock()


def _after_fork() -> None:
    """The lock may have been held by a thread that a fork does not have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def tree(text: str) -> ast.Module:
    """The syntax tree of Python source text.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: As `ast.parse`.
    """
    with _lock:
        return ast.parse(text)
