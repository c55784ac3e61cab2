# shows: A product with bias and activation in its last step.
# workload: gemm_add_relu

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def block(size, largest):
    return max(b for b in range(128, largest + 1, 128) if size % b == 0)


def kernel(x_ref, w_ref, bias_ref, out_ref, acc_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.broadcast_to(bias_ref[...].astype(jnp.float32), acc_ref.shape)

    acc_ref[...] += jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        out_ref[...] = jax.nn.relu(acc_ref[...]).astype(out_ref.dtype)


def workload(x, weight, bias):
    (m, k), (_, n) = x.shape, weight.shape
    bm, bn, bk = block(m, 1024), block(n, 1024), block(k, 512)
    return pl.pallas_call(
        kernel,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, s: (i, s)),
            pl.BlockSpec((bk, bn), lambda i, j, s: (s, j)),
            pl.BlockSpec((1, bn), lambda i, j, s: (0, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, s: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, weight, bias.reshape(1, n))
