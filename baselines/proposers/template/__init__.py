"""A stand-in for a model: kernels of this package with other tunables, and with mistakes."""

from baselines.proposers.template.proposer import TemplateProposer

__all__ = ["TemplateProposer"]
