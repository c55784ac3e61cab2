"""The mended interpreter computes what jax's computes, and what jax's cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas import hlo_interpreter, primitives
from jax._src.state import discharge
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxbench_env.evaluator.children import interpreter


@pytest.fixture
def mend(monkeypatch):
    """Mends jax until the end of the test."""
    for name in ("_dynamic_slice", "_dynamic_update_slice", "loops"):
        monkeypatch.setattr(hlo_interpreter, name, getattr(hlo_interpreter, name))
    monkeypatch.setattr(discharge, "transform_swap_array", discharge.transform_swap_array)
    for primitive in (primitives.load_p, primitives.swap_p):
        rules = discharge._discharge_rules
        monkeypatch.setitem(rules, primitive, rules[primitive])

    def do():
        interpreter.mend()
        jax.clear_caches()

    yield do
    jax.clear_caches()


def sums(x, y):
    """Ragged blocks, an input that the kernel changes, scratch, and two types."""

    def kernel(x_ref, y_ref, o_ref, acc_ref):
        x_ref[...] = x_ref[...] + 1
        acc_ref[...] = x_ref[...].astype(jnp.float32) * y_ref[...]
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    return pl.pallas_call(
        kernel,
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(3, 2),
        in_specs=[block, pl.BlockSpec((1, 128), lambda i, j: (0, j))],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        interpret=True,
    )(x, y)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.int32])
def test_numbers_are_those_of_jax(mend, dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-8, 8, (20, 200))).astype(dtype)
    y = jnp.asarray(rng.integers(-8, 8, (1, 200)), jnp.float32)
    before = np.asarray(jax.jit(sums)(x, y).astype(jnp.float32))
    mend()
    after = np.asarray(jax.jit(sums)(x, y).astype(jnp.float32))
    np.testing.assert_array_equal(before, after)
    assert np.isfinite(after).all()


def test_masked_stores_at_constant_indices_work(mend):
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        mask = jax.lax.broadcasted_iota(jnp.int32, (128,), 0) < 64
        pltpu.store(o_ref.at[0, 3], x_ref[0, 3], mask=mask)

    x = jnp.ones((1, 8, 128))
    call = pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)
    mend()
    out = np.asarray(call(x))
    assert out.sum() == 64 and (out[0, 3, :64] == 1).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_stores_through_views_work(mend, dtype):
    def kernel(x_ref, o_ref):
        packed = x_ref.bitcast(jnp.int32)[...]
        o_ref.at[1].bitcast(jnp.int32)[...] = packed
        halves = o_ref.at[0].reshape(2, 8, 128)
        halves[1] = x_ref[:8]
        halves[0] = x_ref[8:]

    x = jnp.arange(16 * 128).reshape(16, 128).astype(dtype)
    mend()
    shape = jax.ShapeDtypeStruct((2, 16, 128), dtype)
    found = jax.jit(pl.pallas_call(kernel, shape, interpret=True))(x)
    np.testing.assert_array_equal(found[1], x)
    np.testing.assert_array_equal(found[0], jnp.concatenate([x[8:], x[:8]]))
