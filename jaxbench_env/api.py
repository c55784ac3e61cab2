"""Evaluation as plain functions, for users who do not call `gym.step`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

import workloads
from jaxbench_env.evaluator.judge.pool import pool
from jaxbench_env.evaluator.result import EvalResult
from jaxbench_env.evaluator.sandbox import sandbox
from jaxbench_env.evaluator.service.client import SharedEvaluator, enabled
from jaxbench_env.evaluator.stop import Stop
from jaxbench_env.progress import progress_bar, progress_steps


def evaluate(
    workload: str | os.PathLike[str] | workloads.Workload,
    source: str,
    *,
    seed: int | None = None,
    target: str = "v6e",
    allow_library_kernels: bool = False,
    verify: str = "presets",
    progress: bool | None = None,
    cache: bool = True,
) -> EvalResult:
    """Evaluates one kernel text.

    Args:
        workload: Id of a workload, path of a file that defines one, or a workload.
        source: The text; defines ``workload(*inputs)``.
        seed: Makes the secret inputs, and so the whole result but its durations, reproducible.
        target: The chip.
        allow_library_kernels: Whether the text may import finished kernels.
        verify: ``"full"`` compares the numbers of a correct kernel at the published size, too:
            seconds to many minutes and up to 12 GiB (`evaluator.estimate.full_seconds`).
        progress: Whether to show the progress of that on standard error; by default on a terminal.
        cache: Whether a verdict on the same text that is on disk already is given again.

    Returns:
        The verdict. Nothing that the text does raises.

    Raises:
        UnknownWorkload: For an unknown id.
        WorkloadFileError: If the file does not define a workload.
        TypeError: If the source is not text.
        ValueError: For an unknown `verify`.
    """
    chosen = _workload(workload)
    if not isinstance(source, str):
        raise TypeError(f"source is kernel text (str), not {type(source).__name__}")
    evaluator = SharedEvaluator(
        target=target, allow_library_kernels=allow_library_kernels, verify=verify, cache=cache
    )
    with progress_steps("published size", progress if verify == "full" else False) as watch:
        return evaluator.evaluate(chosen, source, seed=seed, watch=watch)


def evaluate_many(
    pairs: Iterable[tuple[str | os.PathLike[str] | workloads.Workload, str]],
    *,
    seed: int | None = None,
    target: str = "v6e",
    allow_library_kernels: bool = False,
    verify: str = "presets",
    cache: bool = True,
    workers: int | None = None,
    progress: bool | None = None,
) -> list[EvalResult]:
    """Evaluates many kernel texts in parallel.

    Args:
        pairs: (workload, source) pairs, workloads as in `evaluate`.
        seed: As in `evaluate`; the same for all of them.
        target: The chip.
        allow_library_kernels: Whether the texts may import finished kernels.
        verify: As in `evaluate`; numbers at the published size are checked one by one.
        cache: As in `evaluate`.
        workers: Evaluations asked for at once; by default one per core. However many there are,
            the service runs as many as it has workers, and the machine compiles only as many
            programs at once as its memory allows.
        progress: Whether to show a progress bar on standard error; by default on a terminal.

    Returns:
        The verdicts, in the order of the pairs.

    Raises:
        UnknownWorkload, WorkloadFileError: As in `evaluate`, before anything is evaluated.
        TypeError: If a source is not text, before anything is evaluated.
    """
    jobs = [(_workload(w), source) for w, source in pairs]
    for _, source in jobs:
        if not isinstance(source, str):
            raise TypeError(f"source is kernel text (str), not {type(source).__name__}")
    evaluator = SharedEvaluator(
        target=target, allow_library_kernels=allow_library_kernels, verify=verify, cache=cache
    )
    correct, stop = 0, Stop()
    with (
        ThreadPoolExecutor(workers or os.cpu_count() or 1) as threads,
        progress_bar(len(jobs), "evaluating", progress) as advance,
    ):
        futures = [threads.submit(evaluator.evaluate, w, s, seed=seed, stop=stop) for w, s in jobs]
        try:
            for done in as_completed(futures):
                correct += done.result().correct
                advance(f", {correct} correct")
        except BaseException:  # an interrupt must not wait for what is queued or running
            for future in futures:
                future.cancel()
            stop.cancel()
            if not enabled():
                sandbox().close()
                pool().close()
            raise
    return [future.result() for future in futures]


def _workload(named: str | os.PathLike[str] | workloads.Workload) -> workloads.Workload:
    return named if isinstance(named, workloads.Workload) else workloads.get(named)
