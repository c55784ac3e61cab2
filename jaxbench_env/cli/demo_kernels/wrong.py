"""Chunked scan that forgets the state: every chunk starts as if nothing came before it."""

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


def _kernel(query_ref, key_ref, value_ref, gate_ref, out_ref):
    refs = (query_ref, key_ref, value_ref)
    query, key, value = (ref[0, 0].astype(jnp.float32) for ref in refs)
    causal = jnp.tril(jnp.ones((CHUNK, CHUNK), jnp.float32))
    log_gate = jnp.log(jax.nn.sigmoid(gate_ref[0, 0]) + CONFIG["log_eps"])
    gates = _dot(causal, log_gate.T)

    decay = jnp.exp(jnp.where(causal > 0, gates - gates.T, -jnp.inf))
    scores = _dot(query, key.T) * decay
    total = jnp.sum(scores, axis=1, keepdims=True)
    norm = jnp.maximum(jnp.abs(total), CONFIG["normaliser_floor"])
    out_ref[0, 0] = _dot(scores / norm, value).astype(out_ref.dtype)


def workload(query, key, value, A_log):
    """Scans query, key, value (B, H, S, D) with the gates' logits A_log (B, H, S)."""
    batch, heads, seq, dim = query.shape
    block = pl.BlockSpec((1, 1, CHUNK, dim), lambda b, h, s: (b, h, s, 0))
    gate_block = pl.BlockSpec((1, 1, 1, CHUNK), lambda b, h, s: (b, h, 0, s))
    return pl.pallas_call(
        _kernel,
        grid=(batch, heads, seq // CHUNK),
        in_specs=[block] * 3 + [gate_block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel")
        ),
    )(query, key, value, A_log[:, :, None, :])
