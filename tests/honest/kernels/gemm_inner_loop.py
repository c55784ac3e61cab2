# shows: A loop over the contraction inside a step.
# workload: gemm

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def block(size, largest):
    return max(b for b in range(128, largest + 1, 128) if size % b == 0)


CHUNK = 256


def kernel(a_ref, b_ref, out_ref):
    def body(s, acc):
        at = pl.ds(s * CHUNK, CHUNK)
        return acc + jnp.dot(a_ref[:, at], b_ref[at], preferred_element_type=jnp.float32)

    steps = a_ref.shape[1] // CHUNK
    acc = jax.lax.fori_loop(0, steps, body, jnp.zeros(out_ref.shape, jnp.float32))
    out_ref[...] = acc.astype(out_ref.dtype)


def workload(A, B):
    (m, k), (_, n) = A.shape, B.shape
    bm, bn = block(m, 256), block(n, 256)
    return pl.pallas_call(
        kernel,
        grid=(m // bm, n // bn),
        in_specs=[
            pl.BlockSpec((bm, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, bn), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), A.dtype),
    )(A, B)
