"""Small programs for the tests of what artefacts show."""

import jax
import jax.numpy as jnp
from jax import export
from jax.experimental import pallas as pl

from jaxbench_env.evaluator.judge import program


def spec(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


# Some operations ask for the chip while they are lowered, as in the trace child.
MESH = jax.sharding.AbstractMesh(
    (1,),
    ("x",),
    (jax.sharding.AxisType.Auto,),
    abstract_device=jax.sharding.AbstractDevice("TPU v6 lite", 1, "tpu"),
)


def exported(function, *specs, platform="tpu"):
    with jax.sharding.use_abstract_mesh(MESH):
        return export.export(jax.jit(function), platforms=[platform])(*specs)


def read(function, *specs, platform="tpu"):
    return program.read(exported(function, *specs, platform=platform).mlir_module_serialized)


def pair(make, *specs):
    """The TPU program and the interpret-mode program of one kernel: ``make(interpret)``."""
    return read(make(False), *specs), read(make(True), *specs, platform="cpu")


def rows(
    body,
    *,
    block=8,
    out_index=lambda i: (i, 0),
    in_index=lambda i: (i, 0),
    steps=None,
    interpret=False,
    **more,
):
    """A kernel over blocks of rows: ``body(x_ref, o_ref)`` or ``body(x_ref, y_ref, o_ref)``."""

    def f(*arrays):
        count, columns = arrays[0].shape
        return pl.pallas_call(
            body,
            grid=(count // block if steps is None else steps,),
            in_specs=[pl.BlockSpec((block, columns), in_index)] * len(arrays),
            out_specs=pl.BlockSpec((block, columns), out_index),
            out_shape=jax.ShapeDtypeStruct((count, columns), jnp.float32),
            interpret=interpret,
            **more,
        )(*arrays)

    return f


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def matmul(a, b, *, block=128, skip=None, exponent=False, interpret=False):
    """A product with the contraction on the grid; ``skip(i, j, k)`` leaves steps out."""
    (m, k), n = a.shape, b.shape[1]

    def kernel(a_ref, b_ref, o_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        def step():
            left = jnp.exp(a_ref[...]) if exponent else a_ref[...]
            o_ref[...] += jnp.dot(left, b_ref[...], preferred_element_type=jnp.float32)

        if skip is None:
            step()
        else:
            pl.when(jnp.logical_not(skip(*(pl.program_id(axis) for axis in range(3)))))(step)

    return pl.pallas_call(
        kernel,
        grid=(m // block, n // block, k // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        interpret=interpret,
    )(a, b)
