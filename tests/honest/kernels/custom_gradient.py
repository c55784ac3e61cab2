# shows: A function with a derivative of its own around the call.
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


def run(x, scale):
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


@jax.custom_vjp
def differentiable(x, scale):
    return run(x, scale)


def forward(x, scale):
    return run(x, scale), (x, scale)


def backward(kept, gradient):
    return gradient, kept[1]


differentiable.defvjp(forward, backward)


def workload(x, scale):
    return differentiable(x, scale)
