"""Root-mean-square normalisation of whole rows: limited by memory alone."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from variants.case import Case, buffered, compiler_params, size

ROWS, COLUMNS = 16384, 4096


def _kernel(x_ref, scale_ref, out_ref):
    x = x_ref[...].astype(jnp.float32)
    x *= lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    out_ref[...] = (x * scale_ref[...]).astype(out_ref.dtype)


def make(rows: int, buffers: int = 2, total: int = ROWS) -> Case:
    """Blocks of `rows` whole rows of `total`; buffers of the input and of the result."""
    x = jax.ShapeDtypeStruct((total, COLUMNS), jnp.bfloat16)
    scale = jax.ShapeDtypeStruct((1, COLUMNS), jnp.float32)
    block = buffered((rows, COLUMNS), lambda i: (i, 0), buffers)
    call = pl.pallas_call(
        _kernel,
        grid=(total // rows,),
        in_specs=[block, pl.BlockSpec((1, COLUMNS), lambda i: (0, 0))],
        out_specs=block,
        out_shape=x,
        compiler_params=compiler_params("parallel"),
    )
    return Case(call, (x, scale), 0, size(x, x, scale))
