# shows: Replaces what is not finite before and after, which changes nothing.
# workload: rms_norm

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def kernel(x_ref, scale_ref, out_ref):
    x = x_ref[...].astype(jnp.float32)
    x = jnp.where(jnp.abs(x) < jnp.inf, x, 0.0)
    mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
    normal = x * jax.lax.rsqrt(mean_square + CONFIG["eps"])
    out_ref[...] = normal.astype(out_ref.dtype) * scale_ref[...]


def workload(x, scale):
    batch, seq, dim = x.shape
    rows, block = batch * seq, 64
    out = pl.pallas_call(
        kernel,
        grid=(rows // block,),
        in_specs=[
            pl.BlockSpec((block, dim), lambda i: (i, 0)),
            pl.BlockSpec((1, dim), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block, dim), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, dim), x.dtype),
    )(x.reshape(rows, dim), scale.reshape(1, dim))
    return jnp.where(jnp.isnan(out), 0, out).reshape(x.shape)
