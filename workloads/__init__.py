"""The computations that are to be made fast: JAXBench's workloads as data and plain JAX."""

from workloads import (  # noqa: F401  (each module registers its workloads)
    attention,
    conv2d,
    conv3d,
    fused_elementwise,
    fused_norm,
    fused_reduction,
    latent_attention,
    loss,
    matmul,
    moe,
    norm,
    paged_attention,
    pair,
    scan,
)
from workloads.from_file import WorkloadFileError, load
from workloads.hardware import CORES, TARGETS, Chip, chip
from workloads.registry import UnknownWorkload, every, get, ids, register
from workloads.workload import (
    DRAWS,
    PRESETS,
    ArraySpec,
    Preset,
    Tolerance,
    Workload,
    WorkloadFile,
)

__all__ = [
    "DRAWS",
    "PRESETS",
    "CORES",
    "TARGETS",
    "ArraySpec",
    "Chip",
    "Preset",
    "Tolerance",
    "UnknownWorkload",
    "Workload",
    "WorkloadFile",
    "WorkloadFileError",
    "chip",
    "every",
    "get",
    "ids",
    "load",
    "register",
]
