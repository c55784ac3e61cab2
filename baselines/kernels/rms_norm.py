"""Root-mean-square normalisation, limited by memory alone.

XLA reads the rows twice, once for the statistics and once to scale them. Here a block of whole rows
is read once, its statistics are taken in VMEM and it is written once.

VMEM at 8192 columns: two buffers each of 256 rows in and out, 4 MiB apiece, 16 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_ROWS = 256

TUNABLES = {"BLOCK_ROWS": (16, 32, 64, 128, 256, 512, 1024)}


def constraints(BLOCK_ROWS):
    """What must hold between the tunables at the published size."""
    columns, buffers, item = 8192, 2, 2
    used = 2 * buffers * item * BLOCK_ROWS * columns
    # The default limit is 32 MiB, and a part of the rows is kept in float32.
    return {"blocks fit in VMEM": used <= 16 * 2**20}


def _block(size, preferred):
    # A block is whole or a multiple of 16, the rows of a bfloat16 tile.
    fitting = [block for block in range(16, preferred + 1, 16) if size % block == 0]
    return max(fitting, default=size)


def _kernel(x_ref, scale_ref, out_ref):
    x = x_ref[...].astype(jnp.float32)
    mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
    # Rounded before the scale is applied, as the reference does.
    normed = (x * lax.rsqrt(mean_square + CONFIG["eps"])).astype(out_ref.dtype)
    out_ref[...] = normed * scale_ref[...]


def workload(x, scale):
    """Normalises the rows of x (B, S, D) and multiplies them by scale (D,)."""
    batch, seq, dim = x.shape
    rows = batch * seq
    block_rows = _block(rows, BLOCK_ROWS)
    row_block = pl.BlockSpec((block_rows, dim), lambda i: (i, 0))
    out = pl.pallas_call(
        _kernel,
        grid=(rows // block_rows,),
        in_specs=[row_block, pl.BlockSpec((1, dim), lambda i: (0, 0))],
        out_specs=row_block,
        out_shape=jax.ShapeDtypeStruct((rows, dim), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x.reshape(rows, dim), scale.reshape(1, dim))
    return out.reshape(batch, seq, dim)
