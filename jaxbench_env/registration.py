"""Registers ``JAXBench/<id>`` with Gymnasium."""

from __future__ import annotations

import gymnasium

import workloads


def register_all() -> None:
    """Registers every workload that is not registered yet."""
    for workload_id in workloads.ids():
        name = f"JAXBench/{workload_id}"
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point="jaxbench_env.env:KernelEnv",
                kwargs={"workload": workload_id},
            )
