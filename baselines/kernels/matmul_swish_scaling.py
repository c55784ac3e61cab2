"""Linear layer with swish, times a constant.

A step multiplies a (BLOCK_M, K) row panel by a (K, BLOCK_N) column panel at once, ROWS rows at a
time. With the values that ship these are all of a panel. The swish is one tanh. The row panel stays
while the column panels pass, there and back.

VMEM at K = 8192: two buffers each of x (16 MiB), weight (16 MiB) and the result (2 MiB), and what
the compiler keeps of the products: 85 MiB.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 1024
BLOCK_N = 1024
ROWS = 1024  # rows of a product: its epilogue runs beside the next one
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "BLOCK_M": (256, 512, 1024),
    "BLOCK_N": (256, 512, 1024),
    "ROWS": (128, 256, 512, 1024),
}


def constraints(BLOCK_M, BLOCK_N, ROWS):
    """What must hold between the tunables at the published size."""
    k, buffers, item = 8192, 2, 2
    used = buffers * item * (BLOCK_M * k + k * BLOCK_N + BLOCK_M * BLOCK_N)
    # The compiler keeps the rows of a product, and two products in float32.
    used += item * ROWS * k + 2 * 4 * ROWS * BLOCK_N
    return {"blocks fit in VMEM": used <= VMEM_LIMIT_BYTES}


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _swish(z):
    half = 0.5 * z  # sigmoid(z) = (1 + tanh(z / 2)) / 2: one transcendental operation, not two
    return half + half * jnp.tanh(half)


def _epilogue(z, bias):
    return _swish(z + bias) * CONFIG["scaling"]


def _kernel(x_ref, weight_ref, bias_ref, out_ref):
    block_m = out_ref.shape[0]
    rows = _block(block_m, ROWS)
    bias = bias_ref[...].astype(jnp.float32)

    def start(first):
        at = slice(first, first + rows)
        return at, jnp.dot(x_ref[at], weight_ref[...], preferred_element_type=jnp.float32)

    def finish(at, z):
        out_ref[at] = _epilogue(z, bias).astype(out_ref.dtype)

    # A software pipeline by the order of the source, which the compiler's scheduler mostly keeps:
    # the matrix unit works on the next rows during the epilogue of these.
    started = start(0)
    for first in range(rows, block_m, rows):
        following = start(first)
        finish(*started)
        started = following
    finish(*started)


def workload(x, weight, bias):
    """Scales the swish of x (M, K) times weight (K, N), plus bias (N,)."""
    (m, k), (_, n) = x.shape, weight.shape
    block_m, block_n = _block(m, BLOCK_M), _block(n, BLOCK_N)
    last = n // block_n - 1

    def column(i, j):
        # There and back: where the rows change, the columns stay; one panel is fetched, not two.
        return jnp.where(i % 2 == 0, j, last - j)

    vector = pl.BlockSpec((1, block_n), lambda i, j: (0, column(i, j)))
    return pl.pallas_call(
        _kernel,
        grid=(m // block_m, n // block_n),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, block_n), lambda i, j: (0, column(i, j))),
            vector,
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, column(i, j))),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, weight, bias.reshape(1, n))
