"""Linear layer summed over each row; the reductions that follow act on one element.

Shortcut: the sum over features commutes with the product, so x is multiplied by the sum of the
weight's rows, and the matrix unit is not needed. Every array is read once: that is all of the time.
Maximum, mean and log-sum-exp of a single number are that number.

A step takes BLOCK_K columns of both: it sums those of the weight over all features, multiplies
those of x by the sums, and adds to sums of x's rows that stay apart by lane until the last step.

VMEM: two buffers each of weight (2 MiB) and x (1 MiB), and the sums of the rows (2 MiB): 8 MiB.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_K = 128
ROWS = 512  # rows that are summed at once
LANES = 128
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "BLOCK_K": (128, 256, 512, 1024),
    "ROWS": (64, 128, 256, 512),
}


def constraints(BLOCK_K, ROWS):
    """What must hold between the tunables at the published size."""
    m, n, buffers, item = 4096, 8192, 2, 2
    used = buffers * item * BLOCK_K * (m + n) + 4 * LANES * m + 2 * 4 * ROWS * BLOCK_K
    return {"blocks fit in VMEM": used <= VMEM_LIMIT_BYTES}


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _rows(size):
    return max(rows for rows in range(16, ROWS + 1, 16) if size % rows == 0)


def _kernel(x_ref, weight_ref, bias_ref, out_ref, sum_ref):
    (m, block_k), n = x_ref.shape, weight_ref.shape[0]

    @pl.when(pl.program_id(0) == 0)
    def _():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    def add(index, total):
        at = pl.ds(pl.multiple_of(index * rows, rows), rows)
        part = weight_ref[at].astype(jnp.float32).reshape(rows // 8, 8, block_k)
        return total + jnp.sum(part, axis=0)

    rows = _rows(n)
    total = jax.lax.fori_loop(0, n // rows, add, jnp.zeros((8, block_k), jnp.float32))
    total = jnp.sum(total, axis=0, keepdims=True)

    rows_of_x = _rows(m)

    @pl.loop(0, m // rows_of_x)
    def _(index):
        at = pl.ds(pl.multiple_of(index * rows_of_x, rows_of_x), rows_of_x)
        for first in range(0, block_k, LANES):
            lanes = slice(first, first + LANES)
            sum_ref[at] += x_ref[at, lanes].astype(jnp.float32) * total[:, lanes]

    @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
    def _():
        result = jnp.sum(sum_ref[...], axis=1, keepdims=True)
        bias = jnp.sum(bias_ref[...].astype(jnp.float32), axis=1, keepdims=True)
        out_ref[...] = (result + bias).astype(out_ref.dtype)


def workload(x, weight, bias):
    """Sums x (M, K) times weight (N, K) transposed, plus bias (N,), over each row."""
    (m, k), (n, _) = x.shape, weight.shape
    block_k = _block(k, BLOCK_K)
    return pl.pallas_call(
        _kernel,
        grid=(k // block_k,),
        in_specs=[
            pl.BlockSpec((m, block_k), lambda i: (0, i)),
            pl.BlockSpec((n, block_k), lambda i: (0, i)),
            pl.BlockSpec((1, n), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((m, 1), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((m, 1), x.dtype),
        scratch_shapes=[pltpu.VMEM((m, LANES), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, weight, bias.reshape(1, n))
