# shows: A number of grid steps that is computed from the inputs, and is always all of them.
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
    block = 256 if rows % 256 == 0 else 64
    steps = jnp.where(jnp.isnan(scale[0]), 1, rows // block).astype(jnp.int32)
    out = pl.pallas_call(
        kernel,
        grid=(steps,),
        in_specs=[
            pl.BlockSpec((block, dim), lambda i: (i, 0)),
            pl.BlockSpec((1, dim), lambda *_: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block, dim), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, dim), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )(x.reshape(rows, dim), scale.reshape(1, dim))
    return out.reshape(x.shape)
