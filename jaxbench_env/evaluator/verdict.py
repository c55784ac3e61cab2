"""Which verdict the facts about a candidate earn. Decides; runs nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxbench_env.evaluator.result import Memory, NumericCheck, Stage, Status, Times

if TYPE_CHECKING:
    from jaxbench_env.evaluator.judge.pool import Refused
    from workloads import Workload

MIN_PALLAS_SHARE = 0.5
# Bytes at the edges of tiles, and what the compiler keeps on the chip between programs.
TRAFFIC = 0.95
# A prediction may undercut the physical floor by rounding, not by more.
_FLOOR_SLACK = 0.99
_COPY = re.compile(r"copy(-start|-done)?(\.\d+)?")


class Failure(Exception):
    """The verdict is decided: the fields of the result that say so."""

    def __init__(self, status: Status | str, failed_in: str, message: str, **fields: Any):
        super().__init__(message)
        self.fields = {
            "status": Status(status),
            "failed_in": failed_in,
            "message": message,
            **fields,
        }


def require(fence: str, finding: dict[str, str], run: Any, **fields: Any) -> None:
    """Fails a candidate for what the judge has found about a fence, or notes what was shown.

    Args:
        fence: Name of the fence.
        finding: `judge.evidence.Finding` as a dict.
        run: What is known of the candidate; its ``shown`` is added to.
        fields: What the result holds so far.

    Raises:
        Failure: If there is a fault.
    """
    if finding["fault"]:
        raise Failure(finding["status"], "trace", finding["fault"], **fields)
    run.shown[fence] = finding["shown"]


def require_vmem(facts: dict[str, Any], limit: int) -> None:
    """Fails a kernel whose blocks and scratch alone exceed the chip's VMEM.

    The compiler would say the same, but after minutes: it schedules such a program first.

    Args:
        facts: What the judge has read in the full-size artefact (see `judge.worker`).
        limit: VMEM of the chip, bytes.

    Raises:
        Failure: With status ``vmem_oom``.
    """
    used = facts["vmem_bytes"]
    if used > limit:
        raise Failure(
            Status.VMEM_OOM,
            "compile",
            f"the kernel's blocks and scratch take {used / 2**20:.1f} MiB of VMEM, each counted "
            f"once, and the chip has {limit / 2**20:.0f} MiB: {(used - limit) / 2**20:.1f} MiB too "
            "much. Blocks that move with the grid are held twice (double buffering), so plan for "
            "half; make blocks or scratch smaller",
            memory=Memory(vmem_used=used, vmem_limit=limit),
        )


def require_share(
    facts: dict[str, Any],
    programs: Sequence[dict[str, Any]],
    pallas: Sequence[str],
    memory: Memory,
    times: Times,
) -> None:
    """Fails a program without matrix products that moves most of its bytes outside Pallas.

    One that only moves data there (slices, concatenations, guards) pays for it in its time.

    Args:
        facts: As in `require_vmem`.
        programs: The predictor's records by HLO program.
        pallas: Names of the programs that are Pallas calls.
        memory: For the record.
        times: For the record.

    Raises:
        Failure: With status ``no_kernel``.
    """
    if facts["matmul_flops"] or facts["outside_flops"] or not facts["outside_work"]:
        return
    # A legally aliased output makes XLA copy the input first: traffic, but no work.
    counted = [e for e in programs if e["name"] in pallas or not _COPY.fullmatch(e["name"])]
    total = sum(entry["hbm_bytes"] for entry in counted)
    inside = sum(entry["hbm_bytes"] for entry in programs if entry["name"] in pallas)
    if total and inside < MIN_PALLAS_SHARE * total:
        raise Failure(
            Status.NO_KERNEL,
            "price",
            f"the Pallas calls move {inside / total:.0%} of the program's HBM bytes; do the main "
            "work in the kernel",
            memory=memory,
            times=times,
        )


def judge_numbers(
    checks: Sequence[NumericCheck], race: dict[str, Any], fields: dict[str, Any]
) -> str:
    """Decides on the numbers.

    Args:
        checks: Comparisons of the interpret-mode programs with the reference.
        race: What the simulated run found: ``outcome`` (``clean``, ``race``, ``out_of_bounds``,
            ``stuck``, ``skipped``, ``failed``), ``reason``, ``preset``, ``hint`` (what would
            explain wrong numbers), and the comparisons ``simulated`` and ``plain`` of both
            interpreters on the public inputs where there are any.
        fields: What the result holds so far.

    Returns:
        Why races were not checked, or an empty string if they were.

    Raises:
        Failure: If the numbers are wrong, or not to be trusted.
    """
    wrong = [c for c in checks if not c.passed]
    simulated, plain = race.get("simulated"), race.get("plain")
    where = f"at preset {race.get('preset', '?')}"
    disagree = simulated is not None and simulated.passed != plain.passed
    if wrong and disagree and simulated.passed:
        raise Failure(
            Status.INTERPRETER_ERROR,
            "numerics",
            "the two Pallas interpreters disagree: the simulated TPU computes the right numbers "
            "and plain interpret mode does not, so nothing can be said about the kernel. Plain "
            f"interpret mode: {wrong[0].summary}",
            **fields,
        )
    if wrong:
        message = " | ".join(f"preset {c.preset}, {c.draw} inputs: {c.summary}" for c in wrong)
        raise Failure(Status.INCORRECT, "numerics", message, **fields)
    if race["outcome"] == "race":
        raise Failure(
            Status.INCORRECT,
            "numerics",
            f"a data race was found {where}: {_first_line(race['reason'])}; wait for the copy "
            "before that, with the semaphore that it was started with",
            details=race["reason"],
            **fields,
        )
    if race["outcome"] == "stuck":
        raise Failure(
            Status.INCORRECT,
            "numerics",
            f"the kernel would never end: {_first_line(race['reason'])} {where} is for a copy or "
            "signal that nobody has started; start what is waited for under the same condition",
            **fields,
        )
    if race["outcome"] == "out_of_bounds":
        raise Failure(
            Status.INCORRECT,
            "numerics",
            f"the kernel reaches outside of an array {where}: {last_line(race['reason'])}",
            details=race["reason"],
            **fields,
        )
    if disagree:
        raise Failure(
            Status.INCORRECT,
            "numerics",
            f"with uninitialised memory set to NaN the result is wrong {where}: "
            f"{_first_line(race.get('hint', '')) or simulated.summary}. Initialise scratch and "
            "output blocks before reading them",
            details=simulated.summary,
            **fields,
        )
    return "" if race["outcome"] == "clean" else last_line(race["reason"])


def judge_races(unchecked: str, race: dict[str, Any], races: dict[str, str]) -> tuple[str, bool]:
    """Decides what a simulated run that found nothing says about the full size.

    Args:
        unchecked: Why races were not checked, or empty; see `judge_numbers`.
        race: What the simulated run found.
        races: `judge.evidence.synchronised`.

    Returns:
        Why races at full size were not checked, or an empty string; and whether the kernel may
        have some: if it copies or signals by itself.
    """
    if races and not unchecked:
        unlike = races.get(race["preset"], "there is no program for the TPU to compare with")
        if unlike:
            unchecked = (
                f"at preset {race['preset']} a simulated run found none, but the full-size kernel "
                f"synchronises in another way: {unlike}"
            )
    return unchecked, bool(unchecked and races)


def require_traffic(least: int, fields: dict[str, Any]) -> None:
    """Fails a program that writes less to HBM than its output has.

    Reads are not held against the inputs: XLA may fetch an operand by a copy that the replay does
    not see (a third of the inputs of most matrix products of the suite's baselines).

    Args:
        least: Bytes of the output.
        fields: What the result holds so far, with times and counters.

    Raises:
        Failure: With status ``hack_suspected``.
    """
    counters = fields["counters"]
    written = counters["hbm_written_bytes"]
    if fields["times"].uncertain or counters["estimated_share"] or written >= TRAFFIC * least:
        return
    raise Failure(
        Status.HACK_SUSPECTED,
        "price",
        f"at full size the program writes {written:,.0f} bytes to HBM and its output has "
        f"{least:,}: it does not write all of it",
        **fields,
    )


def judge_full(
    check: NumericCheck | None,
    share: float,
    refused: Refused | None,
    fields: dict[str, Any],
    shown: dict[str, str],
) -> dict[str, Any]:
    """Decides on the numbers at the published size of a candidate that is right at smaller ones.

    Args:
        check: The comparison, or None where there is none.
        share: Share of the output that was compared, 0 to 1.
        refused: Why there is no comparison.
        fields: The fields of the result so far.
        shown: Gets what was shown of the numbers.

    Returns:
        The fields of the final result.

    Raises:
        Failure: If the numbers are wrong, or the program may not be used.
    """
    known = {k: fields[k] for k in ("times", "memory", "counters", "numerics")}
    if refused is not None:
        if refused.status not in (Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.CRASHED):
            raise Failure(refused.status, "numerics", str(refused), **known)
        shown["numerics"] = f"not at the published size: {refused}"
        message = f"{fields['message']} Not checked at the published size: {refused}."
        return {**fields, "message": message}
    numerics = (*fields["numerics"], check)
    extent = "all"
    if share < 1:
        extent = f"{share:.0%}".replace("%", " %")
        shown["numerics"] = f"{extent} of the output, blocks chosen by the secret seed"
    else:
        shown["numerics"] = "all of the output"
    if not check.passed:
        raise Failure(
            Status.INCORRECT,
            "numerics",
            "right at the check presets and wrong at the published size: preset "
            f"{check.preset}, {check.draw} inputs: {check.summary}",
            **{**known, "numerics": numerics},
        )
    message = f"{fields['message']} Checked at the published size: {extent} of the output."
    return {**fields, "numerics": numerics, "message": message}


def judge_time(
    fields: dict[str, Any], least_ms: float, price_error: str, capped: bool = False
) -> dict[str, Any]:
    """Decides on a candidate whose numbers are right.

    Args:
        fields: What the result holds so far, with its times.
        least_ms: The least time that such a program can take, milliseconds.
        price_error: Why there is no time, if there is none.
        capped: Whether it may have races that were not looked for: it earns at most 1 then.

    Returns:
        The fields of the final result.

    Raises:
        Failure: If there is no time, or one that no chip could reach.
    """
    times: Times = fields["times"]
    if times.candidate_ms is None:
        raise Failure(
            Status.EVALUATOR_ERROR,
            "price",
            "the kernel compiles and its numbers are right, but its time cannot be predicted: "
            f"{price_error}",
            **fields,
        )
    if times.candidate_ms < _FLOOR_SLACK * least_ms:
        raise Failure(
            Status.HACK_SUSPECTED,
            "price",
            f"the predicted {times.candidate_ms:.4f} ms are less than the {least_ms:.4f} ms that "
            "it takes to read the inputs and write the output once, or to do the kernel's own "
            "matrix products: at the published size the kernel does not touch all of them, or the "
            "predictor was misled",
            **fields,
        )
    speedup = times.baseline_ms / times.candidate_ms
    if times.uncertain or capped:
        speedup = min(1.0, speedup)
    message = (
        f"Correct. {times.candidate_ms:.3f} ms predicted, XLA {times.baseline_ms:.3f} ms: "
        f"{speedup:.2f}x."
    )
    if times.uncertain:
        message += f" The time is a bound: {'; '.join(times.reasons)}."
    if capped:
        message += " A kernel with copies of its own earns at most 1 while races are not checked."
    status = Status.OK if speedup > 1 else Status.SLOWER
    return {
        **fields,
        "status": status,
        "stage": Stage.CORRECT,
        "speedup": speedup,
        "message": message,
    }


def judge_work(fields: dict[str, Any], workload: Workload, shown: dict[str, str]) -> dict[str, Any]:
    """Caps the speedup of a correct candidate whose work at the published size is not shown.

    A flag in scalar memory that is set at that size alone would switch the work off: the replay
    follows it exactly, and the numbers were checked elsewhere.

    Args:
        fields: The fields of the result of a correct candidate.
        workload: What it claims to compute. Where the inputs' values decide how much work is
            needed, nothing can be shown, and nothing is capped.
        shown: What was shown, by fence.

    Returns:
        The fields of the final result.
    """
    why = shown.get("conservation", "shown")
    decided = workload.partly_read or workload.file is not None
    compared = any(check.preset == "v6e" for check in fields["numerics"])
    if why == "shown" or decided or compared:
        return fields
    speedup = min(1.0, fields["speedup"])
    message = (
        f"{fields['message']} It counts as at most 1: that the kernel does all its work at the "
        f"published size could not be shown. {why} Let constants and grid indices decide what "
        'runs, or have the numbers compared at that size (verify="full").'
    )
    return {**fields, "status": Status.SLOWER, "speedup": speedup, "message": message}


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def last_line(text: object) -> str:
    """The last line of a text that says something: where exceptions put their message."""
    lines = str(text).strip().splitlines()
    return lines[-1].strip() if lines else ""
