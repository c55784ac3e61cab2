"""The indices are prefetched into scalar memory, and choose the rows of a block in VMEM."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 8


def kernel(indices_ref, table_ref, out_ref):
    first = pl.program_id(0) * BLOCK
    for row in range(BLOCK):
        out_ref[row, :] = table_ref[indices_ref[first + row], :] * 2


def workload(table, indices):
    rows, columns = table.shape
    chosen = indices.shape[0]
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(chosen // BLOCK,),
            in_specs=[pl.BlockSpec((rows, columns), lambda i, indices: (0, 0))],
            out_specs=pl.BlockSpec((BLOCK, columns), lambda i, indices: (i, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((chosen, columns), table.dtype),
    )(indices, table)
