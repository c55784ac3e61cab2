"""Operators cut into independent parts, for references that do not fit into memory whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workloads.workload import Workload

Index = tuple[slice, ...]


@dataclass(frozen=True)
class Cut:
    """One way to divide an operator into independent parts.

    Part i of n is what the reference makes of the i-th of n equal ranges along `arguments`' axes,
    all other arguments being whole.

    Attributes:
        output: Axis of the output along which the parts lie one after another, or None where the
            output is the mean of the parts.
        arguments: Name of an argument -> its axis.
        pairs: Arguments of which neighbours along the axis, 2i and 2i + 1, belong together.
    """

    output: int | None
    arguments: Mapping[str, int]
    pairs: Sequence[str] = ()


@dataclass(frozen=True)
class Part:
    """One part: where its arguments are found, and where its result belongs.

    Attributes:
        arguments: One index for each array argument, in their order.
        output: Index into the output, None where the output is the mean of the parts.
    """

    arguments: tuple[Index, ...]
    output: Index | None


def cuts(workload: Workload) -> tuple[Cut, ...]:
    """The declared cuts of a workload; none for one of the user's own."""
    from workloads.data import structure

    return () if workload.file else structure(workload.id).independent


def counts(workload: Workload, preset: str) -> list[tuple[int, ...]]:
    """Numbers of parts along each cut that are possible, from one part to as many as there can be.

    The first cut is used up before the next one begins: batch before heads, rows before columns.
    """
    chosen = cuts(workload)
    steps = [(1,) * len(chosen)]
    for place, cut in enumerate(chosen):
        most = math.gcd(*_lengths(workload, preset, cut))
        for count in (n for n in range(2, most + 1) if most % n == 0):
            steps.append((*steps[-1][:place], count, *(1,) * (len(chosen) - place - 1)))
    return steps


def parts(workload: Workload, preset: str, count: tuple[int, ...]) -> Iterator[Part]:
    """All parts, for numbers of parts along each cut as `counts` gives them."""
    chosen = cuts(workload)
    args, output = workload.presets[preset].args, workload.output(preset)
    mean = any(cut.output is None for cut in chosen)
    for place in itertools.product(*map(range, count)):
        indices = {name: [slice(None)] * len(spec.shape) for name, spec in args.items()}
        where = [slice(None)] * len(output.shape)
        for cut, number, n in zip(chosen, place, count, strict=True):
            for name, axis in cut.arguments.items():
                indices[name][axis] = _range(args[name].shape[axis], number, n)
            if cut.output is not None:
                where[cut.output] = _range(output.shape[cut.output], number, n)
        yield Part(
            tuple(tuple(index) for index in indices.values()), None if mean else tuple(where)
        )


def _range(size: int, number: int, count: int) -> slice:
    return slice(number * size // count, (number + 1) * size // count)


def _lengths(workload: Workload, preset: str, cut: Cut) -> list[int]:
    args = workload.presets[preset].args
    lengths = [
        args[name].shape[axis] // (2 if name in cut.pairs else 1)
        for name, axis in cut.arguments.items()
    ]
    if cut.output is not None:
        lengths.append(workload.output(preset).shape[cut.output])
    return lengths
