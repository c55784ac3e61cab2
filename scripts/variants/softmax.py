"""Softmax of whole rows with DMAs started and awaited by hand."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from variants.case import Case, compiler_params, size

ROWS, COLUMNS = 16384, 4096


def make(rows: int, buffers: int = 2) -> Case:
    """Blocks of `rows` whole rows; a ring of `buffers` for the input and one for the result."""
    x = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.bfloat16)
    steps = ROWS // rows

    def kernel(x_ref, out_ref, in_ref, done_ref, in_flags, out_flags):
        def load(step):
            slot = lax.rem(step, buffers)
            at = pl.ds(pl.multiple_of(step * rows, rows), rows)
            return pltpu.make_async_copy(x_ref.at[at], in_ref.at[slot], in_flags.at[slot])

        def store(step):
            slot = lax.rem(step, buffers)
            at = pl.ds(pl.multiple_of(step * rows, rows), rows)
            return pltpu.make_async_copy(done_ref.at[slot], out_ref.at[at], out_flags.at[slot])

        for step in range(min(buffers, steps)):
            load(step).start()

        def body(step, carry):
            load(step).wait()

            @pl.when(step >= buffers)
            def _():
                store(step - buffers).wait()

            slot = lax.rem(step, buffers)
            values = in_ref[slot].astype(jnp.float32)
            values = jnp.exp(values - jnp.max(values, axis=-1, keepdims=True))
            values *= 1.0 / jnp.sum(values, axis=-1, keepdims=True)
            done_ref[slot] = values.astype(done_ref.dtype)
            store(step).start()

            @pl.when(step + buffers < steps)
            def _():
                load(step + buffers).start()

            return carry

        lax.fori_loop(0, steps, body, 0)
        for step in range(max(steps - buffers, 0), steps):
            store(step).wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        kernel,
        in_specs=[anywhere],
        out_specs=anywhere,
        out_shape=x,
        scratch_shapes=[
            pltpu.VMEM((buffers, rows, COLUMNS), jnp.bfloat16),
            pltpu.VMEM((buffers, rows, COLUMNS), jnp.bfloat16),
            pltpu.SemaphoreType.DMA((buffers,)),
            pltpu.SemaphoreType.DMA((buffers,)),
        ],
        compiler_params=compiler_params(),
    )
    return Case(call, (x,), 0, size(x, x))
