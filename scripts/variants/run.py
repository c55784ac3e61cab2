"""Compiles a variant for a v6e that is not there, keeps its dump and prices it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import io
import json
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from jax import export

from jaxbench_env.evaluator import timing
from jaxbench_env.evaluator.build import (
    COMPILE_LIMITS,
    DEVICE_KINDS,
    DUMP_FLAGS,
    TOPOLOGIES,
    installed_versions,
)
from jaxbench_env.evaluator.sandbox import Limits, sandbox
from jaxbench_env.evaluator.store import cache_directory, compile_slot
from variants.case import Case
from variants.space import SPACE

HERE = Path(__file__).parent
#: Of one TPU v6e, as `pltpu.get_tpu_info` says: bf16 operations and HBM bytes a second.
PEAK_FLOPS, PEAK_BYTES = 920e12, 1.64e12
#: Releases of Python 3.11 before .4 have no filters; the archives are our own.
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
DUMPED = ("final_bundles.txt", "TLP-hlo.txt")  # what the replay reads


def text_hash(kernel: str) -> str:
    """Stands for the text that a kernel's variants were made from, whatever its white space."""
    files = (HERE / f"{kernel}.py", HERE / "case.py")
    words = [word for file in files for word in file.read_text("utf-8").split()]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def make(kernel: str, parameters: dict[str, Any]) -> Case:
    """The variant of a kernel."""
    return importlib.import_module(f"variants.{kernel}").make(**parameters)


def dump_path(kernel: str, parameters: dict[str, Any], kind: str = "variants") -> Path:
    """Where a variant's dump is kept, outside the repository."""
    name = "-".join(f"{value}" for value in parameters.values())
    version = installed_versions().libtpu
    folder = cache_directory() / kind / version / text_hash(kernel)
    return folder / f"{kernel}-{name}.tar.xz"


