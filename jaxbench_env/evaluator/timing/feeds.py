"""Values of a kernel's scalar operands: which program of a dump they belong to, and how they lie.

Control flow that reads scalar operands (lengths, page tables, group offsets, grid bounds) can only
be followed with their values. Whoever knows them describes the program's kernel calls (`Kernel`);
`match` finds them again in the compiled module, where they have other names and another order.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxbench_env.evaluator.timing import hlo

MAX_WORDS = 1 << 18  # 32-bit words of one operand: all of SMEM
MAX_PADDED = 1 << 28  # elements of an operand times those of a tile

_SHAPE = re.compile(
    r"(?P<type>pred|[su](?:8|16|32))\[(?P<dims>[\d,]*)\]"
    r"(?:\{(?P<minor>[\d,]*)(?::(?P<tiles>(?:T\([\d,]+\)|\([\d,]+\))*)[^}]*)?\})?"
)


@dataclass(frozen=True)
class Kernel:
    """One kernel call of a program, before it was compiled.

    Attributes:
        body: `hlo.kernel_hash` of its code.
        values: Operand index -> values, an integer array in the shape of the operand.
        missing: Operand index -> why there are no values, as the end of a sentence.
        after: Which calls of the same list it depends on, and so comes after in any schedule.
    """

    body: str
    values: Mapping[int, np.ndarray] = field(default_factory=dict)
    missing: Mapping[int, str] = field(default_factory=dict)
    after: frozenset[int] = frozenset()


def to_blobs(kernels: Sequence[Kernel]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Kernels as data for JSON and the bytes of their values; `from_blobs` reads them back."""
    records, blobs = [], []
    for kernel in kernels:
        arrays = []
        for operand, values in kernel.values.items():
            arrays.append([operand, str(values.dtype), list(values.shape)])
            blobs.append(np.ascontiguousarray(values).tobytes())
        missing = list(kernel.missing.items())
        records.append(
            dict(body=kernel.body, arrays=arrays, missing=missing, after=sorted(kernel.after))
        )
    return records, blobs


def from_blobs(records: Sequence[Mapping[str, Any]], blobs: Iterable[bytes]) -> list[Kernel]:
    """Reverses `to_blobs`."""
    rest = iter(blobs)
    return [
        Kernel(
            record["body"],
            {
                i: np.frombuffer(next(rest), kind).reshape(dims)
                for i, kind, dims in record["arrays"]
            },
            dict(record["missing"]),
            frozenset(record["after"]),
        )
        for record in records
    ]


Feeds = dict[tuple[str, int], list[int | None]]


def match(kernels: Sequence[Kernel], module: hlo.Module) -> tuple[Feeds, list[str]]:
    """Finds the kernels in a compiled module.

    Where several calls have the same code and other values, they are told apart only by their
    dependencies: each must come after the one before. Otherwise they get no values.

    Args:
        kernels: All kernel calls of the program.
        module: The compiled module.

    Returns:
        Feeds for `predict`, and why operands have none, as sentences.
    """
    compiled: dict[str, list[str]] = defaultdict(list)
    for name, one in module.instructions.items():
        if one.kernel:
            compiled[one.kernel].append(name)
    groups: dict[str, list[int]] = defaultdict(list)
    for index, kernel in enumerate(kernels):
        groups[kernel.body].append(index)
    feeds: Feeds = {}
    notes: list[str] = []
    for body, indices in groups.items():
        names = compiled.get(body, [])
        if not names or not any(kernels[i].values or kernels[i].missing for i in indices):
            continue
        pairs = _pairs(kernels, indices, names)
        if pairs is None:
            notes.append(
                f"{', '.join(names)}: calls of one kernel with different scalar operands, of which "
                "the compiled program does not show which is which"
            )
            continue
        for kernel, name in pairs:
            for operand, why in kernel.missing.items():
                notes.append(f"operand {operand} of {name} has no values: {why}")
            for operand, values in kernel.values.items():
                words = _packed(module.instructions[name], operand, values)
                if words is None:
                    notes.append(f"operand {operand} of {name} has an unknown layout")
                else:
                    feeds[(name, operand)] = words
    return feeds, notes


