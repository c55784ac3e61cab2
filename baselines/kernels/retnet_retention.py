"""Retention in its quadratic form, causal block by block, with keys and values of a head in VMEM.

The normaliser sums absolute scores, so every score is needed: no recurrence. A block of queries
meets the keys before it in a loop and the keys of its own positions in tiles on the diagonal.
The decay gamma^(i - j) is a factor of the column, gamma^(q0 - j), times one of the row,
gamma^(i - q0), which waits until the rows are divided by their norm. The factor of a column
exceeds one inside the block, up to (32/31)^BLOCK_Q or 2^94 at 2048 in the fastest head: scores
times values may reach 2^28 before a sum overflows.

Shortcut: key blocks whose decay is below e^-NEGLIGIBLE for all of a query block are not visited.
As gamma is 1 - 2^(-5 - h), that is NEGLIGIBLE * 2^(5 + h) positions back in head h, and the decays
left out of a row add up to less than 2^(5 + h) * e^-NEGLIGIBLE: 5e-6 in head 2, the last one that
leaves any out at 4096 positions.

VMEM at D = 256: two buffers each of keys and values, 8 MiB, and of queries and result, 4 MiB; the
sums, 3 MiB, and the scores of the tiles under way, 4 MiB.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_Q = 2048
BLOCK_K = 1024  # keys of one iteration before the diagonal
TILE = 256  # rows that share a product, and what the diagonal is cut into
AHEAD = 1  # tiles started before the oldest is finished
NEGLIGIBLE = 17  # e^-17 is 2^-24.5, the rounding of a float32

TUNABLES = {
    "BLOCK_Q": (512, 1024, 2048),
    "BLOCK_K": (256, 512, 1024),
    "TILE": (128, 256, 512),
    "AHEAD": (0, 1, 2),
}


def constraints(BLOCK_Q, BLOCK_K, TILE, AHEAD):
    """What must hold between the tunables at the published size."""
    seq, dim, lanes = 4096, 256, 128
    used = 2 * 2 * (2 * seq * dim + 2 * BLOCK_Q * dim) + 4 * BLOCK_Q * (dim + lanes)
    used += (AHEAD + 1) * 6 * TILE * max(BLOCK_K, BLOCK_Q)
    return {
        "a query block is a multiple of a key block and of a tile": BLOCK_Q % BLOCK_K == 0
        and BLOCK_Q % TILE == 0,
        "blocks and scores fit in VMEM": used <= 32 * 2**20,
    }


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _kernel(log_ref, query_ref, key_ref, value_ref, out_ref, sum_ref, norm_ref, *, block_k, tile):
    block_q = query_ref.shape[0]
    head, first = pl.program_id(1), pl.program_id(2) * block_q
    log_gamma = log_ref[head]
    dot = functools.partial(lax.dot_general, preferred_element_type=jnp.float32)
    sum_ref[...] = jnp.zeros_like(sum_ref)
    norm_ref[...] = jnp.zeros_like(norm_ref)

    def start(row, key_start, keys):
        """Multiplies a tile of queries with some keys."""
        rows = slice(row, row + tile)
        at = pl.ds(key_start, keys)
        scores = dot(query_ref[rows], key_ref[at], (((1,), (1,)), ((), ())))
        return rows, at, scores

    def fade(at, scores):
        distance = first - at.start - lax.broadcasted_iota(jnp.int32, (1, scores.shape[1]), 1)
        return scores * jnp.exp2(distance.astype(jnp.float32) * log_gamma)

    def add_up(rows, at, scores):
        """The sums of a tile of rows with these scores: times values, and absolute by lane."""
        size = jnp.abs(scores)
        size = sum(size[:, lane : lane + 128] for lane in range(0, scores.shape[1], 128))
        products = dot(scores.astype(value_ref.dtype), value_ref[at], (((1,), (0,)), ((), ())))
        return sum_ref[rows] + products, norm_ref[rows] + size

    def finish(rows, at, scores):
        """Fades the scores before the diagonal and adds them to the sums of their rows."""
        sum_ref[rows], norm_ref[rows] = add_up(rows, at, fade(at, scores))

    def finish_rows(rows, at, scores):
        """Fades and masks the scores up to the diagonal; the result of their rows."""
        scores = fade(at, scores)
        parts = [scores[:, lane : lane + tile] for lane in range(0, scores.shape[1], tile)]
        row = lax.broadcasted_iota(jnp.int32, (tile, tile), 0)
        causal = lax.broadcasted_iota(jnp.int32, (tile, tile), 1) <= row
        parts[-1] = jnp.where(causal, parts[-1], 0.0)
        total, norm = add_up(rows, at, jnp.concatenate(parts, axis=1))
        position = rows.start + lax.broadcasted_iota(jnp.int32, (tile, 1), 0)
        faded = jnp.exp2(position.astype(jnp.float32) * log_gamma)
        norm = faded * jnp.sum(norm, axis=1, keepdims=True)
        scale = faded / jnp.maximum(norm, CONFIG["normaliser_floor"])
        out_ref[rows] = (total * scale).astype(out_ref.dtype)

    def pipeline(tiles, last):
        # By the order of the source, which the compiler's scheduler mostly keeps: the matrix
        # unit works on the next tile while this one is faded.
        started = []
        for entry in tiles:
            started.append(start(*entry))
            if len(started) > AHEAD:
                last(*started.pop(0))
        for entry in started:
            last(*entry)

    def before(index, carry):
        key_start = pl.multiple_of(index * block_k, block_k)
        pipeline([(row, key_start, block_k) for row in range(0, block_q, tile)], finish)
        return carry

    negligible = first - (NEGLIGIBLE << (5 + head))
    lax.fori_loop(jnp.maximum(negligible, 0) // block_k, first // block_k, before, 0)
    own = pl.multiple_of(first, block_q)
    pipeline([(row, own, row + tile) for row in range(0, block_q, tile)], finish_rows)


def workload(query, key, value):
    """Retention of query, key, value (B, H, S, D)."""
    batch, heads, seq, dim = query.shape
    block_q = _block(seq, BLOCK_Q)
    block_k, tile = _block(block_q, BLOCK_K), _block(block_q, TILE)
    log_gamma = jnp.log1p(-(2.0 ** (-5 - jnp.arange(heads, dtype=jnp.float32)))) / jnp.log(2.0)
    rows = pl.BlockSpec((None, None, block_q, dim), lambda b, h, q: (b, h, q, 0))
    whole = pl.BlockSpec((None, None, seq, dim), lambda b, h, q: (b, h, 0, 0))
    return pl.pallas_call(
        functools.partial(_kernel, block_k=block_k, tile=tile),
        grid=(batch, heads, seq // block_q),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), rows, whole, whole],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        scratch_shapes=[
            pltpu.VMEM((block_q, dim), jnp.float32),
            pltpu.VMEM((block_q, 128), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(log_gamma, query, key, value)
