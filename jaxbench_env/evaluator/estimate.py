"""How long the numbers of a workload take to check, before anything has run."""

from __future__ import annotations

from workloads import DRAWS, Workload

# Two busy cores: interpret mode, the reference in float32 and in its own types, drawing inputs and
# comparing results. Measured on a matrix product, a norm and a softmax with blocks of 128 and more.
FLOPS_PER_SECOND = 8e9
BYTES_PER_SECOND = 1.5e7
LEAST_LIMIT, LARGEST_LIMIT = 120.0, 3600.0


def numerics_seconds(workload: Workload) -> float:
    """Estimated wall time of the numeric checks, from flops and bytes at the check presets.

    It is within a factor of a few: kernels with small blocks take longer.
    """
    total = 0.0
    for name in workload.check_presets:
        flops = workload.flops(workload.sizes[name])
        total += flops / FLOPS_PER_SECOND + workload.min_hbm_bytes(name) / BYTES_PER_SECOND
    return len(DRAWS) * total


def numerics_limit(workload: Workload) -> float:
    """Seconds after which the numeric checks are given up: four times the estimate, in bounds."""
    return min(LARGEST_LIMIT, max(LEAST_LIMIT, 4 * numerics_seconds(workload)))
