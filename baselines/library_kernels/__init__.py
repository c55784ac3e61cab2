"""The published experts: finished kernels that jax ships, adapted to eight workloads, as text.

The files beside this one import `jax.experimental.pallas.ops.tpu` and have tunables as those of
`baselines.kernels` do. The evaluator takes them only with ``allow_library_kernels=True``. Nothing
imports them.
"""

from __future__ import annotations

from baselines import texts
from baselines.texts import NoKernel

__all__ = ["NoKernel", "ids", "source"]


def ids() -> tuple[str, ...]:
    """Ids of the workloads that have a published expert, in alphabetical order."""
    return texts.ids(__name__)


def source(workload_id: str) -> str:
    """The text of a workload's published expert.

    Args:
        workload_id: Id of the workload, for example ``"gemm"``.

    Raises:
        NoKernel: A `KeyError` that lists the ids that `ids` knows.
    """
    return texts.source(__name__, workload_id)
