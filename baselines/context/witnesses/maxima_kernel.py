"""Blocks of whole rows."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 64


def kernel(x_ref, out_ref):
    x = x_ref[...]
    out_ref[...] = jnp.max(x, axis=-1, keepdims=True)


def workload(x):
    rows, columns = x.shape
    return pl.pallas_call(
        kernel,
        grid=(rows // BLOCK,),
        in_specs=[pl.BlockSpec((BLOCK, columns), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((BLOCK, 1), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)
