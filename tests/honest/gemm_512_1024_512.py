"""A tiled product with blocks of 512 x 1024 and 512 of K."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BM, BN, BK = 512, 1024, 512


def kernel(a_ref, b_ref, o_ref, acc_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def blocks(size, block):
    if size % block:
        raise ValueError(f"{size} is no multiple of {block}")
    return size // block


def workload(A, B):
    (m, k), (_, n) = A.shape, B.shape
    return pl.pallas_call(
        kernel,
        grid=(blocks(m, BM), blocks(n, BN), blocks(k, BK)),
        in_specs=[
            pl.BlockSpec((BM, BK), lambda i, j, s: (i, s)),
            pl.BlockSpec((BK, BN), lambda i, j, s: (s, j)),
        ],
        out_specs=pl.BlockSpec((BM, BN), lambda i, j, s: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), A.dtype),
        scratch_shapes=[pltpu.VMEM((BM, BN), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(A, B)