def trace(case: Case, target: str = "v6e") -> bytes:
    """The TPU artefact of a variant; raises what jax raises."""
    device = jax.sharding.AbstractDevice(DEVICE_KINDS[target], 1, "tpu")
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((1,), ("x",), auto, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        return bytes(
            export.export(jax.jit(case.function), platforms=["tpu"])(*case.specs).serialize()
        )


def compile_variant(
    kernel: str,
    parameters: dict[str, Any],
    *,
    flags: str = DUMP_FLAGS,
    limits: Limits = COMPILE_LIMITS,
    target: str = "v6e",
    keep: Path | None = None,
    keep_all: bool = False,
) -> dict[str, Any]:
    """Compiles one variant: what is known of the compile, with "status" "compiled" or another.

    Args:
        kernel: Name of the kernel's module.
        parameters: Of its `make`.
        flags: Flags for libtpu.
        limits: What the compile may use.
        target: The chip.
        keep: Where to write the dump, as a compressed archive.
        keep_all: Whether to keep everything that the compiler wrote.
    """
    try:
        artefact = trace(make(kernel, parameters), target)
    except Exception as error:
        return {"status": "trace_error", "message": f"{type(error).__name__}: {error}"[:2000]}
    with (
        compile_slot(),
        sandbox().start(
            "compile",
            {"topology": TOPOLOGIES[target]},
            files={"program": artefact},
            limits=limits,
            environment={"LIBTPU_INIT_ARGS": flags},
        ) as job,
    ):
        started = time.monotonic()
        events = list(job.events())
        ended = job.wait()
        seconds = time.monotonic() - started
        if not events:
            text = f"the compiler was ended: {ended.describe()}"
            return {"status": "died", "message": text, "compile_seconds": seconds}
        event = events[-1]
        if event["event"] != "compiled":
            message = event["details"][:2000]
            return {"status": event["status"], "message": message, "compile_seconds": seconds}
        if keep is not None:
            _pack(job.box / "out", keep, keep_all)
        return {
            "status": "compiled",
            "vmem_used": event["vmem_used"],
            "compile_seconds": round(seconds, 2),
            "compile_peak_bytes": ended.peak_bytes,
        }


def _pack(folder: Path, archive: Path, everything: bool) -> None:
    """Archives what the replay needs of a dump, or all of it."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=1) as tar:
        for file in sorted(folder.rglob("*")):
            wanted = everything or (
                file.name.endswith(DUMPED) and "schedule-analysis" not in file.name
            )
            if wanted and file.is_file() and not file.is_symlink():
                tar.add(file, file.relative_to(folder))
    temporary = archive.with_suffix(".part")
    temporary.write_bytes(packed.getvalue())
    temporary.replace(archive)


def price(kernel: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Predicted time of a kept dump and its parts, in milliseconds.

    issue + transfer + latency + launch = ms. "issue" is every cycle that is not a wait;
    "transfer" are the waits that remain if a transfer's latency is nought, so what HBM's
    bandwidth costs beyond the issue; "latency" is what the latency adds to that. "bandwidth" is
    all HBM bytes at the model's bandwidth, "roofline" the larger of needed bytes and flops at
    the chip's published peaks.
    """
    constants = timing.Constants.load()
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(dump_path(kernel, parameters)) as tar:
            tar.extractall(folder, **SAFELY)
        dump = Path(folder) / "dump"
        found = timing.predict(dump, constants=constants)
        instant = timing.predict(dump, constants=dataclasses.replace(constants, dma_latency=0))
        listed = sum(
            sum(line.lstrip().startswith("0") for line in file.open())
            for file in dump.glob("*final_bundles.txt")
        )
    launch = constants.launch_seconds * 1e3
    scale = (found.ms - launch) / found.cycles  # milliseconds a cycle
    issue = (found.cycles - found.counters["dma_wait_cycles"]) * scale
    case = make(kernel, parameters)
    roofline = max(case.flops / PEAK_FLOPS, case.bytes / PEAK_BYTES) * 1e3
    bandwidth = found.counters["hbm_bytes"] / constants.hbm_bytes_per_cycle * scale
    return {
        "ms": round(found.ms, 6),
        "issue_ms": round(issue, 6),
        "transfer_ms": round(instant.cycles * scale - issue, 6),
        "latency_ms": round(found.ms - instant.ms, 6),
        "launch_ms": round(launch, 6),
        "bandwidth_ms": round(bandwidth, 6),
        "roofline_ms": round(roofline, 6),
        "uncertain": found.uncertain,
        "reasons": list(found.reasons),
        "listed_bundles": listed,
        "programs": {
            one.name: {
                "calls": one.calls,
                "cycles": round(one.cycles),
                "wait_cycles": round(one.wait_cycles),
                "hbm_bytes": one.hbm_bytes,
            }
            for one in found.programs
        },
        "counters": {name: round(value, 4) for name, value in found.counters.items()},
    }


class Results:
    """One JSON line a variant; a line written later replaces an earlier one."""

    def __init__(self, path: Path) -> None:
        """Reads what is there; a torn last line is dropped."""
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                self.records[self.key(record["kernel"], record["parameters"])] = record

    @staticmethod
    def key(kernel: str, parameters: dict[str, Any]) -> str:
        """Identifies a variant."""
        return json.dumps([kernel, parameters], sort_keys=True)

    def get(self, kernel: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """The variant's record."""
        return self.records.get(self.key(kernel, parameters))

    def append(self, record: dict[str, Any]) -> None:
        """Writes one record to the end of the file."""
        self.records[self.key(record["kernel"], record["parameters"])] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def rewrite(self) -> None:
        """Writes the file anew, one line a variant of `SPACE`, in its order."""
        temporary = self.path.with_suffix(".part")
        keys = [self.key(kernel, each) for kernel, many in SPACE.items() for each in many]
        self.records = {key: self.records[key] for key in keys if key in self.records}
        lines = [json.dumps(record) for record in self.records.values()]
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self.path)


@functools.cache
def provenance() -> dict[str, str]:
    """Versions and the machine model that a record was made with."""
    constants = json.dumps(dataclasses.asdict(timing.Constants.load()), sort_keys=True)
    return {
        **installed_versions().as_dict(),
        "constants": hashlib.sha256(constants.encode()).hexdigest()[:12],
    }
