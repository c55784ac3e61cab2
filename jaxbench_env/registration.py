"""Registers ``JAXBench/<id>`` with Gymnasium."""

from __future__ import annotations

import os

import gymnasium

import workloads

_ENTRY_POINT = "jaxbench_env.env:KernelEnv"


def register_all() -> None:
    """Registers every workload by its id and its published names, and the suite of all of them."""
    for workload in workloads.every():
        register(workload)
    _register("suite", "jaxbench_env.env:SuiteEnv", {})


def register(workload: workloads.Workload) -> None:
    """Registers ``JAXBench/mamba2_scan``, ``JAXBench/16p_Mamba2_SSD``, ``JAXBench/16p``."""
    for name in workload.names:
        _register(name, _ENTRY_POINT, {"workload": workload.id})


def _register(name: str, entry_point: str, kwargs: dict[str, str]) -> None:
    if f"JAXBench/{name}" not in gymnasium.registry:
        gymnasium.register(id=f"JAXBench/{name}", entry_point=entry_point, kwargs=kwargs)


def register_workload(workload: str | os.PathLike[str] | workloads.Workload) -> workloads.Workload:
    """Adds a workload of one's own; afterwards ``gym.make("JAXBench/<id>")`` finds it.

    Args:
        workload: Path of a Python file (see `workloads.from_file` for what it defines), or what
            `workloads.load` made of one. The file is run, here and in the judge's processes:
            register only files that you trust. A file that was edited may be registered again.

    Returns:
        The workload. Its ``id`` is ``CONFIG["name"]`` or is made of the file's name.

    Raises:
        WorkloadFileError: If the file does not define a workload.
        ValueError: If its id is taken, or if the workload does not come from a file.
    """
    if not isinstance(workload, workloads.Workload):
        workload = workloads.load(workload)
    if workload.file is None:
        raise ValueError(
            f"workload {workload.id!r} does not come from a file, so that the processes that check "
            "numbers could not load it; write it to a file and register that"
        )
    if workload.id == "suite":
        raise ValueError("JAXBench/suite is the environment of all workloads; choose another name")
    workloads.register(workload)
    # By its path: a vector environment's worker that is not forked knows no id of this process.
    gymnasium.registry.pop(f"JAXBench/{workload.id}", None)
    _register(workload.id, _ENTRY_POINT, {"workload": workload.file.path})
    return workload
