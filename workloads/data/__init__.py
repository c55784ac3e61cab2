"""Facts about the workloads as data: published times, structure, and splits for training."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib.resources import files

from workloads.slices import Cut


@dataclass(frozen=True)
class Published:
    """Published times of one workload on a TPU v6e.

    Attributes:
        baseline_ms: XLA's program, milliseconds, or None where no time was published.
        expert_ms: The hand-tuned kernel, milliseconds, or None.
        note: Why the times may not be comparable.
        zero_weights: Whether all weights of its products were zero when it was measured: a chip
            that multiplies zeros needs less power and keeps its clock.
        compiler: Versions of the compiler with which they were measured.
        source: Where they come from.
    """

    baseline_ms: float | None
    expert_ms: float | None
    note: str
    zero_weights: bool
    compiler: str
    source: str


@dataclass(frozen=True)
class Split:
    """Workloads to train on and workloads to evaluate on, by id.

    Attributes:
        about: What the split is for.
        train: Ids to train on.
        held_out: Ids to evaluate on.
    """

    about: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]


@dataclass(frozen=True)
class Structure:
    """What tests and audits need to know about an operator.

    Attributes:
        causal: Arguments with a sequence axis along which the operator is causal -> their axes.
        contraction: Arguments that are summed over together -> the axis of each. Empty where the
            sum cannot be reordered from outside.
        ineffective: Arguments of which only the ``"mean"``, or ``"nothing"``, matters by the
            operator's mathematics.
        independent: Ways to cut the operator into independent parts (see `workloads.slices`).
    """

    causal: dict[str, tuple[int, ...]]
    contraction: dict[str, int]
    ineffective: dict[str, str]
    independent: tuple[Cut, ...] = ()


@functools.cache
def _read(name: str) -> dict:
    return json.loads((files("workloads.data") / f"{name}.json").read_text())


def published(workload_id: str) -> Published:
    """The published times of a workload; empty for one that has none."""
    table = _read("published")
    row = table["workloads"].get(workload_id, {})
    return Published(
        baseline_ms=row.get("baseline_ms"),
        expert_ms=row.get("expert_ms"),
        note=row.get("note", ""),
        zero_weights=workload_id in table["zero_weights"],
        compiler=table["compiler"],
        source=table["source"],
    )


def structure(workload_id: str) -> Structure:
    """The structure of a workload; empty for one that is not in the table."""
    table = _read("structure")
    causal = table["causal"].get(workload_id, {})
    return Structure(
        causal={name: tuple(axes) for name, axes in causal.items()},
        contraction=table["contraction"].get(workload_id, {}),
        ineffective=table["ineffective"].get(workload_id, {}),
        independent=tuple(Cut(**cut) for cut in table["independent"].get(workload_id, [])),
    )


def splits() -> tuple[str, ...]:
    """Names of the splits."""
    return tuple(_read("splits"))


def split(name: str) -> Split:
    """A split by its name: ``"by_family"`` or ``"within_family"``.

    Raises:
        KeyError: For an unknown name.
    """
    if name not in splits():
        raise KeyError(f"no split {name!r}; there are {', '.join(splits())}")
    record = _read("splits")[name]
    return Split(record["about"], tuple(record["train"]), tuple(record["held_out"]))
