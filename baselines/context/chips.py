"""The chip in words, from jax's own description of it."""

from __future__ import annotations

from workloads import CORES, chip


def describe(target: str = "v6e") -> str:
    """What an author of kernels must know of a chip, in a few lines.

    Every number is of `pltpu.TpuInfo` for the chip, as `workloads.chip` reads it, or follows from
    those numbers.

    Args:
        target: The chip.

    Raises:
        ValueError: For an unknown target.
    """
    from jax.experimental.pallas import tpu as pltpu

    described = chip(target).describe()
    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion(target), CORES[target])
    rows, lanes = info.num_sublanes, info.num_lanes
    flops, bandwidth = info.bf16_ops_per_second, info.mem_bw_bytes_per_second
    return "\n".join(
        [
            f"- {described}",
            f"- A vector register holds {rows} rows (sublanes) of {lanes} lanes of 32 bits; "
            f"bfloat16 arrays are packed two rows to one, in tiles of {2 * rows} x {lanes}, 8-bit "
            f"ones in tiles of {4 * rows} x {lanes}. The last dimension lies in the lanes: one of "
            f"{lanes // 2} wastes half.",
            f"- Matrix products run on {info.num_mxus} units of {info.mxu_column_size} x "
            f"{info.mxu_column_size}: dimensions that are multiples of {info.mxu_column_size} fill "
            "them.",
            "- In the time in which HBM moves one byte the matrix units do "
            f"{flops / bandwidth:,.0f} operations: a kernel with fewer per byte is limited by "
            "memory, and every array that is read twice costs.",
            f"- Moving all of VMEM ({info.vmem_capacity_bytes >> 20} MiB) once takes "
            f"{1e6 * info.vmem_capacity_bytes / bandwidth:,.0f} us.",
        ]
    )
