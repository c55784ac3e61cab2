"""The first fence around a kernel text: what may stand in it at all."""

from jaxbench_env.evaluator.audit.check import MAX_LENGTH, Finding, audit, removed_names

__all__ = ["MAX_LENGTH", "Finding", "audit", "removed_names"]
