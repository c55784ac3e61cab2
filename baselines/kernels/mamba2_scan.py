"""Gated linear attention in chunks, with the state carried in VMEM: linear in the sequence.

Inside a chunk the scores are formed as in the quadratic reference; all that lies before the chunk
is in one state per head, the sum of value x key faded to the chunk's start. Every value gets one
more row, a one, so that the same products also give the normaliser, the sum of the scores.

Layout: XLA stores these inputs with the positions in the lanes (64 lanes of D would be half
padding), so the kernel takes them as (..., D, S). The heads of a group share a product as a
block-diagonal operand: two heads of 64 fill the 256 x 256 matrix unit.

Numerics: a row whose scores nearly cancel is divided by a small normaliser, which magnifies the
rounding of everything before it. So the float32 operands (weights, faded values, state) enter the
matrix unit as a bfloat16 part and a bfloat16 rest.

Shortcut: scores across chunks, of which the operator as written forms all, are left to the state.

VMEM: two buffers each of query, key, value and result, 32 x 64 x 512 or 2 MiB apiece, 16 MiB; the
states, 640 KiB, and the gates. With what the compiler spills, 18 MiB.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

CHUNK = 128
HEADS = 32  # heads of one grid step
SPAN = 512  # positions of one grid step
GROUP = 2  # heads that share a product
AHEAD = 3  # groups started before the oldest is finished
ONES_ROWS = 16  # the smallest bfloat16 tile: a row of ones, the others zero

TUNABLES = {
    "HEADS": (16, 32),
    "SPAN": (128, 256, 512, 1024),
    "GROUP": (1, 2, 4),
    "AHEAD": (0, 1, 2, 3),
}


def constraints(HEADS, SPAN, GROUP, AHEAD):
    """What must hold between the tunables at the published size."""
    dim, arrays, buffers, item = 64, 4, 2, 2
    used = arrays * buffers * item * HEADS * dim * SPAN
    return {
        "blocks fit in the default limit of VMEM": used <= 24 * 2**20,
        "no more groups are started than there are": AHEAD <= HEADS // GROUP,
    }


def _cumulative_sum(x):
    lane = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    shift = 1
    while shift < x.shape[1]:
        x += jnp.where(lane >= shift, pltpu.roll(x, shift, 1), 0.0)
        shift *= 2
    return x


def _block_diagonal(blocks):
    zero = jnp.zeros_like(blocks[0])
    rows = [
        [block if i == j else zero for j in range(len(blocks))] for i, block in enumerate(blocks)
    ]
    return jnp.concatenate([jnp.concatenate(row, axis=1) for row in rows], axis=0)


def _split(x, axis):
    part = x.astype(jnp.bfloat16)
    return jnp.concatenate([part, (x - part.astype(jnp.float32)).astype(jnp.bfloat16)], axis)


def _kernel(query_ref, key_ref, value_ref, gate_ref, out_ref, state_ref, log_ref):
    heads, dim, span = query_ref.shape[1:]
    group, rows = heads // state_ref.shape[0], state_ref.shape[1]
    dot = functools.partial(lax.dot_general, preferred_element_type=jnp.float32)
    rows_by_columns, rows_by_rows = (((1,), (0,)), ((), ())), (((1,), (1,)), ((), ()))

    @pl.when(pl.program_id(2) == 0)
    def _():
        state_ref[...] = jnp.zeros_like(state_ref)

    # Here for all chunks: the chain of rolls of a single one would wait for its own latency.
    for start in range(0, span, CHUNK):
        at = slice(start, start + CHUNK)
        gate = jax.nn.sigmoid(gate_ref[0, :, at]) + CONFIG["log_eps"]
        log_ref[:, at] = _cumulative_sum(jnp.log(gate) * math.log2(math.e))

    key_position = lax.broadcasted_iota(jnp.int32, (CHUNK, CHUNK), 0)
    causal = key_position <= lax.broadcasted_iota(jnp.int32, (CHUNK, CHUNK), 1)
    first_row = lax.broadcasted_iota(jnp.int32, (ONES_ROWS, CHUNK), 0) == 0
    ones = jnp.where(first_row, 1.0, 0.0).astype(value_ref.dtype)

    def chunk(index, carry):
        at = pl.ds(pl.multiple_of(index * CHUNK, CHUNK), CHUNK)
        log_row = log_ref[:, at]
        log_column = log_row.T
        from_start = jnp.exp2(log_row)
        to_end = jnp.exp2(log_row[:, -1:] - log_row)

        def start(first):
            """Multiplies a group's queries with its keys and its state; then fades the state."""
            members = range(first, first + group)
            keys = [key_ref[0, h, :, at] for h in members]
            values = [jnp.concatenate([value_ref[0, h, :, at], ones], axis=0) for h in members]
            queries = _block_diagonal([query_ref[0, h, :, at] for h in members])
            state = state_ref[first // group]
            key_rows = jnp.concatenate(keys, axis=0).T
            # The rest of the state has its own half of the contraction, where keys have none.
            key_rows = jnp.concatenate([key_rows, jnp.zeros_like(key_rows)], axis=1)
            left = jnp.concatenate([key_rows, _split(state, axis=1)], axis=0)
            products = dot(left, jnp.concatenate([queries, queries], axis=0), rows_by_columns)

            faded = [v.astype(jnp.float32) * to_end[first + n][None] for n, v in enumerate(values)]
            faded = _split(jnp.concatenate(faded, axis=1), axis=0)
            added = dot(faded, _block_diagonal(keys), rows_by_rows)
            kept = [jnp.broadcast_to(from_start[h : h + 1, -1:], (1, dim)) for h in members]
            kept = jnp.concatenate(kept, axis=1)
            state_ref[first // group] = kept * state + added[:rows] + added[rows:]
            return first, products, values

        def finish(first, products, values):
            """Fades the scores, multiplies them with the values and normalises."""
            for n, value in enumerate(values):
                h, lanes = first + n, slice(n * CHUNK, (n + 1) * CHUNK)
                log_decay = log_row[h : h + 1] - log_column[:, h : h + 1]
                decay = jnp.exp2(jnp.where(causal, log_decay, -jnp.inf))
                weights = _split(products[:CHUNK, lanes] * decay, axis=0)
                result = dot(jnp.concatenate([value, value], axis=1), weights, rows_by_columns)
                result += from_start[h : h + 1] * products[CHUNK:, lanes]
                norm = jnp.maximum(jnp.abs(result[dim : dim + 1]), CONFIG["normaliser_floor"])
                out_ref[0, h, :, at] = (result[:dim] * (1.0 / norm)).astype(out_ref.dtype)

        # A software pipeline by the order of the source, which the compiler's scheduler mostly
        # keeps: the matrix unit works on the next groups during the exponentials of this one.
        started = []
        for first in range(0, heads, group):
            started.append(start(first))
            if len(started) > AHEAD:
                finish(*started.pop(0))
        for entry in started:
            finish(*entry)
        return carry

    lax.fori_loop(0, span // CHUNK, chunk, 0)


def workload(query, key, value, A_log):
    """Scans query, key, value (B, H, S, D) with the gates' logits A_log (B, H, S)."""
    batch, all_heads, seq, dim = query.shape
    heads = HEADS if all_heads % HEADS == 0 else all_heads
    group = GROUP if heads % GROUP == 0 else 1
    span = max(length for length in range(CHUNK, SPAN + 1, CHUNK) if seq % length == 0)
    block = pl.BlockSpec((1, heads, dim, span), lambda b, h, s: (b, h, 0, s))
    out = pl.pallas_call(
        _kernel,
        grid=(batch, all_heads // heads, seq // span),
        in_specs=[block] * 3 + [pl.BlockSpec((1, heads, span), lambda b, h, s: (b, h, s))],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((batch, all_heads, dim, seq), query.dtype),
        scratch_shapes=[
            pltpu.VMEM((heads // group, dim + ONES_ROWS, group * dim), jnp.float32),
            pltpu.VMEM((heads, span), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(*(jnp.swapaxes(x, 2, 3) for x in (query, key, value)), A_log)
    return jnp.swapaxes(out, 2, 3)
