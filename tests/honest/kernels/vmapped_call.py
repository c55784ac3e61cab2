# shows: A Pallas call under vmap.
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


def one(x, scale):
    rows, dim = x.shape
    row_block = pl.BlockSpec((64, dim), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(rows // 64,),
        in_specs=[row_block, pl.BlockSpec((1, dim), lambda i: (0, 0))],
        out_specs=row_block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, scale.reshape(1, dim))


def workload(x, scale):
    return jax.vmap(one, in_axes=(0, None))(x, scale)
