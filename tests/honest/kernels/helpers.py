# shows: Helper functions, closures, functools and operator.
# workload: rms_norm

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import functools
import math
import operator


def compose(*functions):
    return functools.reduce(lambda f, g: lambda x: g(f(x)), functions)


mean_square = compose(jnp.square, functools.partial(jnp.mean, axis=-1, keepdims=True))


@functools.lru_cache(maxsize=None)
def size(shape):
    return functools.reduce(operator.mul, shape)


def _mean(x):
    return mean_square(x)


def kernel(x_ref, scale_ref, out_ref):
    x = x_ref[...].astype(jnp.float32)
    mean_square = _mean(x)
    normal = x * jax.lax.rsqrt(mean_square + CONFIG["eps"])
    out_ref[...] = normal.astype(out_ref.dtype) * scale_ref[...]


def workload(x, scale):
    batch, seq, dim = x.shape
    rows = size(x.shape[:2]) if math.gcd(seq, 2) else 0
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