def _pairs(
    kernels: Sequence[Kernel], indices: list[int], names: list[str]
) -> list[tuple[Kernel, str]] | None:
    """Which kernel is which compiled program, or None if that cannot be told."""
    first = kernels[indices[0]]
    if all(_same(first, kernels[i]) for i in indices):
        return [(first, name) for name in names]  # some may have been merged, or copied
    chained = all(a in kernels[b].after for a, b in zip(indices, indices[1:], strict=False))
    if len(names) != len(indices) or not chained:
        return None
    return [(kernels[i], name) for i, name in zip(indices, names, strict=True)]


def _same(one: Kernel, other: Kernel) -> bool:
    return (
        one.missing == other.missing
        and one.values.keys() == other.values.keys()
        and all(np.array_equal(one.values[i], other.values[i]) for i in one.values)
    )


def _packed(one: hlo.Instruction, operand: int, values: np.ndarray) -> list[int | None] | None:
    """The 32-bit words of an operand as it lies in memory, or None if its layout is unknown."""
    if operand >= len(one.operands):
        return None
    return pack(values, one.operands[operand])


def pack(values: np.ndarray, shape: str) -> list[int | None] | None:
    """Lays an array out as an HLO shape says; a copy into scalar memory keeps that order.

    A shape `s32[3,300]{1,0:T(8,128)}` is cut into tiles of 8 x 128, the last ones filled up; tiles
    and what is in them go row by row. `T(4,128)(4,1)` cuts each tile again: four rows of bytes
    share a word.

    Args:
        values: Integers or truth values.
        shape: The HLO shape with its layout.

    Returns:
        32-bit words; None for those that are filled up, at least in part. None for a shape that is
        not that of `values`, or a layout of another kind.
    """
    found = _SHAPE.fullmatch(shape.strip())
    if found is None or values.dtype.kind not in "iub":
        return None
    dims = tuple(int(d) for d in found["dims"].split(",") if d)
    if dims != values.shape or values.size > MAX_WORDS:
        return None
    bits = 8 if found["type"] == "pred" else int(found["type"][1:])
    minor = [int(d) for d in (found["minor"] or "").split(",") if d]
    if minor and sorted(minor) != list(range(len(dims))):
        return None
    order = minor[::-1] or list(range(len(dims)))
    array = np.transpose(values.astype(np.int64) & ((1 << bits) - 1), order)
    filled = np.ones(array.shape, bool)
    tiles = re.findall(r"\(([\d,]+)\)", found["tiles"] or "")
    if array.size > 1:  # a single number is a word, however its tile is filled up
        for tile in tiles:
            sizes = tuple(int(t) for t in tile.split(","))
            if not all(sizes) or len(sizes) > array.ndim:
                return None
            if array.size * math.prod(sizes) > MAX_PADDED:
                return None
            array, filled = _tile(array, sizes), _tile(filled, sizes)
    array, filled = array.reshape(-1), filled.reshape(-1)
    each = 32 // bits
    short = -len(array) % each
    array, filled = np.pad(array, (0, short)), np.pad(filled, (0, short))
    if values.size == 1:
        filled[:] = True  # passed by value, extended to a word
    words = (array.reshape(-1, each) << (bits * np.arange(each))).sum(axis=1)
    known = filled.reshape(-1, each).all(axis=1)
    return [w if k else None for w, k in zip(words.tolist(), known.tolist(), strict=True)]


def _tile(array: np.ndarray, tile: tuple[int, ...]) -> np.ndarray:
    """Cuts the last axes into tiles: (..., n, m) -> (..., n / a, m / b, a, b)."""
    outer, axes = array.shape[: array.ndim - len(tile)], array.shape[array.ndim - len(tile) :]
    counts = [-(-n // t) for n, t in zip(axes, tile, strict=True)]
    fill = [(0, c * t - n) for c, t, n in zip(counts, tile, axes, strict=True)]
    array = np.pad(array, [(0, 0)] * len(outer) + fill)
    split = [size for pair in zip(counts, tile, strict=True) for size in pair]
    array = array.reshape(*outer, *split)
    first = len(outer)
    blocks, inner = range(first, array.ndim, 2), range(first + 1, array.ndim, 2)
    return array.transpose(*range(first), *blocks, *inner)
