"""The few constants of the machine model, each with its source in `constants.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from importlib import resources


@dataclass(frozen=True)
class Constants:
    """Fitted or published properties of one TPU v6e core; none depends on a workload.

    Attributes:
        clock_hz: Core clock in Hz.
        launch_seconds: Seconds from the start of an executable on the device to its first bundle.
        random_data_slowdown: Time on random operands over time on constant ones: power makes the
            chip lower its clock.
        hbm_bytes_per_cycle: Effective HBM bandwidth in bytes a core cycle.
        dma_latency: Cycles from the issue of an HBM transfer until its data has landed, when
            nothing else is in flight.
        dma_min_cycles: Least cycles for which one HBM transfer occupies the memory.
        chunk_cycles: Cycles for each contiguous run of a strided HBM transfer.
        local_latency_share: Latency of an on-chip transfer as a share of `dma_latency`.
        local_bandwidth_ratio: Bandwidth of on-chip transfers over HBM bandwidth.
        sparse_core_bandwidth_share: Share of the HBM bandwidth a SparseCore offload reaches.
        unknown_trip_count: Iterations charged to a loop with an exit that cannot be evaluated.
        unknown_dma_bytes: Bytes charged to a transfer of unknown size.
    """

    clock_hz: float
    launch_seconds: float
    random_data_slowdown: float
    hbm_bytes_per_cycle: float
    dma_latency: float
    dma_min_cycles: float
    chunk_cycles: float
    local_latency_share: float
    local_bandwidth_ratio: float
    sparse_core_bandwidth_share: float
    unknown_trip_count: int
    unknown_dma_bytes: int

    @classmethod
    def load(cls) -> Constants:
        """Reads the packaged constants of the v6e."""
        text = resources.files(__package__).joinpath("constants.json").read_text("utf-8")
        table = json.loads(text)
        return cls(**{field.name: table[field.name]["value"] for field in fields(cls)})
