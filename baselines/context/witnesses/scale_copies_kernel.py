"""Copies of its own between HBM and VMEM."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 128


def kernel(x_hbm, bias_ref, out_hbm, x_ref, out_ref, in_sem, out_sem):
    def step(i, carry):
        rows = pl.ds(i * BLOCK, BLOCK)
        fetch = pltpu.make_async_copy(x_hbm.at[rows], x_ref, in_sem)
        fetch.start()
        fetch.wait()
        out_ref[...] = x_ref[...] * CONFIG["scale"] + bias_ref[...]
        send = pltpu.make_async_copy(out_ref, out_hbm.at[rows], out_sem)
        send.start()
        send.wait()
        return carry

    lax.fori_loop(0, x_hbm.shape[0] // BLOCK, step, 0)


def workload(x, bias):
    rows, columns = x.shape
    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pltpu.VMEM)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[
            pltpu.VMEM((BLOCK, columns), x.dtype),
            pltpu.VMEM((BLOCK, columns), x.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
        ],
    )(x, bias.reshape(1, columns))
