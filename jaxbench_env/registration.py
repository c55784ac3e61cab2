"""Registers ``JAXBench/<id>`` with Gymnasium."""

from __future__ import annotations

import gymnasium

import workloads


def register_all() -> None:
    """Registers every workload by its id and its published names, and the suite of all of them."""
    for workload in workloads.every():
        register(workload)
    _register("suite", "jaxbench_env.env:SuiteEnv", {})


def register(workload: workloads.Workload) -> None:
    """Registers ``JAXBench/mamba2_scan``, ``JAXBench/16p_Mamba2_SSD``, ``JAXBench/16p``."""
    for name in workload.names:
        _register(name, "jaxbench_env.env:KernelEnv", {"workload": workload.id})


def _register(name: str, entry_point: str, kwargs: dict[str, str]) -> None:
    if f"JAXBench/{name}" not in gymnasium.registry:
        gymnasium.register(id=f"JAXBench/{name}", entry_point=entry_point, kwargs=kwargs)
