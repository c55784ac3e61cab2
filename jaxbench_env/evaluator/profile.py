"""The parts of a result that describe how a compiled candidate uses the chip."""

from __future__ import annotations

from typing import Any

from jaxbench_env.evaluator.build import Built
from jaxbench_env.evaluator.timing import Loop
from workloads import Chip, Workload

MAX_PROGRAMS = 8


def fields(workload: Workload, program: Built, chip: Chip) -> dict[str, Any]:
    """Counters, hottest loop and longest programs of a candidate that has a predicted time.

    Args:
        workload: What it computes, at the published size.
        program: The compiled candidate.
        chip: The chip it is compiled for.
    """
    prediction = program.prediction
    counters = dict(prediction["counters"])
    counters["hbm_bandwidth_share"] = counters["hbm_bandwidth"] / chip.hbm_bytes_per_second
    counters["hbm_bytes_min"] = float(workload.min_hbm_bytes())
    counters["vmem_used"] = float(program.vmem_used or 0)
    loop = Loop.from_dict(prediction["loop"]) if prediction["loop"] else None
    if loop is not None:
        counters["loop_share"] = loop.share
        counters["loop_iterations"] = float(loop.iterations)
        counters["loop_bundles"] = loop.bundles
        counters["loop_line"] = float(loop.lines[0] if loop.lines else 0)
    share = prediction["ms"] / prediction["cycles"] if prediction["cycles"] else 0.0
    longest = prediction["programs"][:MAX_PROGRAMS]
    return {
        "counters": counters,
        "loop": loop,
        "programs": {row["name"]: row["cycles"] * share for row in longest},
        "kernels": tuple(program.pallas_programs),
    }
