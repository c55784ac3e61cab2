# shows: A small table made by numpy, and a sum weighted by it.
# workload: rms_norm

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import numpy as np

WEIGHTS = np.full((1, 128), 1.0, np.float32)


def kernel(x_ref, scale_ref, weights_ref, out_ref):
    x = x_ref[...].astype(jnp.float32)
    parts = (x * x).reshape(x.shape[0], -1, 128).sum(1) * weights_ref[...]
    mean_square = jnp.sum(parts, axis=-1, keepdims=True) / x.shape[1]
    normal = x * jax.lax.rsqrt(mean_square + CONFIG["eps"])
    out_ref[...] = normal.astype(out_ref.dtype) * scale_ref[...]


def workload(x, scale):
    batch, seq, dim = x.shape
    rows = batch * seq
    block = 256 if rows % 256 == 0 else 64
    out = pl.pallas_call(
        kernel,
        grid=(rows // block,),
        in_specs=[
            pl.BlockSpec((block, dim), lambda i: (i, 0)),
            pl.BlockSpec((1, dim), lambda *_: (0, 0)),
            pl.BlockSpec((1, 128), lambda *_: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block, dim), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, dim), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x.reshape(rows, dim), scale.reshape(1, dim), jnp.asarray(WEIGHTS))
    return out.reshape(x.shape)
