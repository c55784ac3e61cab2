"""The chips that workloads are written for, as jax itself describes them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

TARGETS = ("v6e", "v5e", "v5p")

# jax sees the two cores of a v5p as one device (megacore), and so does libtpu without a chip.
CORES = {"v6e": 1, "v5e": 1, "v5p": 2}


@dataclass(frozen=True)
class Chip:
    """One TPU chip's limits, of all its cores together. Capacities in bytes, rates per second.

    Attributes:
        name: The name by which users choose it, for example ``"v6e"``.
        hbm_bytes: HBM capacity.
        hbm_bytes_per_second: Specified HBM bandwidth.
        vmem_bytes: On-chip vector memory of one core.
        smem_bytes: Scalar memory of one core.
        bf16_flops_per_second: Peak of the matrix units, multiply and add counted as two.
        mxus: Matrix units per core.
        mxu_size: Rows and columns of one matrix unit.
        cores: Cores that run a program together.
    """

    name: str
    hbm_bytes: int
    hbm_bytes_per_second: float
    vmem_bytes: int
    smem_bytes: int
    bf16_flops_per_second: float
    mxus: int
    mxu_size: int
    cores: int = 1

    def roofline_ms(self, flops: float, hbm_bytes: float) -> float:
        """Least time in milliseconds for so many flops and HBM bytes (Williams et al. 2009)."""
        return 1e3 * max(flops / self.bf16_flops_per_second, hbm_bytes / self.hbm_bytes_per_second)

    def describe(self) -> str:
        """The chip in one line, as it stands in a task text."""
        cores = "one core"
        if self.cores > 1:
            cores = (
                f"{self.cores} cores that share the parallel dimensions of a grid (rates and HBM "
                "are of both, all else is of each)"
            )
        return (
            f"TPU {self.name}, {cores}: {self.mxus} matrix units of {self.mxu_size}x"
            f"{self.mxu_size}, {self.bf16_flops_per_second / 1e12:.0f} TFLOP/s in bfloat16; "
            f"HBM {self.hbm_bytes / 1e9:.1f} GB at {self.hbm_bytes_per_second / 1e12:.2f} TB/s; "
            f"VMEM {self.vmem_bytes >> 20} MiB; SMEM {self.smem_bytes >> 20} MiB; "
            "vector registers of 8x128 words of 32 bits."
        )


@functools.cache
def chip(target: str = "v6e") -> Chip:
    """Looks a chip up in jax's own TPU description.

    Raises:
        ValueError: For a target that is not in ``TARGETS``.
    """
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; known targets: {', '.join(TARGETS)}")
    from jax.experimental.pallas import tpu as pltpu

    cores = CORES[target]
    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion(target), cores)  # per core
    return Chip(
        name=target,
        hbm_bytes=info.hbm_capacity_bytes * cores,
        hbm_bytes_per_second=float(info.mem_bw_bytes_per_second * cores),
        vmem_bytes=info.vmem_capacity_bytes,
        smem_bytes=info.smem_capacity_bytes,
        bf16_flops_per_second=float(info.bf16_ops_per_second * cores),
        mxus=info.num_mxus,
        mxu_size=info.mxu_column_size,
        cores=cores,
    )
