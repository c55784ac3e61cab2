"""What a kernel module makes of its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

#: Nearly all of the 128 MiB of a v6e, so that blocks of 2048 can be compared.
VMEM_LIMIT_BYTES = 120 << 20


@dataclass(frozen=True)
class Case:
    """One variant, ready to be traced.

    Attributes:
        function: The kernel's caller.
        specs: Its arguments.
        flops: Matrix-unit work that any implementation needs; 0 where there is none.
        bytes: HBM bytes that any implementation moves: every argument and the result once.
    """

    function: Callable
    specs: tuple[jax.ShapeDtypeStruct, ...]
    flops: int
    bytes: int


def size(*arrays: jax.ShapeDtypeStruct) -> int:
    """Bytes of some arrays."""
    return sum(array.size * array.dtype.itemsize for array in arrays)


def buffered(shape: tuple[int, ...], index_map: Callable, buffers: int) -> pl.BlockSpec:
    """A block with a number of buffers; two are the default and are not asked for."""
    if buffers == 2:
        return pl.BlockSpec(shape, index_map)
    return pl.BlockSpec(shape, index_map, pipeline_mode=pl.Buffered(buffers))


def compiler_params(*semantics: str) -> pltpu.CompilerParams:
    """Parameters of a call whose grid axes have these semantics."""
    return pltpu.CompilerParams(
        dimension_semantics=semantics or None, vmem_limit_bytes=VMEM_LIMIT_BYTES
    )
