"""Which workloads there are."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from collections.abc import Iterator

from workloads.workload import Workload

_WORKLOADS: dict[str, Workload] = {}


class UnknownWorkload(KeyError):
    """No workload of that name is registered."""

    def __str__(self) -> str:
        """The message without the quotes that KeyError adds."""
        return self.args[0]


def register(workload: Workload) -> Workload:
    """Adds a workload. One from a file takes the place of an older one from the same file.

    Raises:
        ValueError: If the id is taken.
    """
    known = _WORKLOADS.get(workload.id)
    if known and not (known.file and workload.file and known.file.path == workload.file.path):
        message = f"workload {workload.id!r} is registered already"
        if workload.file:
            owner = known.file.path if known.file else "the suite"
            message += f" by {owner}; give CONFIG another 'name' in {workload.file.path}"
        raise ValueError(message)
    _WORKLOADS[workload.id] = workload
    return workload


def get(name: str | os.PathLike[str], variant: str = "default") -> Workload:
    """Finds a workload by its id (``"mamba2_scan"``), upstream name, number (``"16p"``) or file.

    Args:
        name: The name, or a path that ends in ``.py``: see `workloads.load`.
        variant: ``"published"`` gives the published form of the few operators whose default form
            is repaired; for all others both are the same.

    Raises:
        UnknownWorkload: With the nearest known id.
        WorkloadFileError: If the file does not define a workload.
        ValueError: For an unknown variant.
    """
    if variant not in ("default", "published"):
        raise ValueError(f"unknown variant {variant!r}; it is 'default' or 'published'")
    name = os.fspath(name)
    if name.endswith(".py"):
        from workloads.from_file import load

        return load(name)
    found = _find(name)
    if variant == "published" and found.published_reference is not None:
        return _published(found)
    return found


@functools.cache
def _published(workload: Workload) -> Workload:
    """The published form of a repaired workload, the same object every time."""
    reference = workload.published_reference
    return dataclasses.replace(workload, reference=reference, variant="published")


def _find(name: str) -> Workload:
    found = _WORKLOADS.get(name)
    if found is not None:
        return found
    for workload in _WORKLOADS.values():
        if name in workload.names or name == workload.upstream_name:
            return workload
    near = difflib.get_close_matches(name, _WORKLOADS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known ids: {', '.join(_WORKLOADS)}"
    raise UnknownWorkload(f"no workload {name!r}; {hint}")


def ids() -> tuple[str, ...]:
    """All ids, in the order of the published tables; those from files come last."""
    return tuple(w.id for w in sorted(_WORKLOADS.values(), key=_table_order))


def every() -> Iterator[Workload]:
    """All workloads, in the order of the published tables."""
    return (get(name) for name in ids())


def _table_order(workload: Workload) -> tuple[int, str]:
    digits = "".join(c for c in workload.number if c.isdigit())
    return (int(digits or 1_000_000), workload.id)
