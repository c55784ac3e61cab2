"""Linear layer, scaled, doubled and clipped, its log-sum-exp over each row, and mish.

A step multiplies a (BLOCK_M, K) row panel by a (BLOCK_N, K) column panel at once, a few rows at a
time, and the epilogue of some rows runs while the matrix unit has the next ones. The clip bounds
the exponents, so no running maximum is needed; sums of exponentials stay apart by lane until the
row is complete. The row panel stays while the column panels pass, there and back.

VMEM at K = 8192: two buffers each of x (16 MiB) and weight (16 MiB), the sums of the rows by lane
(0.5 MiB), and what the compiler keeps of the products: 89 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 1024
BLOCK_N = 1024
ROWS = 512  # rows of a product: its epilogue runs beside the next one
LANES = 128
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "BLOCK_M": (256, 512, 1024),
    "BLOCK_N": (256, 512, 1024),
    "ROWS": (128, 256, 512, 1024),
}


def constraints(BLOCK_M, BLOCK_N, ROWS):
    """What must hold between the tunables at the published size."""
    k, buffers, item = 8192, 2, 2
    used = buffers * item * (BLOCK_M * k + k * BLOCK_N)
    # The compiler keeps the rows of a product, and two products in float32.
    used += item * ROWS * k + 2 * 4 * ROWS * BLOCK_N
    return {"blocks fit in VMEM": used <= VMEM_LIMIT_BYTES}


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _by_lane(combine, z):
    """Combines the lane blocks of z (rows, columns) into one (rows, LANES)."""
    result = z[:, :LANES]
    for first in range(LANES, z.shape[1], LANES):
        result = combine(result, z[:, first : first + LANES])
    return result


def _mish(z):
    # tanh(log(1 + e)) = (e^2 + 2 e) / (e^2 + 2 e + 2). Beyond 20 that is one, and e^2 stays finite.
    e = jnp.exp(jnp.minimum(z, 20.0))
    part = e * (e + 2.0)
    return z * part / (part + 2.0)


def _kernel(x_ref, weight_ref, bias_ref, out_ref, sum_ref):
    block_m = x_ref.shape[0]
    rows = _block(block_m, ROWS)
    bias = bias_ref[...].astype(jnp.float32)

    @pl.when(pl.program_id(1) == 0)
    def _():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    def start(first):
        at = slice(first, first + rows)
        return at, lax.dot_general(
            x_ref[at], weight_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )

    def finish(at, z):
        # Scaled, plus itself.
        z = (z + bias) * (2 * CONFIG["scale"])
        z = jnp.clip(z, CONFIG["clamp_min"], CONFIG["clamp_max"]) - CONFIG["clamp_max"]
        sum_ref[at] += _by_lane(jnp.add, jnp.exp(z))

    # A software pipeline by the order of the source, which the compiler's scheduler mostly keeps:
    # the matrix unit works on the next rows during the epilogue of these.
    started = start(0)
    for first in range(rows, block_m, rows):
        following = start(first)
        finish(*started)
        started = following
    finish(*started)

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        total = jnp.log(jnp.sum(sum_ref[...], axis=1, keepdims=True)) + CONFIG["clamp_max"]
        out_ref[...] = (total * _mish(total)).astype(out_ref.dtype)


def workload(x, weight, bias):
    """Maps x (M, K) times weight (N, K) transposed, plus bias (N,), to l * mish(l), l by row."""
    (m, k), (n, _) = x.shape, weight.shape
    block_m, block_n = _block(m, BLOCK_M), _block(n, BLOCK_N)
    last = n // block_n - 1

    def column(i, j):
        # There and back: where the rows change, the columns stay; one panel is fetched, not two.
        return jnp.where(i % 2 == 0, j, last - j)

    return pl.pallas_call(
        _kernel,
        grid=(m // block_m, n // block_n),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
            pl.BlockSpec((block_n, k), lambda i, j: (column(i, j), 0)),
            pl.BlockSpec((1, block_n), lambda i, j: (0, column(i, j))),
        ],
        out_specs=pl.BlockSpec((block_m, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((m, 1), x.dtype),
        scratch_shapes=[pltpu.VMEM((block_m, LANES), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, weight, bias.reshape(1, n))
