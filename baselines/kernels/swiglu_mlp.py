"""Gated MLP in two kernels: both projections with the gate, and the projection down.

The first reads a panel of x once for both products; the gate is applied to a part of the columns
while the next part is multiplied. The contraction of the second, 28672, is too long for whole
panels in VMEM. It is cut outside the columns: the float32 sums of a whole panel of rows stay in
VMEM, and a block of the contraction of x stays while its weights stream past.

VMEM of the first: two buffers each of x (16 MiB), gate and up (8 MiB) and the result (1 MiB),
66 MiB. Of the second: two buffers of x (14 MiB), weights (14 MiB) and the result (2 MiB), 60 MiB,
and 32 MiB of sums.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 1024
BLOCK_N = 512
PART = 256  # columns that are gated while the next are multiplied
DOWN_N = 1024
DOWN_K = 7168
VMEM_LIMIT_BYTES = 110 * 2**20

TUNABLES = {
    "BLOCK_M": (512, 1024),
    "BLOCK_N": (256, 512),
    "PART": (128, 256, 512),
    "DOWN_N": (256, 512, 1024),
    "DOWN_K": (2048, 3584, 7168),
}


def constraints(BLOCK_M, BLOCK_N, PART, DOWN_N, DOWN_K):
    """What must hold between the tunables at the published size."""
    k, n, buffers, item = 8192, 8192, 2, 2
    first = buffers * item * (BLOCK_M * k + 2 * k * BLOCK_N + BLOCK_M * BLOCK_N)
    second = buffers * item * (BLOCK_M * DOWN_K + DOWN_K * DOWN_N + BLOCK_M * DOWN_N)
    second += 4 * BLOCK_M * n
    return {
        "a block is cut into whole parts": BLOCK_N % PART == 0,
        # The products wait in float32.
        "blocks up fit in VMEM": first + 16 * BLOCK_M * BLOCK_N <= VMEM_LIMIT_BYTES,
        "blocks down fit in VMEM": second + 8 * BLOCK_M * DOWN_N <= VMEM_LIMIT_BYTES,
    }


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _up(x_ref, gate_ref, up_ref, out_ref, *, part):
    def start(column):
        at = slice(column, column + part)
        gate = jnp.dot(x_ref[...], gate_ref[:, at], preferred_element_type=jnp.float32)
        return at, gate, jnp.dot(x_ref[...], up_ref[:, at], preferred_element_type=jnp.float32)

    def finish(at, gate, up):
        half = 0.5 * gate  # silu(x) = x / 2 * (1 + tanh(x / 2))
        out_ref[:, at] = ((half + half * jnp.tanh(half)) * up).astype(out_ref.dtype)

    # A software pipeline by the order of the source, which the compiler's scheduler mostly keeps.
    started = []
    for column in range(0, out_ref.shape[1], part):
        started.append(start(column))
        if len(started) > 1:
            finish(*started.pop(0))
    finish(*started.pop(0))


def _down(x_ref, weight_ref, out_ref, sum_ref):
    k, n = pl.program_id(1), pl.program_id(2)
    before = jnp.where(k == 0, 0.0, sum_ref[n])
    total = before + jnp.dot(x_ref[...], weight_ref[...], preferred_element_type=jnp.float32)
    sum_ref[n] = total
    out_ref[...] = total.astype(out_ref.dtype)  # leaves VMEM after the last k only


def workload(x, gate_kernel, up_kernel, down_kernel):
    """The MLP of x (B, S, E), gate_kernel and up_kernel (E, M), down_kernel (M, E)."""
    batch, seq, dim = x.shape
    rows, hidden = batch * seq, gate_kernel.shape[1]
    block_m, block_n = _block(rows, BLOCK_M), _block(hidden, BLOCK_N)
    weights = pl.BlockSpec((dim, block_n), lambda m, n: (0, n))
    gated = pl.pallas_call(
        functools.partial(_up, part=_block(block_n, PART)),
        grid=(rows // block_m, hidden // block_n),
        in_specs=[pl.BlockSpec((block_m, dim), lambda m, n: (m, 0)), weights, weights],
        out_specs=pl.BlockSpec((block_m, block_n), lambda m, n: (m, n)),
        out_shape=jax.ShapeDtypeStruct((rows, hidden), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x.reshape(rows, dim), gate_kernel, up_kernel)

    down_n, down_k = _block(dim, DOWN_N), _block(hidden, DOWN_K)
    last = hidden // down_k - 1
    out = pl.pallas_call(
        _down,
        grid=(rows // block_m, hidden // down_k, dim // down_n),
        in_specs=[
            pl.BlockSpec((block_m, down_k), lambda m, k, n: (m, k)),
            pl.BlockSpec((down_k, down_n), lambda m, k, n: (k, n)),
        ],
        out_specs=pl.BlockSpec((block_m, down_n), lambda m, k, n: (m, jnp.where(k == last, n, 0))),
        out_shape=jax.ShapeDtypeStruct((rows, dim), x.dtype),
        scratch_shapes=[pltpu.VMEM((dim // down_n, block_m, down_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=VMEM_LIMIT_BYTES,
        ),
    )(gated, down_kernel)
    return out.reshape(batch, seq, dim)
