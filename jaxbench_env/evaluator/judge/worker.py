"""A judge process: answers requests over a pipe until the pipe closes.

``python -m jaxbench_env.evaluator.judge.worker FD``. It stays alive between evaluations because
it keeps compiled references. Requests and answers are JSON followed by the blobs it announces.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads import Workload

MAX_MESSAGE_BYTES = 1 << 30


def send(connection: Connection, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Sends one message."""
    connection.send_bytes(json.dumps({**header, "blobs": len(blobs)}).encode())
    for blob in blobs:
        connection.send_bytes(blob)


def receive(connection: Connection) -> tuple[dict[str, Any], list[bytes]]:
    """Receives one message.

    Raises:
        EOFError: If the other side is gone.
    """
    header = json.loads(connection.recv_bytes(MAX_MESSAGE_BYTES))
    return header, [connection.recv_bytes(MAX_MESSAGE_BYTES) for _ in range(header["blobs"])]


def named(workload: Workload) -> dict[str, Any]:
    """The part of a request that names a workload; one from a file brings its file along.

    The text goes with it, so that a file that is edited meanwhile stays what it was.

    Raises:
        ValueError: If it is neither a registered workload nor one from a file: the judge is
            another process and could not have it.
    """
    import workloads

    if workload.file is None:
        try:
            known = workloads.get(workload.id, workload.variant)
        except workloads.UnknownWorkload:
            known = None
        if known is not workload:
            raise ValueError(
                f"this {workload.id!r} is not the registered workload; to evaluate one of your "
                "own, write it to a Python file (README, 'Your own workload')"
            )
        return {"workload": workload.id, "variant": workload.variant}
    return {"workload": workload.id, "file": dataclasses.asdict(workload.file)}


def workload_of(request: dict[str, Any]) -> Workload:
    """The workload that a request names; the same object for the same file."""
    import workloads
    from workloads.from_file import load_text

    if "file" in request:
        return load_text(workloads.WorkloadFile(**request["file"]))
    return workloads.get(request["workload"], request["variant"])


def _check(request, blobs):
    from jaxbench_env.evaluator.judge import artefact, numerics, reach
    from workloads import DRAWS

    workload, at = workload_of(request), request.get("reach")
    artefacts = dict(zip(request["presets"], blobs, strict=False))
    found = {}

    def seen(preset, draw, inputs, out):
        if (preset, draw) == (at, DRAWS[1]):
            exported, _ = artefact.load(blobs[-1], "tpu", numerics.contract(workload, at))
            finding = reach.reaches(exported, inputs, out, workload.tolerance.rel)
            found["reach"] = dataclasses.asdict(finding)

    checks = numerics.check(workload, request["seed"], artefacts, seen)
    return {"checks": [dataclasses.asdict(c) for c in checks], **found}, []


def _full(request, blobs):
    from jaxbench_env.evaluator.judge import full

    found = full.check(
        workload_of(request),
        request["preset"],
        request["seed"],
        blobs[0] if blobs else None,
        request["share"],
        request["tell"],
    )
    return dataclasses.asdict(found), []


def _simulated(request, blobs):
    from jaxbench_env.evaluator.judge import numerics

    workload = workload_of(request)
    pair = numerics.check_simulated(workload, request["preset"], request["seed"], *blobs)
    return {"checks": [dataclasses.asdict(c) for c in pair]}, []


def _degenerate(request, blobs):
    from jaxbench_env.evaluator.judge import degenerate

    checks = degenerate.audit(
        workload_of(request), request["draw"], request["seed"], request["preset"]
    )
    return {"checks": {name: dataclasses.asdict(check) for name, check in checks.items()}}, []


def _inputs(request, blobs):
    workload = workload_of(request)
    arrays = workload.inputs(request["preset"], request["draw"], request["seed"])
    return {}, [array.tobytes() for array in arrays]


def _inspect(request, blobs):
    """Facts about the full-size TPU artefact."""
    from jaxbench_env.evaluator.judge import artefact, evidence, numerics

    workload = workload_of(request)
    _, facts = artefact.load(blobs[0], "tpu", numerics.contract(workload, request["preset"]))
    kernels = [call.kernel for call in facts.calls if call.kernel is not None]
    done = facts.inside()
    return {
        "scalar_operands": sum(kernel.steering for kernel in kernels),
        "kernel": dataclasses.asdict(evidence.kernel(facts)),
        "vmem_bytes": max((kernel.vmem_bytes for kernel in kernels), default=0),
        "matmul_flops": facts.matmul_flops,
        "outside_flops": facts.outside_flops,
        "outside_work": facts.outside.total or not facts.outside.known,
        "sure_flops": done.flops if done.known else 0,
    }, []


