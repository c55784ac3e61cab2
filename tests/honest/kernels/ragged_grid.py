# shows: A last block that hangs over the edge.
# workload: rms_norm

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def kernel(x_ref, scale_ref, out_ref):
    x = x_ref[...].astype(jnp.float32)
    mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
    normal = x * jax.lax.rsqrt(mean_square + CONFIG["eps"])
    out_ref[...] = normal.astype(out_ref.dtype) * scale_ref[...]


def workload(x, scale):
    batch, seq, dim = x.shape
    rows = batch * seq
    block = 80
    out = pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, block),),
        in_specs=[
            pl.BlockSpec((block, dim), lambda i: (i, 0)),
            pl.BlockSpec((1, dim), lambda *_: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block, dim), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, dim), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x.reshape(rows, dim), scale.reshape(1, dim))
    return out.reshape(x.shape)
