"""Matrix product with the contraction in the innermost grid axis and a float32 accumulator."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from variants.case import Case, buffered, compiler_params, size

SIZE = 4096


def _kernel(a_ref, b_ref, out_ref, sum_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    sum_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        out_ref[...] = sum_ref[...].astype(out_ref.dtype)


def make(m: int, n: int, k: int, buffers: int = 2, order: str = "mnk", depth: int = SIZE) -> Case:
    """Blocks (m, k) and (k, n); the grid's axes in `order`; `depth` is the contracted size."""
    a = jax.ShapeDtypeStruct((SIZE, depth), jnp.bfloat16)
    b = jax.ShapeDtypeStruct((depth, SIZE), jnp.bfloat16)
    out = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)
    rows, columns = order.index("m"), order.index("n")
    steps = {"m": SIZE // m, "n": SIZE // n, "k": depth // k}
    call = pl.pallas_call(
        _kernel,
        grid=tuple(steps[axis] for axis in order),
        in_specs=[
            buffered((m, k), lambda *at: (at[rows], at[2]), buffers),
            buffered((k, n), lambda *at: (at[2], at[columns]), buffers),
        ],
        out_specs=pl.BlockSpec((m, n), lambda *at: (at[rows], at[columns])),
        out_shape=out,
        scratch_shapes=[pltpu.VMEM((m, n), jnp.float32)],
        compiler_params=compiler_params("parallel", "parallel", "arbitrary"),
    )
    return Case(call, (a, b), 2 * SIZE * SIZE * depth, size(a, b, out))
