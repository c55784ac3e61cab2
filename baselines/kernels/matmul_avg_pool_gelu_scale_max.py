"""Linear layer, means of consecutive features, gelu, and the maximum of each row.

Shortcut: the means commute with the product, so the weight's columns are pooled first and x meets
16 times fewer of them. Every array is read once, which is most of the time.

A step takes BLOCK_K of the contraction: it pools those rows of the weight, by products with a
matrix of zeros and ones for POOLED columns at a time, and adds x times the pooled weight to a
float32 sum that stays in VMEM. The last step adds the pooled bias and does the rest.

VMEM: two buffers each of weight (4 MiB) and x (2 MiB), the sum (8 MiB), the ones (0.5 MiB): 23 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_K = 256
POOLED = 128  # pools that one product makes
LANES = 128
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "BLOCK_K": (128, 256, 512, 1024),
    "POOLED": (128, 256, 512),
}


def constraints(BLOCK_K, POOLED):
    """What must hold between the tunables at the published size."""
    m, n, pool, buffers, item = 4096, 8192, 16, 2, 2
    used = buffers * item * BLOCK_K * (m + n) + 2 * 4 * m * (n // pool)
    return {"blocks fit in VMEM": used + item * pool * POOLED**2 <= VMEM_LIMIT_BYTES}


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _gelu(z):
    half = 0.5 * z
    return half + half * jnp.tanh(z * (0.7978845608 + 0.0356774081 * (z * z)))


def _kernel(x_ref, weight_ref, bias_ref, out_ref, ones_ref, sum_ref):
    span, pooled = ones_ref.shape
    pool = span // pooled
    columns = weight_ref.shape[1]

    @pl.when(pl.program_id(0) == 0)
    def _():
        feature = lax.broadcasted_iota(jnp.int32, ones_ref.shape, 0)
        first = pool * lax.broadcasted_iota(jnp.int32, ones_ref.shape, 1)
        inside = (feature >= first) & (feature < first + pool)
        ones_ref[...] = jnp.where(inside, 1.0, 0.0).astype(ones_ref.dtype)
        sum_ref[...] = jnp.zeros_like(sum_ref)

    def pools(ref):
        """The sums of pools of the columns of a reference, in float32."""
        parts = [
            jnp.dot(ref[:, first : first + span], ones_ref[...], preferred_element_type=jnp.float32)
            for first in range(0, columns, span)
        ]
        return jnp.concatenate(parts, axis=1)

    weight = (pools(weight_ref) / pool).astype(x_ref.dtype)
    sum_ref[...] += jnp.dot(x_ref[...], weight, preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
    def _():
        z = sum_ref[...] + pools(bias_ref)[:1] / pool
        best = jnp.max(_gelu(z) * CONFIG["scale"], axis=1, keepdims=True)
        # The rows of the result lie in the lanes, as those of the output do.
        out_ref[...] = jnp.broadcast_to(best, (z.shape[0], LANES)).T[:1].astype(out_ref.dtype)


def workload(x, weight, bias):
    """Maxima over pools of scaled gelu of x (M, K) times weight (K, N), plus bias (N,)."""
    (m, k), (_, n), pool = x.shape, weight.shape, CONFIG["pool"]
    block_k, pooled = _block(k, BLOCK_K), _block(n // pool, POOLED)
    out = pl.pallas_call(
        _kernel,
        grid=(k // block_k,),
        in_specs=[
            pl.BlockSpec((m, block_k), lambda i: (0, i)),
            pl.BlockSpec((block_k, n), lambda i: (i, 0)),
            pl.BlockSpec((16, n), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((1, m), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((1, m), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((pool * pooled, pooled), weight.dtype),
            pltpu.VMEM((m, n // pool), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, weight, jnp.broadcast_to(bias, (16, n)))
    return out.reshape(m)
