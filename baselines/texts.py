"""Kernel texts that ship as files of a package: actions, and no modules."""

from __future__ import annotations

import difflib
from importlib import resources


class NoKernel(KeyError):
    """There is no kernel for that workload."""

    def __str__(self) -> str:
        """The message without the quotes that KeyError adds."""
        return self.args[0]


def ids(package: str) -> tuple[str, ...]:
    """Ids of the workloads that have a kernel in a package, in alphabetical order."""
    names = (file.name for file in resources.files(package).iterdir())
    return tuple(sorted(n.removesuffix(".py") for n in names if n.endswith(".py") and n[0] != "_"))


def source(package: str, workload_id: str) -> str:
    """The text of a workload's kernel in a package.

    Raises:
        NoKernel: A `KeyError` that lists the ids that `ids` knows.
    """
    known = ids(package)
    if workload_id not in known:
        near = difflib.get_close_matches(workload_id, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise NoKernel(f"no kernel for {workload_id!r}; {hint}known ids: {', '.join(known)}")
    return resources.files(package).joinpath(f"{workload_id}.py").read_text("utf-8")
