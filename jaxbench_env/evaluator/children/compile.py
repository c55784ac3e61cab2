"""Compile child: libtpu makes a program of one TPU artefact, with a dump of its final schedule.

The artefact is hostile bytecode, so nothing of value is in this process: no seed, no reference, no
file but the artefact. What it says is believed about the artefact only (errors, memory, HLO), and
the dump that it leaves is read by another process.

Events: ``compiled`` or ``error``.
"""

from __future__ import annotations

import os
import re

import jax
import numpy as np
from jax import export
from jax.experimental import topologies

MAX_DETAILS = 20_000


def _classify(error: BaseException) -> str:
    """Which status a compiler's exception means."""
    text = str(error)
    if isinstance(error, MemoryError):
        return "out_of_memory"
    if "RESOURCE_EXHAUSTED" in text or "Ran out of memory" in text or "exceeded" in text.lower():
        if re.search(r"memory space hbm|\bhbm\b", text, re.IGNORECASE):
            return "hbm_oom"
        if re.search(r"\bvmem\b|\bsmem\b|scoped", text, re.IGNORECASE):
            return "vmem_oom"
    if "UNIMPLEMENTED" in text or "not implemented" in text.lower():
        return "unsupported"
    return "compile_error"


def _size(text: str) -> int:
    """Bytes of a size as the compiler writes it: ``140.25M``, ``512.0K``, ``134217728``."""
    number, unit = re.fullmatch(r"([\d.]+)([KMG]?)", text).groups()
    return int(float(number) * 1024 ** " KMG".index(unit or " "))


def _vmem(text: str) -> tuple[int | None, int | None]:
    """Used and permitted VMEM bytes from the text of an error."""
    size = r"([\d.]+[KMG]?)"
    for words in (rf"[Uu]sed {size} of {size}", rf"with size {size} and limit {size}"):
        found = re.search(words, text)
        if found:
            return _size(found[1].rstrip(".")), _size(found[2].rstrip("."))
    return None, None


def _scoped_vmem(hlo: str) -> int | None:
    """The largest scoped VMEM allocation of any Pallas call, bytes."""
    sizes = re.findall(
        r'"used_scoped_memory_configs":\[\{"memory_space":"1","offset":"\d+","size":"(\d+)"', hlo
    )
    return max(map(int, sizes), default=None)


def main(job: dict, box: str, tell) -> None:
    """Compiles ``in/program`` for `job["topology"]` and writes ``out/hlo.txt``."""
    topology = topologies.get_topology_desc(
        platform="tpu",
        topology_name=job["topology"],
        chips_per_host_bounds=(1, 1, 1),
        num_slices=1,
    )
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    try:
        with open(os.path.join(box, "in", "program"), "rb") as file:
            exported = export.deserialize(bytearray(file.read()))
        specs = [
            jax.ShapeDtypeStruct(a.shape, np.dtype(a.dtype), sharding=device)
            for a in exported.in_avals
        ]

        def kernel(*args):
            return exported.call(*args)

        lowered = jax.jit(kernel).trace(*specs).lower(lowering_platforms=("tpu",))
        compiled = lowered.compile()
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        used, limit = _vmem(text)
        tell(
            event="error",
            status=_classify(error),
            details=text[:MAX_DETAILS],
            vmem_used=used,
            vmem_limit=limit,
        )
        return
    hlo = compiled.as_text()
    with open("hlo.txt", "x") as file:
        file.write(hlo)
    memory = compiled.memory_analysis()
    tell(
        event="compiled",
        hbm_used=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
        vmem_used=_scoped_vmem(hlo),
    )
