"""What a report sets its rows beside: published figures, and kernels by people."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any


@functools.cache
def published() -> dict[str, Any]:
    """The published tables: "methods" and "speedups", with "source" and "compiler".

    Shares are from 0 to 1, speedups are over XLA; what was not published is missing.
    """
    return _read("published.json")


@functools.cache
def kernels() -> dict[str, Any]:
    """Predicted speedups on a v6e: "ours" (baselines/kernels) and "experts" (jax's own kernels).

    Both map ids to "speedup" and "flags", and have "versions", those of the compiler. Written by
    scripts/report_kernels.py and scripts/report_experts.py.
    """
    return _read("kernels.json")


def _read(name: str) -> dict[str, Any]:
    return json.loads((files(__package__) / "data" / name).read_text("utf-8"))
