# shows: The contraction outside, results accumulated in a float32 output.
# workload: gemm

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def block(size, largest):
    return max(b for b in range(128, largest + 1, 128) if size % b == 0)


def kernel(a_ref, b_ref, out_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        out_ref[...] = jnp.zeros_like(out_ref)

    out_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)


def workload(A, B):
    (m, k), (_, n) = A.shape, B.shape
    bm, bn, bk = block(m, 1024), block(n, 1024), block(k, 512)
    out = pl.pallas_call(
        kernel,
        grid=(n // bn, m // bm, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda j, i, s: (i, s)),
            pl.BlockSpec((bk, bn), lambda j, i, s: (s, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda j, i, s: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(A, B)
    return out.astype(A.dtype)
