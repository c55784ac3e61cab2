"""What an agent is told about its last attempt."""

from __future__ import annotations

from jaxbench_env.advice import advice
from jaxbench_env.evaluator.result import EvalResult

MAX_FEEDBACK = 30_000

_FLAGS = {
    "uncalibrated": "predicted times of this chip were not held against measurements",
    "shape_specialised": "the kernel works only at some sizes",
    "races_unchecked": "races were not checked",
    "uncertain": "the time is a bound",
    "work_unshown": "the work at the published size was not shown",
}
_UNITS = {
    "mxu": "MXU",
    "vpu": "VPU",
    "xlu": "XLU",
    "eup": "EUP",
    "load": "loads",
    "store": "stores",
}


def feedback(result: EvalResult, source: str) -> str:
    """The verdict for the author of the kernel: what was wrong, where, what to do next.

    Args:
        result: The verdict.
        source: The kernel text, to quote the line that failed.
    """
    message, details = result.message, result.details.rstrip()
    what, _, first_line = message.partition(": ")
    if first_line and first_line in details:  # the details say it again, and in full
        message = f"{what}."
    elif details in message:
        details = ""
    lines = [f"Status: {result.status.value}. {message[:1].upper()}{message[1:]}"]
    lines += _line(result, source)
    if details:
        lines += ["", details]
    lines += _numbers(result)
    lines += _times(result)
    flags = [_FLAGS.get(flag, flag) for flag in result.flags]
    if result.compiled and flags:
        lines += ["", f"Note: {'; '.join(flags)}."]
    # Lone surrogates of the kernel text could not be printed.
    text = "\n".join(lines).encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= MAX_FEEDBACK:
        return text
    half = MAX_FEEDBACK // 2 - 40
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"


def _line(result: EvalResult, source: str) -> list[str]:
    lines = source.splitlines()
    if result.line is None or not 1 <= result.line <= len(lines):
        return []
    return [f"Line {result.line}: {lines[result.line - 1].strip()[:500]}"]


def _numbers(result: EvalResult) -> list[str]:
    if not result.numerics or result.correct:
        return []
    return ["", "Errors against their limits, largest of an element and RMS:"] + [
        f"- {check.preset}, {check.draw} inputs: {check.max_ratio:.2g} of {check.limit:.2g}, "
        f"{check.rms_error:.2g} of {check.rms_limit:.2g}, {'right' if check.passed else 'wrong'}"
        for check in result.numerics
    ]


def _times(result: EvalResult) -> list[str]:
    times = result.times
    if times.candidate_ms is None:
        return []
    rows = [
        "",
        f"Time at the published size, {times.source} ({times.compiler}): kernel "
        f"{_ms(times.candidate_ms)}, XLA {_ms(times.baseline_ms)}, roofline of the best known "
        f"algorithm {_ms(times.roofline_ms)}.",
    ]
    if result.memory.vmem_used and result.memory.vmem_limit:
        rows.append(
            f"VMEM: {result.memory.vmem_used / 2**20:.1f} MiB of "
            f"{result.memory.vmem_limit / 2**20:.0f} MiB."
        )
    return rows + _profile(result.counters) + advice(result)


def _profile(counters: dict[str, float]) -> list[str]:
    if "dma_wait_share" not in counters or "hbm_bytes" not in counters:
        return []
    slots = ", ".join(
        f"{name} {counters.get(f'{unit}_share', 0.0):.0%}" for unit, name in _UNITS.items()
    )
    return [
        f"Profile: {counters['dma_wait_share']:.0%} of the time waits for memory; "
        f"{counters['hbm_bytes'] / 1e6:,.0f} MB move between HBM and the core at "
        f"{counters.get('hbm_bandwidth_share', 0.0):.0%} of the bandwidth. Slots filled: {slots}."
    ]


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f} ms"
