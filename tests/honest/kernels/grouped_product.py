# shows: One product per group, the group an axis of the grid.
# workload: ragged_dot

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def block(size, largest):
    return max(b for b in range(128, largest + 1, 128) if size % b == 0)


def kernel(x_ref, w_ref, out_ref, acc_ref):
    @pl.when(pl.program_id(3) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def _():
        out_ref[...] = acc_ref[...].astype(out_ref.dtype)


def workload(x, weights):
    (g, m, k), n = x.shape, weights.shape[2]
    bm, bn, bk = (192 if m == 192 else block(m, 512)), block(n, 1024), block(k, 512)
    return pl.pallas_call(
        kernel,
        grid=(g, m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((None, bm, bk), lambda g, i, j, s: (g, i, s)),
            pl.BlockSpec((None, bk, bn), lambda g, i, j, s: (g, s, j)),
        ],
        out_specs=pl.BlockSpec((None, bm, bn), lambda g, i, j, s: (g, i, j)),
        out_shape=jax.ShapeDtypeStruct((g, m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
    )(x, weights)
