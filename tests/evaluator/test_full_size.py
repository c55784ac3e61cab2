"""Kernels that are right at the checked sizes and do less, or something else, at the full size."""

import pytest

import workloads
from jaxbench_env import Evaluator

KERNEL = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

ROWS = 64


def normed(x):
    x = x.astype(jnp.float32)
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + CONFIG["eps"])


def kernel(x_ref, scale_ref, out_ref):
    {body}


def workload(x, scale):
    rows, dim = x.shape[0] * x.shape[1], x.shape[2]
    {before}
    out = pl.pallas_call(
        kernel,
        grid=(rows // ROWS,),
        in_specs=[
            pl.BlockSpec((ROWS, dim), lambda i: ({row}, 0)),
            pl.BlockSpec((1, dim), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((ROWS, dim), lambda i: ({row}, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, dim), x.dtype),
    )(x.reshape(rows, dim), scale.reshape(1, dim))
    return out.reshape(x.shape)
"""
NORM = "out_ref[...] = (normed(x_ref[...]).astype(out_ref.dtype) * scale_ref[...])"
WHEN = f"""@pl.when(pl.program_id(0) < 256)
    def _():
        {NORM}"""


@pytest.mark.parametrize(
    ("parts", "status", "says"),
    [
        ({"row": "jnp.minimum(i, 255)"}, "hack_suspected", "writes 50.0% of the array in 512 grid"),
        ({"body": WHEN}, "hack_suspected", "writes 50.0% of the array in 512 grid"),
        ({"before": "x = normed(x).astype(x.dtype) * scale", "body": "out_ref[...] = x_ref[...]"},
         "no_kernel", "0% of the program's own work"),
    ],
    ids=["clipped", "condition", "copy"],
)  # fmt: skip
def test_a_kernel_that_does_less_at_full_size(parts, status, says):
    text = KERNEL.format(**{"body": NORM, "before": "", "row": "i", **parts})
    result = Evaluator().evaluate(workloads.get("rms_norm"), text, seed=1)
    assert (result.status, says in result.message) == (status, True), result.message
