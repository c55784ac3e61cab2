# shows: pl.core_map with a pipeline inside.
# workload: rms_norm
# jax: before 0.12
# fails: plain interpret mode of jax writes nothing back from core_map with a pipeline

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def workload(x, scale):
    batch, seq, dim = x.shape
    rows, block = batch * seq, 64
    mesh = pltpu.create_tensorcore_mesh("core", num_cores=1)

    def inner(x_ref, scale_ref, out_ref):
        v = x_ref[...].astype(jnp.float32)
        mean_square = jnp.mean(v * v, axis=-1, keepdims=True)
        normal = v * jax.lax.rsqrt(mean_square + CONFIG["eps"])
        out_ref[...] = normal.astype(out_ref.dtype) * scale_ref[...]

    def stateful(refs):
        x_ref, scale_ref, out_ref = refs

        @pl.core_map(mesh)
        def _():
            row_block = pl.BlockSpec((block, dim), lambda i: (i, 0))
            pltpu.emit_pipeline(
                inner,
                grid=(rows // block,),
                in_specs=[row_block, pl.BlockSpec((1, dim), lambda i: (0, 0))],
                out_specs=[row_block],
            )(x_ref, scale_ref, out_ref)

    flat = x.reshape(rows, dim)
    _, _, out = pl.run_state(stateful)((flat, scale.reshape(1, dim), jnp.zeros_like(flat)))
    return out.reshape(x.shape)
