"""Writes the predicted timeline of a kernel or of a baseline to a file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from workloads import Workload


class NoTrace(Exception):
    """There is no timeline; the message says why. `ours`: it is not the kernel's fault."""

    def __init__(self, message: str, *, ours: bool = False):
        super().__init__(message)
        self.ours = ours


def trace(
    workload: Workload,
    source: str | None,
    output: Path,
    iterations: int,
    library: bool,
    target: str,
) -> dict[str, Any]:
    """Compiles, replays and writes.

    Args:
        workload: The workload, at its published size.
        source: The kernel text; None for XLA's program for the reference.
        output: The file; gzipped if its name ends in ``.gz``.
        iterations: Iterations of each loop to show before exact repetition is left out.
        library: Whether the text may import finished kernels.
        target: The chip.

    Returns:
        What was written, JSON-ready.

    Raises:
        NoTrace: If there is no timeline.
        OSError: If the file cannot be written.
    """
    from jaxbench_env.evaluator import baseline
    from jaxbench_env.evaluator.build import BuildError, Timeline
    from jaxbench_env.evaluator.evaluator import Evaluator
    from jaxbench_env.evaluator.result import Status
    from jaxbench_env.evaluator.verdict import Failure

    evaluator = Evaluator(target=target, allow_library_kernels=library)
    try:
        if source is None:
            title = Timeline(f"{workload.id}, baseline", iterations)
            built = baseline.compiled(workload, evaluator.target, timeline=title)
        else:
            built = evaluator.timeline(workload, source, iterations=iterations)
    except BuildError as error:
        raise NoTrace(error.message, ours=True) from error
    except Failure as failure:
        fields = failure.fields
        ours = fields["status"] is Status.EVALUATOR_ERROR
        raise NoTrace(f"{fields['status']}: {fields['message']}", ours=ours) from failure
    if built.prediction is None or built.trace is None:
        raise NoTrace(f"the time cannot be predicted: {built.price_error}", ours=True)
    data = built.trace if output.suffix == ".gz" else gzip.decompress(built.trace)
    output.write_bytes(data)
    return {
        "workload": workload.id,
        "target": target,
        "program": "baseline" if source is None else "kernel",
        "file": str(output),
        "bytes": len(data),
        "predicted_ms": built.prediction["ms"],
        "uncertain": built.prediction["uncertain"],
        "reasons": list(built.prediction["reasons"]),
    }
