"""Kernels by people, as they stand in this package: one sample, and no search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from baselines import kernels, library_kernels
from baselines.policy import Candidate, Chain, ChainPolicy
from baselines.proposers.proposer import NotApplicable


@dataclass
class Expert(ChainPolicy):
    """The kernel in `baselines.kernels`, or the finished one that jax ships.

    Attributes:
        library: Whether to take the library's kernel, which exists for the eight workloads with a
            published expert, and which the evaluator allows for this policy alone.
    """

    name: ClassVar[str] = "expert"
    needs_proposer: ClassVar[bool] = False

    library: bool = False

    @property
    def allow_library_kernels(self) -> bool:
        """As in `Policy`."""
        return self.library

    def chains(self) -> Iterable[Chain]:
        """One chain of one sample.

        Raises:
            NotApplicable: If there is no kernel for the workload.
        """
        shelf = library_kernels if self.library else kernels
        try:
            return [self._once(shelf.source(self.episode.workload.id))]
        except KeyError as error:
            raise NotApplicable(str(error)) from None

    def _once(self, source: str) -> Chain:
        yield [Candidate(source, 0)]
