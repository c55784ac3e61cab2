"""The simulated TPU runs kernels wherever they are called from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

from jaxbench_env.evaluator.children import trace


def _double(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, shape, grid=(2,), in_specs=[block], out_specs=block)(x)


@jax.custom_vjp
def _differentiable(x):
    return _double(x)


_differentiable.defvjp(lambda x: (_double(x), None), lambda _, g: (2 * g,))

CALLS = {
    "plain": _double,
    "jit": jax.jit(_double),
    "jit in jit": jax.jit(lambda x: jax.jit(_double)(x) + 0),
    "custom_vjp": _differentiable,
    "checkpoint": jax.checkpoint(_double),
    "scan": lambda x: lax.scan(lambda c, _: (_double(c), None), x, None, length=1)[0],
    "while": lambda x: lax.fori_loop(0, lax.max(1, 0), lambda _, c: _double(c), x),
    "cond": lambda x: lax.cond(x[0, 0] < 1e9, _double, lambda x: x, x),
    "vmap": lambda x: jax.vmap(_double)(x[None])[0],
}


@pytest.mark.parametrize("call", CALLS)
def test_a_kernel_is_simulated_wherever_it_is_called(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
    closed = jax.make_jaxpr(CALLS[call])(jnp.asarray(x))
    found = trace._simulate(closed, [x], 100)
    assert found == {"outcome": "clean", "reason": ""}
    np.testing.assert_array_equal(np.fromfile("simulated", np.float32).reshape(x.shape), 2 * x)
