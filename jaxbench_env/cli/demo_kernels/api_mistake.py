"""Chunked scan with one head per grid step; its gate block (1, 1, CHUNK) is no legal TPU block."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

CHUNK = 128

_dot = functools.partial(
    jnp.dot, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


def _kernel(query_ref, key_ref, value_ref, gate_ref, out_ref, state_ref, total_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        state_ref[...] = jnp.zeros_like(state_ref)
        total_ref[...] = jnp.zeros_like(total_ref)

    refs = (query_ref, key_ref, value_ref)
    query, key, value = (ref[0, 0].astype(jnp.float32) for ref in refs)
    causal = jnp.tril(jnp.ones((CHUNK, CHUNK), jnp.float32))
    log_gate = jnp.log(jax.nn.sigmoid(gate_ref[0]) + CONFIG["log_eps"])
    gates = _dot(causal, log_gate.T)
    last = gates[CHUNK - 1 :]

    decay = jnp.exp(jnp.where(causal > 0, gates - gates.T, -jnp.inf))
    scores = _dot(query, key.T) * decay
    total = jnp.sum(scores, axis=1, keepdims=True)
    total += jnp.exp(gates) * jnp.sum(query * total_ref[...], axis=1, keepdims=True)
    result = _dot(scores, value) + jnp.exp(gates) * _dot(query, state_ref[...])
    norm = jnp.maximum(jnp.abs(total), CONFIG["normaliser_floor"])
    out_ref[0, 0] = (result / norm).astype(out_ref.dtype)

    faded = key * jnp.exp(last - gates)
    state_ref[...] = jnp.exp(last) * state_ref[...] + _dot(faded.T, value)
    total_ref[...] = jnp.exp(last) * total_ref[...] + jnp.sum(faded, axis=0, keepdims=True)


def workload(query, key, value, A_log):
    """Scans query, key, value (B, H, S, D) with the gates' logits A_log (B, H, S)."""
    batch, heads, seq, dim = query.shape
    block = pl.BlockSpec((1, 1, CHUNK, dim), lambda b, h, s: (b, h, s, 0))
    return pl.pallas_call(
        _kernel,
        grid=(batch, heads, seq // CHUNK),
        in_specs=[block] * 3 + [pl.BlockSpec((1, 1, CHUNK), lambda b, h, s: (b, h, s))],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        scratch_shapes=[pltpu.VMEM((dim, dim), jnp.float32), pltpu.VMEM((1, dim), jnp.float32)],
    )(query, key, value, A_log)
