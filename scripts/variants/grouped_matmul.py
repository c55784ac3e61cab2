"""Products of equal groups in one grid step, with an inner `emit_pipeline` that moves blocks."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from variants.case import Case, buffered, compiler_params, size

GROUPS, ROWS, DEPTH, COLUMNS = 8, 1024, 2048, 2048


def make(m: int, n: int, k: int, buffers: int = 2, order: str = "gmnk") -> Case:
    """Blocks (m, k) and (k, n) of each group; the pipeline's axes in `order`, k last."""
    x = jax.ShapeDtypeStruct((GROUPS, ROWS, DEPTH), jnp.bfloat16)
    weights = jax.ShapeDtypeStruct((GROUPS, DEPTH, COLUMNS), jnp.bfloat16)
    out = jax.ShapeDtypeStruct((GROUPS, ROWS, COLUMNS), jnp.bfloat16)
    steps = {"g": GROUPS, "m": ROWS // m, "n": COLUMNS // n, "k": DEPTH // k}
    group, row, column = (order.index(axis) for axis in "gmn")

    def step(x_ref, weights_ref, out_ref, sum_ref):
        @pl.when(pl.program_id(3) == 0)
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.dot(x_ref[0], weights_ref[0], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
        def _():
            out_ref[0] = sum_ref[...].astype(out_ref.dtype)

    def kernel(x_ref, weights_ref, out_ref, sum_ref):
        pltpu.emit_pipeline(
            lambda *refs: step(*refs, sum_ref),
            grid=tuple(steps[axis] for axis in order),
            in_specs=[
                buffered((1, m, k), lambda *at: (at[group], at[row], at[3]), buffers),
                buffered((1, k, n), lambda *at: (at[group], at[3], at[column]), buffers),
            ],
            out_specs=[pl.BlockSpec((1, m, n), lambda *at: (at[group], at[row], at[column]))],
        )(x_ref, weights_ref, out_ref)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        kernel,
        in_specs=[anywhere, anywhere],
        out_specs=anywhere,
        out_shape=out,
        scratch_shapes=[pltpu.VMEM((m, n), jnp.float32)],
        compiler_params=compiler_params(),
    )
    return Case(call, (x, weights), 2 * GROUPS * ROWS * DEPTH * COLUMNS, size(x, weights, out))
