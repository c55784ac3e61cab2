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


# XLA's own matrix products on two busy cores, and Pallas' in interpret mode.
REFERENCE_FLOPS_PER_SECOND = 6e10
KERNEL_FLOPS_PER_SECOND = 1.6e10
FULL_BYTES_PER_SECOND = 4e7
FULL_REFERENCE_SECONDS = 600.0  # beyond it, a part of the output is compared
FULL_LEAST_LIMIT, FULL_LARGEST_LIMIT = 900.0, 4 * 3600.0


def full_share(workload: Workload) -> float:
    """Share of the output that is compared at the published size, above 0, up to 1.

    From the work of the reference in float32 and in its own types, not from the clock: the same
    seed compares the same parts on any machine.
    """
    reference = 2 * workload.flops(workload.sizes["v6e"]) / REFERENCE_FLOPS_PER_SECOND
    return min(1.0, FULL_REFERENCE_SECONDS / max(reference, 1e-9))


def full_seconds(workload: Workload) -> float:
    """Estimated wall time of the numbers at the published size."""
    sizes = workload.sizes["v6e"]
    reference = 2 * workload.flops(sizes) * full_share(workload) / REFERENCE_FLOPS_PER_SECOND
    kernel = workload.flops_useful(sizes) / KERNEL_FLOPS_PER_SECOND
    return reference + kernel + workload.min_hbm_bytes() / FULL_BYTES_PER_SECOND


def full_limit(workload: Workload) -> float:
    """Seconds after which the kernel at the published size is given up."""
    return min(FULL_LARGEST_LIMIT, max(FULL_LEAST_LIMIT, 4 * full_seconds(workload)))


def numerics_limit(workload: Workload) -> float:
    """Seconds after which the numeric checks are given up: four times the estimate, in bounds."""
    return min(LARGEST_LIMIT, max(LEAST_LIMIT, 4 * numerics_seconds(workload)))
