# shows: A dataclass for the tiling, with checks and a property.
# workload: rms_norm

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tiling:
    rows: int
    wanted: int = 256

    def __post_init__(self):
        assert self.rows > 0, f"{self.rows=}"

    @property
    def block(self) -> int:
        return next(b for b in (self.wanted, 128, 64) if self.rows % b == 0)


def kernel(x_ref, scale_ref, out_ref):
    x = x_ref[...].astype(jnp.float32)
    mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
    normal = x * jax.lax.rsqrt(mean_square + CONFIG["eps"])
    out_ref[...] = normal.astype(out_ref.dtype) * scale_ref[...]


def workload(x, scale):
    batch, seq, dim = x.shape
    rows = batch * seq
    block = dataclasses.replace(Tiling(rows), wanted=128).block
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
