"""libtpu's own static profile of a variant, and the replay under the same view of DMAs.

The profile unrolls loops, so it takes a second and some hundred megabytes for every 100,000 cycles:
the comparison is made on smaller arrays than the study's, with the same blocks. It is not a count
of bundles alone: transfers take `LATENCY` cycles and their bytes at `BANDWIDTH`, each as if it had
HBM to itself. A kernel with one transfer and its wait shows both: 609, 904, 3,269 and 11,377 cycles
for loads of 32 KiB, 256 KiB, 2 MiB and 8 MiB, and 517 and 3,177 for stores of 32 KiB and 2 MiB; two
transfers at once take no longer than one.
"""

from __future__ import annotations

import importlib
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
from variants.space import SPACE

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
#: Constants of the kernel modules, and parameters, that make the arrays small.
SMALL: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "matmul": ({"SIZE": 1024}, {"depth": 1024}),
    "epilogue": ({"SIZE": 1024}, {}),
    "rms_norm": ({"ROWS": 2048}, {"total": 2048}),
    "softmax": ({"ROWS": 2048}, {}),
    "flash_attention": ({"HEADS": 1, "SEQUENCE": 2048}, {}),
    "chunked_scan": ({"HEADS": 16, "SEQUENCE": 1024}, {}),
    "grouped_matmul": ({"GROUPS": 1, "DEPTH": 1024, "COLUMNS": 1024}, {}),
}
#: Larger blocks leave no loop in arrays as small as these.
LARGEST = 1024
_CYCLES = re.compile(r"estimated_cycles: (\d+)")


def _dma(engine, time, granules, flag, sides, run, window, program) -> None:
    """As `Engine.dma`, with libtpu's view of a transfer."""
    engine._plain(granules, run)
    done = time + round((LATENCY + granules * 32 / BANDWIDTH) * TICKS)
    engine._flag(flag, program).pending.append((done, granules))
    engine.outstanding += 1
    engine.tally.dmas += 1


def wanted() -> list[tuple[str, dict[str, Any]]]:
    """Variants that differ over small arrays and have blocks that fit into these."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for kernel, many in SPACE.items():
        for parameters in many:
            numbers = [value for value in parameters.values() if value not in (True, False)]
            sizes = {**parameters, **SMALL[kernel][1]}
            if all(type(n) is str or n <= LARGEST for n in numbers if n not in (4096, 16384)):
                found.setdefault(run.Results.key(kernel, sizes), (kernel, parameters))
    return list(found.values())


def compare(kernel: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Compiles a variant over small arrays with its static profile, and replays it.

    Returns:
        Cycles of the kernel's own program: "static" as libtpu estimates them, "alike" by the replay
        under libtpu's view of DMAs, "issue" by the replay without any wait. Or why there are none.
    """
    constants, changed = SMALL[kernel]
    module = importlib.import_module(f"variants.{kernel}")
    archive = run.dump_path(kernel, parameters, "static")
    compiled: dict[str, Any] = {"status": "compiled"}
    if not archive.exists():
        with mock.patch.multiple(module, **constants):
            compiled = run.compile_variant(
                kernel,
                parameters | changed,
                flags=FLAGS,
                limits=LIMITS,
                keep=archive,
                keep_all=True,
            )
        if compiled["status"] != "compiled":
            return compiled
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, **run.SAFELY)
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
