"""The few constants of the machine model, each with its source in `constants.json`.

They were fitted on published times of the v6e. For another target the file holds what is known of
the chip; the rest carries over in the unit in which it is likely to be the same: latencies in
seconds, bandwidth as a share of the specified one, occupancy of the memory in cycles.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from importlib import resources

#: The target whose times were measured; the predictor is not calibrated for the others.
MEASURED = "v6e"


@dataclass(frozen=True)
class MatrixUnits:
    """How long multiplications take.

    Attributes:
        units: Matrix units of a core.
        cycles: Cycles for which one multiplication of packed rows occupies a unit; one of rows of
            32 bits, half as many rows, takes half as long.
        queue: Whether a schedule may hold more of them than its bundles leave time for.
    """

    units: int = 2
    cycles: float = 8
    queue: bool = False

    def busy(self, packed: float, wide: float) -> float:
        """Cycles in which all units together do so many multiplications, evenly shared."""
        return (packed + wide / 2) * self.cycles / self.units


@dataclass(frozen=True)
class Constants:
    """Fitted or published properties of one TPU core; none depends on a workload.

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
        matrix_units: Matrix units of the core.
        matmul_cycles: Cycles for which a multiplication of packed rows occupies a matrix unit.
        matmul_queue: Whether schedules leave it to the hardware to keep multiplications apart.
        cores: Cores that run the program together, each with its share of the bandwidth.
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
    matrix_units: int
    matmul_cycles: float
    matmul_queue: bool
    cores: int

    @property
    def matrix(self) -> MatrixUnits:
        """The matrix units of the core."""
        return MatrixUnits(self.matrix_units, self.matmul_cycles, bool(self.matmul_queue))

    @classmethod
    def load(cls, target: str = MEASURED) -> Constants:
        """Reads the packaged constants of a target.

        Raises:
            ValueError: For a target that the file does not know.
        """
        text = resources.files(__package__).joinpath("constants.json").read_text("utf-8")
        table = json.loads(text)
        others = table.pop("targets")
        measured = {name: entry["value"] for name, entry in table.items()}
        if target != MEASURED and target not in others:
            known = ", ".join([MEASURED, *others])
            raise ValueError(f"no constants for target {target!r}; there are some for {known}")
        own = {name: entry["value"] for name, entry in others.get(target, {}).items()}
        found = {**measured, **own}
        if target != MEASURED:
            clocks = found["clock_hz"] / measured["clock_hz"]
            bandwidths = found["hbm_bytes_per_second"] / measured["hbm_bytes_per_second"]
            found["hbm_bytes_per_cycle"] *= bandwidths / clocks
            if "dma_latency" not in own:
                found["dma_latency"] *= clocks
        return cls(**{field.name: found[field.name] for field in fields(cls)})
