"""One Pallas kernel per workload, as text.

The files beside this one are actions and not modules: they read the injected ``CONFIG`` and are
evaluated like any other candidate. Nothing imports them.
"""

from __future__ import annotations

from baselines import texts
from baselines.texts import NoKernel

__all__ = ["NoKernel", "ids", "source"]


def ids() -> tuple[str, ...]:
    """Ids of the workloads that have a kernel, in alphabetical order."""
    return texts.ids(__name__)


def source(workload_id: str) -> str:
    """The text of a workload's kernel.

    Args:
        workload_id: Id of the workload, for example ``"gemm"``.

    Raises:
        NoKernel: A `KeyError` that lists the ids that `ids` knows.
    """
    return texts.source(__name__, workload_id)
