"""libtpu's own static profile of a variant, and the replay under the same view of DMAs.

The profile unrolls loops, so it takes a second and some hundred megabytes for every 100,000 cycles.
It is not a count of bundles alone: transfers take `LATENCY` cycles and their bytes at `BANDWIDTH`,
each as if it had HBM to itself. A kernel with one transfer and its wait shows both: 609, 904, 3,269
and 11,377 cycles for loads of 32 KiB, 256 KiB, 2 MiB and 8 MiB, and 517 and 3,177 for stores of
32 KiB and 2 MiB; two transfers at once take no longer than one.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from jaxbench_env.evaluator import timing
from jaxbench_env.evaluator.build import COMPILE_LIMITS, DUMP_FLAGS
from jaxbench_env.evaluator.sandbox import Limits
from jaxbench_env.evaluator.timing.lowering import TICKS
from jaxbench_env.evaluator.timing.machine import Engine
from variants import run

LATENCY = 547  # cycles of a load; 455 of a store
BANDWIDTH = 776  # bytes a cycle
FLAGS = f"{DUMP_FLAGS} --xla_jf_dump_static_llo_profile_to=static"
LIMITS = Limits(
    wall_seconds=240,
    cpu_seconds=240,
    memory_bytes=4 << 30,
    address_space=COMPILE_LIMITS.address_space,
    disk_bytes=COMPILE_LIMITS.disk_bytes,
)
_CYCLES = re.compile(r"estimated_cycles: (\d+)")


def _dma(engine, time, granules, flag, sides, run, window, program) -> None:
    """As `Engine.dma`, with libtpu's view of a transfer."""
    engine._plain(granules, run)
    done = time + round((LATENCY + granules * 32 / BANDWIDTH) * TICKS)
    engine._flag(flag, program).pending.append((done, granules))
    engine.outstanding += 1
    engine.tally.dmas += 1


def compare(kernel: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Compiles a variant with its static profile, and replays it.

    Returns:
        Cycles of the kernel's own program: "static" as libtpu estimates them, "alike" by the replay
        under libtpu's view of DMAs, "issue" by the replay without any wait. Or why there are none.
    """
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "all.tar.xz"
        compiled = run.compile_variant(
            kernel, parameters, flags=FLAGS, limits=LIMITS, keep=archive, keep_all=True
        )
        if compiled["status"] != "compiled":
            return compiled
        with tarfile.open(archive) as tar:
            tar.extractall(folder)  # our own archive
        profiles = list((Path(folder) / "static").glob("*.textproto"))
        static = {file.name.partition("_static_llo")[0]: file.read_text() for file in profiles}
        found = timing.predict(Path(folder) / "dump")
        with mock.patch.object(Engine, "dma", _dma):
            alike = timing.predict(Path(folder) / "dump")
    programs = {one.name: one for one in found.programs}
    others = {one.name: one for one in alike.programs}
    name = next((one for one in static if one in programs and "call" in one), None)
    name = name or next((one for one in static if one in programs), None)
    if name is None:
        return {**compiled, "status": "no_profile", "message": f"profiles of {sorted(static)}"}
    return {
        **compiled,
        "program": name,
        "static": int(_CYCLES.search(static[name]).group(1)),
        "alike": round(others[name].cycles),
        "issue": round(programs[name].cycles - programs[name].wait_cycles),
    }
