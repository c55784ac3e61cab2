"""What the KernelBench sequences around a linear layer have in common: sizes and registration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workloads.registry import register
from workloads.workload import ArraySpec, Generate, Tolerance, Workload

SIZES: Mapping[str, Mapping[str, int]] = {
    "v6e": {"M": 4096, "K": 8192, "N": 8192},
    "tiles": {"M": 1024, "K": 2048, "N": 1024},
    "varied": {"M": 384, "K": 768, "N": 1536},
}
FEATURES = {"batch_size": "M", "in_features": "K", "out_features": "N"}
HIDDEN = {"batch_size": "M", "input_size": "K", "hidden_size": "N"}
_AXES = {"M": "M", "K": "K", "N": "N", "H": "Hd"}  # letters of `sequence`'s arguments

_TOLERANCE = Tolerance()


def product_flops(s: Mapping[str, int]) -> int:
    """Operations of the product of x and the weight."""
    return 2 * s["M"] * s["K"] * s["N"]


def sizes_with(**v6e: int) -> dict[str, dict[str, int]]:
    """The usual sizes with some of the published ones replaced."""
    return {**SIZES, "v6e": {**SIZES["v6e"], **v6e}}


def grouped(group_size: int, **v6e: int) -> dict[str, dict[str, int]]:
    """The usual sizes with as many groups of features as the group size gives."""
    return {
        name: {**sizes, "num_groups": sizes["N"] // group_size}
        for name, sizes in sizes_with(**v6e).items()
    }


def sequence(
    reference: Callable[..., Any],
    *,
    number: str,
    upstream_name: str,
    problem: int,
    summary: str,
    generate: Generate,
    arguments: Sequence[str] = ("x", "weight:KN", "bias"),
    sizes: Mapping[str, Mapping[str, int]] = SIZES,
    published_sizes: Mapping[str, str] = FEATURES,
    constants: Mapping[str, float] | None = None,
    published_names: Mapping[str, str | int | float] | None = None,
    flops: Callable[[Mapping[str, int]], int] = product_flops,
    flops_useful: Callable[[Mapping[str, int]], int] | None = None,
    tolerance: Tolerance = _TOLERANCE,
    published_reference: Callable[..., Any] | None = None,
) -> Workload:
    """Registers a sequence of operations that follows a linear layer, all in bfloat16.

    Args:
        reference: The reference; its name is the id.
        number: Number in the published tables.
        upstream_name: Name in the published suite.
        problem: Number of the KernelBench problem, level 2.
        summary: See `Workload`.
        generate: See `Workload`.
        arguments: Names in order, each with the axes of its array after a colon (``weight:KN``;
            ``1`` stands for an axis of length one). Without them, ``x`` is ``MK`` and every other
            a vector of ``N`` numbers.
        sizes: See `Workload`.
        published_sizes: Keys of the published suite for our sizes.
        constants: See `Workload`.
        published_names: Published keys other than those of the sizes.
        flops: See `Workload`.
        flops_useful: See `Workload`; by default the same as `flops`.
        tolerance: See `Workload`.
        published_reference: See `Workload`.
    """

    def shapes(s: Mapping[str, int]) -> dict[str, ArraySpec]:
        specs = {}
        for argument in arguments:
            name, _, axes = argument.partition(":")
            axes = axes or ("MK" if name == "x" else "N")
            shape = tuple(1 if axis == "1" else s[_AXES[axis]] for axis in axes)
            specs[name] = ArraySpec(shape, "bfloat16")
        return specs

    return register(
        Workload(
            id=reference.__name__,
            number=number,
            upstream_name=upstream_name,
            family="matmul",
            model=f"KernelBench level 2, problem {problem}",
            summary=summary,
            reference=reference,
            shapes=shapes,
            sizes=sizes,
            generate=generate,
            flops=flops,
            flops_useful=flops_useful or flops,
            constants=constants or {},
            published_names={**published_sizes, **(published_names or {})},
            tolerance=tolerance,
            published_reference=published_reference,
        )
    )
