"""What kind of mistake a failed kernel made: the failure taxonomy of the reports.

`classify` reads statuses and what the compiler, jax and the evaluator wrote. Its words are those of
jax 0.10 and 0.12; tests hold it against real messages of kernels that were broken on purpose
(tests/data/mutants.jsonl, made by scripts/mutate_kernels.py).
"""

from __future__ import annotations

import enum
import re

from jaxbench_env.evaluator.result import EvalResult, Status


class Category(enum.StrEnum):
    """Kinds of mistakes.

    ``API_MISUSE``: names, arguments, specs, refs or memory spaces of jax and Pallas that do not
    exist or are used in another way than they must, and the contract of `workload`.
    ``LAYOUT``: block shapes, slices and copies that do not fall on tiles. ``VMEM``: too much
    on-chip memory (VMEM, SMEM). ``UNSUPPORTED``: an operation or type without a lowering.
    ``TRACING``: Python and shape errors, control flow on traced values. ``NUMERICS``: wrong
    results, also from reads of what was not written or lies outside. ``RACE``: copies and
    semaphores out of order. ``TIMEOUT``: too slow to trace or compile. ``CHEAT``: the work is not
    done, or not by a kernel of the text. ``OTHER``: failures of memory, compiler or evaluator.
    """

    API_MISUSE = "api_misuse"
    LAYOUT = "layout"
    VMEM = "vmem"
    UNSUPPORTED = "unsupported"
    TRACING = "tracing"
    NUMERICS = "numerics"
    RACE = "race"
    TIMEOUT = "timeout"
    CHEAT = "cheat"
    OTHER = "other"


_BY_STATUS = {
    Status.SYNTAX_ERROR: Category.TRACING,
    Status.TIMEOUT: Category.TIMEOUT,
    Status.WRONG_SIGNATURE: Category.API_MISUSE,
    Status.NO_KERNEL: Category.CHEAT,
    Status.HACK_SUSPECTED: Category.CHEAT,
    Status.VMEM_OOM: Category.VMEM,
}

# For the statuses whose messages must be read: patterns in the order in which they are tried, and
# what none of them matches.
_CHEAT, _API = Category.CHEAT, Category.API_MISUSE
_REJECTED = (
    (
        _CHEAT,
        r"finished kernels of a library|platform_dependent|`(?:baselines|workloads|jaxbench_env)",
    ),
)
_INCORRECT = (
    (Category.RACE, r"data race|would never end|two Pallas interpreters disagree"),
    (Category.UNSUPPORTED, r"NotImplementedError"),
)
_TILES = (
    r"block shapes? (?:are|is)|rank 1 block shapes|divisible by (?:8|the tile|128)|"
    r"UnprovenMemoryAccess|statically prove|aligned to tiles|multiple of (?:8|128|the til)|"
    r"strides? to be confined|last dim size|[Ss]trided (?:load|store)|unaligned|[Mm]isaligned|"
    r"not a multiple|tile (?:size|dimension)|tiling"
)
_TRACED = (
    r"Tracer\w*Error|ConcretizationTypeError|"
    r"incompatible shapes|must have equal (?:types|output types)|NameError|UnboundLocalError|"
    r"SyntaxError|IndentationError|KeyError|IndexError|ZeroDivisionError"
)
# Words of Pallas, and of Python about calls: what was called does not exist or takes other things.
_CALLED = (
    r"has no attribute|object is not callable|unexpected keyword argument|"
    r"positional argument|required keyword|captures? constants|must not capture|"
    r"should return None|out_shape|in_specs|out_specs|[Bb]lock[ _]shape|[Ii]ndex[ _]map|[Gg]rid|"
    r"for `(?:swap|get|addupdate)`|longer than `shape`|DMA|[Ss]emaphore|input_output_aliases|"
    r"memory[ _]space|Loads (?:and stores )?are only|[Ss]tore scalars|load scalars|dimension "
    r"semantics|dimension_semantics|unhashable type: 'dict'|CompilerParams|vmem_limit_bytes|"
    r"\bRefs?\b|scratch|index_cast|BlockSpec|program id|function' object is not iterable|"
    r"shift must be"
)
_LOWERED = (
    (Category.LAYOUT, _TILES),
    (_API, _CALLED),
    (
        Category.UNSUPPORTED,
        r"[Nn]ot [Ii]mplemented|Unimplemented|[Uu]nsupported|not supported|failed to legalize|"
        r"Expected matmul acc|Bad (?:lhs|rhs)|Invalid type",
    ),
)
_PATTERNS = {
    Status.REJECTED: (_REJECTED, _API),
    Status.TRACE_ERROR: (
        ((Category.TRACING, _TRACED), (Category.LAYOUT, _TILES), (_API, _CALLED)),
        Category.TRACING,
    ),
    Status.UNSUPPORTED: (((Category.LAYOUT, _TILES),), Category.UNSUPPORTED),
    Status.COMPILE_ERROR: (_LOWERED, Category.UNSUPPORTED),
    Status.INTERPRETER_ERROR: (_INCORRECT, Category.OTHER),
    Status.INCORRECT: (_INCORRECT[:1], Category.NUMERICS),
}


def classify(result: EvalResult) -> Category | None:
    """The kind of mistake in a kernel, from its verdict.

    Args:
        result: The verdict.

    Returns:
        The category; None for a correct kernel.
    """
    if result.correct:
        return None
    if result.status in _BY_STATUS:
        return _BY_STATUS[result.status]
    if result.status not in _PATTERNS:
        return Category.OTHER
    patterns, otherwise = _PATTERNS[result.status]
    said = f"{result.message}\n{_said(result.details)}"
    for category, pattern in patterns:
        if re.search(pattern, said):
            return category
    return otherwise


def _said(details: str) -> str:
    """What an exception says: without quoted lines of the kernel, and the operation in MLIR."""
    lines = details.partition("The MLIR operation involved")[0].splitlines()
    return "\n".join(line for line in lines if not line.startswith(("  File ", "    ")))
