"""What is told about a workload, under a budget.

All that can be told are sections: the chip, the rules, the names of the API, and kernels of the
project as examples. If they fit the budget, all are used. Otherwise they are taken by relevance
until the budget is full; what does not fit is passed over for the next one that does.

Relevance comes from the workload's reference: the primitives in its jaxpr say which topics matter
(`TOPICS`), and how much an example is like it (the share of primitives in common). What every
kernel needs comes before what few need.

No example is of the workload's own family (`Workload.family`: attention, matmul, moe, norm, loss,
scan, conv, pair): fused sequences that begin with a matrix product are of the family matmul, as
gemm is, so that none of them shows the solution of another. For the same reason none is of a
workload whose reference has the very same primitives (ragged_dot and gemm).
"""

from __future__ import annotations

import ast
import functools
import os
from dataclasses import dataclass

import jax

import workloads
from baselines import kernels
from baselines.context import chips, reference
from baselines.context.rules import rules
from jaxbench_env import syntax
from workloads import Workload, jaxprs

BUDGET = 30_000

KINDS = ("chip", "rules", "api", "examples")
_TITLES = {
    "chip": "## The chip",
    "rules": "## Rules (each was tried with the installed compiler)",
    "api": "## API (pl is jax.experimental.pallas, pltpu is jax.experimental.pallas.tpu)",
    "examples": "## Kernels for other operators",
}

# Between the sections of a kind.
_BREAKS = {"chip": "\n", "rules": "\n", "api": "\n", "examples": "\n\n"}

TOPICS = {
    "products": {"dot_general", "conv_general_dilated", "ragged_dot_general"},
    "indices": {"gather", "scatter", "dynamic_slice", "dynamic_update_slice", "top_k", "sort"},
    "scans": {"cumsum", "scan", "while", "cumprod", "cummax"},
}
"""Topic -> primitives of a reference that make it matter."""

# What is in every jaxpr says nothing about likeness.
_COMMON = frozenset("add sub mul div convert_element_type broadcast_in_dim reshape jit".split())


@dataclass(frozen=True)
class Section:
    """A part of the context.

    Attributes:
        kind: One of `KINDS`.
        name: What it is of.
        text: What is told.
        relevance: How much it matters for the workload; larger comes first.
    """

    kind: str
    name: str
    text: str
    relevance: float

    @property
    def size(self) -> int:
        """Bytes, with the line breaks after it."""
        return len(self.text.encode()) + len(_BREAKS[self.kind])


def context_for(workload: str | Workload, budget_bytes: int = BUDGET, target: str = "v6e") -> str:
    """What a policy is told about kernels for a workload, beside the task itself.

    Args:
        workload: A workload, or its id, number or upstream name, or the path of its file.
        budget_bytes: Length of the text in bytes (UTF-8), at most.
        target: The chip.

    Returns:
        Markdown; the same for the same arguments, installed jax and kernels.

    Raises:
        UnknownWorkload: If there is no such workload.
        ValueError: For an unknown target or a negative budget.
    """
    return text_of(select(sections(workload, target), budget_bytes))


def sections(workload: str | Workload, target: str = "v6e") -> tuple[Section, ...]:
    """All that could be told about a workload (or the one of that id), the most relevant first.

    Raises:
        UnknownWorkload: If there is no such workload.
        ValueError: For an unknown target.
    """
    if not isinstance(workload, Workload):
        workload = workloads.get(os.fspath(workload))
    primitives = _primitives(workload)
    topics = {topic for topic, of in TOPICS.items() if primitives & of}
    found = [Section("chip", target, chips.describe(target), 10.0)]
    found += [
        Section("rules", rule.name, f"- {rule.text}", 5 + _weight(rule.about, topics))
        for rule in rules()
    ]
    found += [
        Section("api", e.name, f"- {e.text}", 6.0 if e.core else 3.5 + _weight(e.topic, topics))
        for e in reference.entries()
    ]
    found += _examples(workload, primitives)
    return tuple(sorted(found, key=lambda section: -section.relevance))


def _weight(topic: str, topics: set[str]) -> float:
    """What a topic adds to relevance: some if it is the workload's, less if it is another's."""
    if topic == "copies":  # any kernel may make some, and most do not
        return -1.0
    if not topic:
        return 0.0
    return 0.5 if topic in topics else -2.0


def _examples(workload: Workload, primitives: frozenset[str]) -> list[Section]:
    """Kernels of other families; the two most similar ones are lifted above what few need."""
    found = []
    for name in kernels.ids():
        other = workloads.get(name)
        if other.family == workload.family:
            continue
        theirs = _primitives(other)
        if theirs == primitives:
            continue
        likeness = len(primitives & theirs) / len(primitives | theirs)
        text = f"### {other.id}: {other.summary}\n```python\n{_shortened(kernels.source(name))}```"
        found.append(Section("examples", other.id, text, likeness))
    found.sort(key=lambda section: -section.relevance)
    # The first two stand before what few kernels need, the others after everything else.
    lifts = (4.0, 2.0)
    return [
        Section(s.kind, s.name, s.text, s.relevance + (lifts[i] if i < len(lifts) else 0.0))
        for i, s in enumerate(found)
    ]


@functools.cache
def _primitives(workload: Workload) -> frozenset[str]:
    """Primitives of the reference at the smallest preset, without those that all have."""
    preset = min(workload.presets.values(), key=lambda p: p.nbytes)
    specs = [jax.ShapeDtypeStruct(s.shape, s.dtype) for s in preset.args.values()]
    traced = jax.make_jaxpr(lambda *arrays: workload.reference(preset.config, *arrays))(*specs)
    return frozenset(e.primitive.name for e in jaxprs.walk(traced.jaxpr)) - _COMMON


def _shortened(source: str) -> str:
    """A kernel's text without what only a tuner reads."""
    lines, cut = source.splitlines(keepends=True), set()
    for node in syntax.tree(source).body:
        named = {t.id for t in getattr(node, "targets", ()) if isinstance(t, ast.Name)}
        if "TUNABLES" in named or getattr(node, "name", "") == "constraints":
            cut |= set(range(node.lineno - 1, node.end_lineno))
    kept = [line for i, line in enumerate(lines) if i not in cut]
    text = "".join(kept)
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    return text


def select(found: tuple[Section, ...], budget_bytes: int) -> tuple[Section, ...]:
    """The sections to use, in the order of the text.

    Args:
        found: All sections, the most relevant first.
        budget_bytes: Bytes of the text, at most.

    Raises:
        ValueError: For a negative budget.
    """
    if budget_bytes < 0:
        raise ValueError(f"a budget is a number of bytes, at least 0, not {budget_bytes}")
    # Kinds stand two line breaks apart and the text ends with one.
    chosen, used, kinds = [], -1, set()
    for section in found:
        title = 0
        if section.kind not in kinds:
            title = len(_TITLES[section.kind].encode()) + 3 - len(_BREAKS[section.kind])
        if used + section.size + title <= budget_bytes:
            chosen.append(section)
            used += section.size + title
            kinds.add(section.kind)
    return tuple(sorted(chosen, key=lambda section: KINDS.index(section.kind)))


def text_of(chosen: tuple[Section, ...]) -> str:
    """The text of sections that stand in the order of `select`."""
    parts = []
    for kind in KINDS:
        texts = [section.text for section in chosen if section.kind == kind]
        if texts:
            parts.append(f"{_TITLES[kind]}\n{_BREAKS[kind].join(texts)}")
    return "\n\n".join(parts) + "\n" if parts else ""
