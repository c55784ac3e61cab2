"""Matrix product of whole panels with bias, residual and GELU applied before the only store."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from variants.case import Case, buffered, compiler_params, size

SIZE = 4096


def _kernel(a_ref, b_ref, bias_ref, residual_ref, out_ref):
    x = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)
    x = jax.nn.gelu(x + bias_ref[...], approximate=True) + residual_ref[...].astype(jnp.float32)
    out_ref[...] = x.astype(out_ref.dtype)


def make(m: int, n: int, buffers: int = 2, order: str = "mn") -> Case:
    """Panels of m rows and n columns; the grid's axes in `order`; buffers of every moving input."""
    square = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)
    bias = jax.ShapeDtypeStruct((1, SIZE), jnp.float32)
    rows, columns = order.index("m"), order.index("n")
    steps = {"m": SIZE // m, "n": SIZE // n}
    call = pl.pallas_call(
        _kernel,
        grid=tuple(steps[axis] for axis in order),
        in_specs=[
            buffered((m, SIZE), lambda *at: (at[rows], 0), buffers),
            buffered((SIZE, n), lambda *at: (0, at[columns]), buffers),
            pl.BlockSpec((1, n), lambda *at: (0, at[columns])),
            buffered((m, n), lambda *at: (at[rows], at[columns]), buffers),
        ],
        out_specs=pl.BlockSpec((m, n), lambda *at: (at[rows], at[columns])),
        out_shape=square,
        compiler_params=compiler_params("parallel", "parallel"),
    )
    return Case(call, (square, square, bias, square), 2 * SIZE**3, size(*[square] * 4, bias))
