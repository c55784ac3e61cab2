# shows: Causal attention that reads no keys beyond the diagonal.
# workload: flash_attention

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 128


def kernel(q_ref, k_ref, v_ref, out_ref, m_ref, l_ref, acc_ref, *, block):
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(j <= i)
    def _():
        s = jax.lax.dot_general(
            q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        ) * CONFIG["scale"]
        row = i * block + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        column = j * block + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        s = jnp.where(column <= row, s, -1e30)
        m = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp(s - m[:, :1])
        fade = jnp.exp(m_ref[...] - m)
        l_ref[...] = fade * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        acc_ref[...] = fade * acc_ref[...] + jnp.dot(
            p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32
        )
        m_ref[...] = m

    @pl.when(j == pl.num_programs(2) - 1)
    def _():
        out_ref[...] = (acc_ref[...] / l_ref[...]).astype(out_ref.dtype)


def workload(query, key, value):
    batch, heads, seq, dim = query.shape
    block = 1024 if seq % 1024 == 0 else BLOCK
    flat = (batch * heads, seq, dim)
    q = pl.BlockSpec((None, block, dim), lambda h, i, j: (h, i, 0))
    kv = pl.BlockSpec((None, block, dim), lambda h, i, j: (h, jnp.minimum(i, j), 0))
    out = pl.pallas_call(
        functools.partial(kernel, block=block),
        grid=(batch * heads, seq // block, seq // block),
        in_specs=[q, kv, kv],
        out_specs=q,
        out_shape=jax.ShapeDtypeStruct(flat, query.dtype),
        scratch_shapes=[pltpu.VMEM((block, 128), jnp.float32)] * 2
        + [pltpu.VMEM((block, dim), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(*(a.reshape(flat) for a in (query, key, value)))
    return out.reshape(query.shape)