def _examine(request, blobs):
    """Findings on all artefacts of a candidate together."""
    from jaxbench_env.evaluator import timing
    from jaxbench_env.evaluator.judge import artefact, evidence, feeds, numerics, program

    workload, names = workload_of(request), request["artefacts"]
    full = timing.from_blobs(request["kernels"], blobs[len(names) :])
    programs: dict[str, dict] = {"tpu": {}, "cpu": {}, "valued": {}}
    for (preset, platform), blob in zip(names, blobs[: len(names)], strict=True):
        exported, facts = artefact.load(blob, platform, numerics.contract(workload, preset))
        programs[platform][preset] = facts
        if platform == "tpu":
            if any(call.kernel is not None and call.kernel.steering for call in facts.calls):
                text, kept = exported.mlir_module_serialized, exported.module_kept_var_idx
                with contextlib.suppress(Exception):  # hostile; it stays without values then
                    values = [(kernel.body, kernel.values) for kernel in full]
                    if preset != evidence.FULL:
                        values = feeds.values(text, workload, preset, request["seed"], kept)
                    facts = program.read(text, values)
            programs["valued"][preset] = facts
    found = evidence.examine(workload, programs["tpu"], programs["cpu"], programs["valued"])
    findings = {fence: dataclasses.asdict(one) for fence, one in found.items()}
    try:
        races = evidence.synchronised(programs["tpu"])
    except Exception as error:  # a program that no one has thought of
        races = dict.fromkeys(programs["tpu"], f"it cannot be read ({type(error).__name__})")
    return {"findings": findings, "races": races}, []


def _reference(request, blobs):
    from jaxbench_env.evaluator.judge import numerics

    return {}, [numerics.export_reference(workload_of(request))]


def _feeds(request, blobs):
    """The kernels of the full-size TPU artefact with the values of their scalar operands."""
    from jaxbench_env.evaluator import timing
    from jaxbench_env.evaluator.judge import artefact, feeds, numerics

    workload = workload_of(request)
    exported, _ = artefact.load(blobs[0], "tpu", numerics.contract(workload, "v6e"))
    kept, program = exported.module_kept_var_idx, exported.mlir_module_serialized
    try:
        found, problem = feeds.kernels(program, workload, request["seed"], kept=kept), ""
    except feeds.NoValues as why:
        found, problem = [], f"scalar operands have no values: {why}"
    records, out = timing.to_blobs(found)
    return {"kernels": records, "problem": problem}, out


def _price(request, blobs):
    from jaxbench_env.evaluator import timing

    dump, timeline = Path(request["dump"]), request.get("timeline")
    kernels = timing.from_blobs(request["kernels"], blobs)
    values, notes = timing.match(kernels, timing.read_module(dump)) if kernels else ({}, [])
    recorder = timing.Recorder(timeline["iterations"]) if timeline else None
    constants = timing.Constants.load(request["target"])
    options = {"least": request["least"], "compiler": request["compiler"], "constants": constants}
    found = timing.predict(dump, feeds=values, recorder=recorder, **options)
    prediction, out = dataclasses.asdict(found), []
    if prediction["uncertain"]:
        notes += [request["problem"]] if request["problem"] else []
        prediction["reasons"] = [*prediction["reasons"], *notes]
    if recorder is not None:
        clock = constants.clock_hz / constants.random_data_slowdown
        out.append(timing.chrome_trace(recorder, clock, timeline["title"]))
    return prediction, out


_HANDLERS = {
    "check": _check,
    "full": _full,
    "simulated": _simulated,
    "degenerate": _degenerate,
    "inputs": _inputs,
    "inspect": _inspect,
    "examine": _examine,
    "reference": _reference,
    "feeds": _feeds,
    "price": _price,
}


def _end_with(parent: int) -> None:
    """Ends this process soon after its parent, also in the middle of a request."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def _trimmer() -> Callable[[], Any]:
    """What gives freed memory back to the system; without glibc, nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return functools.partial(trim, 0) if trim else lambda: None


def main() -> None:
    """Serves requests."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that uses us
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    connection, trim = Connection(int(sys.argv[1])), _trimmer()

    def tell(*progress: Any) -> None:
        send(connection, {"progress": progress})

    os.dup2(2, 1)  # nothing that a library prints may end up on the user's standard output
    while True:
        try:
            request, blobs = receive(connection)
        except EOFError:
            return
        try:
            answer, out = _HANDLERS[request["do"]]({**request, "tell": tell}, blobs)
            trim()
            send(connection, {"ok": True, **answer}, out)
        except MemoryError:
            send(connection, {"ok": False, "status": "out_of_memory", "error": "out of memory"})
        except Exception as error:
            status = getattr(error, "status", None)
            text = str(error) if status else traceback.format_exc()
            send(connection, {"ok": False, "status": status, "error": text})


if __name__ == "__main__":
    main()
