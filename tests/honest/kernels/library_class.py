# shows: A class with state and a call method.
# workload: rms_norm

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


class Norm:
    def __init__(self, eps):
        self.eps = eps
        self._calls = 0

    def __call__(self, x):
        self._calls += 1
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)


norm = Norm(CONFIG["eps"])


def kernel(x_ref, scale_ref, out_ref):
    normal = norm(x_ref[...].astype(jnp.float32))
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
        ],
        out_specs=pl.BlockSpec((block, dim), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, dim), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x.reshape(rows, dim), scale.reshape(1, dim))
    return out.reshape(x.shape)
