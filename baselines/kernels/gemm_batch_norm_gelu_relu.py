"""Linear layer, normalisation of each feature over the batch, gelu, relu, in one pass over x.

The statistics of a feature need all rows, so the results of all rows for BLOCK_N features stay in
VMEM, rounded as the reference rounds them, with their float32 sums. While the next features are
multiplied, the rows of the last ones are normalised, and each is replaced by its successor: the
grid has one more step over the features, without products. Rows go there and back, so that the rows
stay where the features change.

Numerics: a feature whose spread is below 2^-8 of its mean comes out as the rounding of bfloat16.

Shortcut: the layer's bias shifts a feature and its mean alike, so it is not added.

VMEM: two buffers each of x (8 MiB), weight (16 MiB) and the result (1 MiB), the results of all rows
(32 MiB), and what the compiler keeps of the products: 91 MiB.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 512
BLOCK_N = 1024
ROWS = 512  # rows of a product
VMEM_LIMIT_BYTES = 110 * 2**20

TUNABLES = {
    "BLOCK_M": (256, 512, 1024),
    "BLOCK_N": (256, 512, 1024),
    "ROWS": (128, 256, 512),
}


def constraints(BLOCK_M, BLOCK_N, ROWS):
    """What must hold between the tunables at the published size."""
    m, k, buffers, item = 16384, 8192, 2, 2
    used = buffers * item * (BLOCK_M * k + k * BLOCK_N + BLOCK_M * BLOCK_N) + item * m * BLOCK_N
    # The compiler keeps the rows of a product, and two products in float32.
    used += item * ROWS * k + 2 * 4 * ROWS * BLOCK_N
    return {"blocks fit in VMEM": used <= VMEM_LIMIT_BYTES}


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _gelu(z):
    half = 0.5 * z
    root = math.sqrt(2 / math.pi)
    return half + half * jnp.tanh(z * (root + (0.044715 * root) * (z * z)))


def _row(i, j, rows):
    return jnp.where(j % 2 == 0, i, rows - 1 - i)


def _kernel(x_ref, weight_ref, norm_ref, out_ref, z_ref, sum_ref, square_ref, factor_ref):
    (block_m, block_n), all_rows = out_ref.shape, z_ref.shape[0]
    rows = _block(block_m, ROWS)
    i, j = pl.program_id(1), pl.program_id(0)
    offset = _row(i, j, pl.num_programs(1)) * block_m

    @pl.when(i == 0)
    def _():
        mean = jnp.sum(sum_ref[...], axis=0, keepdims=True) / all_rows
        square = jnp.sum(square_ref[...], axis=0, keepdims=True) / all_rows
        scale, bias = norm_ref[:1].astype(jnp.float32), norm_ref[1:].astype(jnp.float32)
        variance = jnp.maximum(square - mean * mean, 0)  # rounding may make it negative
        factor = scale * lax.rsqrt(variance + CONFIG["eps"])
        factor_ref[:1], factor_ref[1:] = factor, bias - mean * factor
        sum_ref[...] = jnp.zeros_like(sum_ref)
        square_ref[...] = jnp.zeros_like(square_ref)

    def at(first):
        return pl.ds(pl.multiple_of(offset + first, rows), rows)

    def normalise(first):
        y = z_ref[at(first)].astype(jnp.float32) * factor_ref[:1] + factor_ref[1:]
        result = jnp.maximum(_gelu(y), 0.0)
        out_ref[first : first + rows] = result.astype(out_ref.dtype)

    def start(first):
        x = x_ref[first : first + rows]
        return first, lax.dot_general(
            x, weight_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )

    def finish(first, z):
        normalise(first)  # nothing yet with the first features: that block is written once more
        z_ref[at(first)] = z.astype(z_ref.dtype)
        by_sublane = z.reshape(rows // 8, 8, block_n)
        sum_ref[...] += jnp.sum(by_sublane, axis=0)
        square_ref[...] += jnp.sum(by_sublane * by_sublane, axis=0)

    @pl.when(j < pl.num_programs(0) - 1)
    def _():
        # A software pipeline by the order of the source, which the compiler's scheduler mostly
        # keeps: the matrix unit works on the next rows during the epilogue of these.
        started = start(0)
        for first in range(rows, block_m, rows):
            following = start(first)
            finish(*started)
            started = following
        finish(*started)

    @pl.when(j == pl.num_programs(0) - 1)
    def _():
        for first in range(0, block_m, rows):
            normalise(first)


def workload(x, gemm_weight, gemm_bias, bn_weight, bn_bias):
    """Normalises x (M, K) times gemm_weight (N, K) transposed over M, then gelu and relu."""
    del gemm_bias
    (m, k), (n, _) = x.shape, gemm_weight.shape
    block_m, block_n = _block(m, BLOCK_M), _block(n, BLOCK_N)
    rows, columns = m // block_m, n // block_n

    def x_at(j, i):
        return _row(jnp.where(j < columns, i, 0), j, rows), 0

    def out_at(j, i):
        return jnp.where(j == 0, rows - 1, _row(i, j, rows)), jnp.maximum(j - 1, 0)

    return pl.pallas_call(
        _kernel,
        grid=(columns + 1, rows),
        in_specs=[
            pl.BlockSpec((block_m, k), x_at),
            pl.BlockSpec((block_n, k), lambda j, i: (jnp.minimum(j, columns - 1), 0)),
            pl.BlockSpec((2, block_n), lambda j, i: (0, jnp.maximum(j - 1, 0))),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), out_at),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((m, block_n), x.dtype),
            pltpu.VMEM((8, block_n), jnp.float32),
            pltpu.VMEM((8, block_n), jnp.float32),
            pltpu.VMEM((2, block_n), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, gemm_weight, jnp.stack((bn_weight, bn_bias)))
