"""Causal attention with a bias, all of the batch at once, so that the bias is read once.

A unit is a tile of queries (256 columns) of one batch entry against a block of keys (1024 rows).
With keys in the rows, maxima run along rows, which costs no cross-lane operations, and the weights
are the matrix unit's stationary operand in their product with the values: a head of 128 then fills
it, where as the moving operand it would leave half of its columns empty. Ones below the values
make the same product give the sums of the weights. A tile of the bias is transposed, scaled and on
the diagonal masked once for the whole batch. Only blocks up to the diagonal are read: the grid
counts them, row by row. Keys and values of earlier rows stay in VMEM. The bias must be finite up to
the diagonal: a mask of -inf could leave a row of a block without a maximum.

The compiler mostly keeps the order of the source, so the order here is that of a software pipeline:
while a unit's scores become weights, the matrix unit makes the scores of the unit AHEAD of it and
the product of the one BEHIND. Both use the same slots as the unit itself, which ties the three
together: scores are stored where others have just been read.

VMEM: two buffers each of the bias, 4 MiB, and of query, key, value and result of 4 batch entries,
8 MiB; all keys and values 9 MiB; scores 4 MiB, weights 1 MiB, tiles of bias 2 MiB, accumulators
2.3 MiB and scaled queries 1 MiB, 31 MiB.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 1024  # keys of a unit, and queries whose units take turns
AHEAD = 4  # units
BEHIND = 2
TILE = 256  # queries of a unit
ONES_ROWS = 16  # the smallest bfloat16 tile
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "BLOCK": (256, 512, 1024),
    "AHEAD": (1, 2, 3, 4),
    "BEHIND": (1, 2),
}


def constraints(BLOCK, AHEAD, BEHIND):
    """What must hold between the tunables at the published size."""
    batch, seq, dim = 4, 4096, 128
    operands = 2 * (BLOCK * BLOCK + 4 * batch * BLOCK * dim) * 2
    kept = batch * seq * (2 * dim + ONES_ROWS) * 2
    slots = BLOCK * TILE * (4 * AHEAD + 2 * BEHIND + 8)
    accumulators = batch * BLOCK * (4 * (dim + ONES_ROWS) + 2 * dim)
    return {"blocks fit in VMEM": operands + kept + slots + accumulators <= VMEM_LIMIT_BYTES}


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _dot(a, b, contract):
    return lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=jnp.float32)


def _place(step, blocks):
    """Row and column of a block of scores, counted row by row up to the diagonal."""
    row = sum((step >= r * (r + 1) // 2).astype(jnp.int32) for r in range(1, blocks))
    return row, step - row * (row + 1) // 2


def _kernel(
    q_ref, k_ref, v_ref, bias_ref, out_ref, scaled, keys, values, bias, scores, weights, peaks,
    peak, fade, acc,
):  # fmt: skip
    batch, block, dim = q_ref.shape
    units, tile, _ = scaled.shape
    ahead, behind = scores.shape[0], weights.shape[0]
    i, j = _place(pl.program_id(1), keys.shape[1] // block)
    log2_e = math.log2(math.e)  # so that exp2 will do

    @pl.when(j == 0)
    def _():
        for u in range(units):
            x = q_ref[u % batch, pl.ds(u // batch * tile, tile)].astype(jnp.float32)
            scaled[u] = (x * (CONFIG["scale"] * log2_e)).astype(scaled.dtype)
        peak[...] = jnp.full_like(peak, -jnp.inf)
        acc[...] = jnp.zeros_like(acc)

    def step(diagonal):
        def length(u):
            return (u // batch + 1) * tile if diagonal else block

        def span(rows, offset=0):
            return pl.ds(pl.multiple_of(j * block, block) + offset, rows)

        def turn(c):
            """Makes the c-th tile of the bias ready."""
            rows = length(c * batch)
            b = bias_ref[0, pl.ds(c * tile, tile), pl.ds(0, rows)].T.astype(jnp.float32) * log2_e
            if diagonal:
                row = lax.broadcasted_iota(jnp.int32, (tile, tile), 0)
                causal = row <= lax.broadcasted_iota(jnp.int32, (tile, tile), 1)
                bias[c % 2, rows - tile : rows] = jnp.where(causal, b[rows - tile :], -jnp.inf)
                if rows > tile:
                    bias[c % 2, : rows - tile] = b[: rows - tile]
            else:
                bias[c % 2] = b

        def score(u):
            rows, n, c = length(u), u % batch, u // batch
            if n == 0:
                turn(c)
            key = k_ref[n, pl.ds(0, rows)] if diagonal else keys[n, span(rows)]
            s = _dot(key, scaled[u], ((1,), (1,))) + bias[c % 2, :rows]
            scores[u % ahead, :rows] = s
            peaks[u] = jnp.max(s.reshape(rows // 8, 8, tile), axis=0)

        def prepare(u):
            old = peak[u]
            peak[u] = jnp.maximum(old, jnp.max(peaks[u], axis=0, keepdims=True))
            fade[u] = jnp.exp2(old - peak[u])

        def weigh(u):
            rows = length(u)
            p = jnp.exp2(scores[u % ahead, :rows] - peak[u])
            weights[u % behind, :rows] = p.astype(weights.dtype)

        def add(u):
            rows, n, c = length(u), u % batch, u // batch
            if diagonal:
                ones = jnp.ones((ONES_ROWS, rows), weights.dtype)
                value = jnp.concatenate([v_ref[n, pl.ds(0, rows)].T, ones], axis=0)
            else:
                value = values[n, :, span(rows)]
            product = _dot(value, weights[u % behind, :rows], ((1,), (0,)))
            total = acc[u] * fade[u] + product
            if not diagonal:
                acc[u] = total
                return
            result = (total[:dim] * (1.0 / total[dim : dim + 1])).astype(out_ref.dtype)
            out_ref[n, pl.ds(c * tile, tile)] = result.T
            # For the rows below.
            keys[n, span(tile, c * tile)] = k_ref[n, pl.ds(c * tile, tile)]
            values[n, :, span(tile, c * tile)] = value[:, rows - tile :]

        for u in range(ahead):
            score(u)
        prepare(0)
        for u in range(units):
            if u >= behind:
                add(u - behind)
            weigh(u)
            if u + ahead < units:
                score(u + ahead)
            if u + 1 < units:
                prepare(u + 1)
        for u in range(units - behind, units):
            add(u)

    pl.when(j < i)(lambda: step(diagonal=False))
    pl.when(j == i)(lambda: step(diagonal=True))


def workload(q, k, v, rel_pos_bias):
    """Attends from q to k and v, all (B, H, S, D), with rel_pos_bias (H, S, S)."""
    batch, heads, seq, dim = q.shape
    block = _block(seq, BLOCK)
    tile = _block(block, TILE)
    blocks, units = seq // block, batch * block // tile
    ahead, behind = min(units, AHEAD), min(units, BEHIND)

    # Keys and values are read with the row of the diagonal block that needs them first.
    rows = pl.BlockSpec((batch, None, block, dim), lambda h, t: (0, h, _place(t, blocks)[0], 0))
    return pl.pallas_call(
        _kernel,
        grid=(heads, blocks * (blocks + 1) // 2),
        in_specs=[rows] * 3
        + [pl.BlockSpec((1, block, block), lambda h, t: (h, *_place(t, blocks)))],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        scratch_shapes=[
            pltpu.VMEM((units, tile, dim), q.dtype),
            pltpu.VMEM((batch, seq, dim), k.dtype),
            pltpu.VMEM((batch, dim + ONES_ROWS, seq), v.dtype),
            pltpu.VMEM((2, block, tile), jnp.float32),
            pltpu.VMEM((ahead, block, tile), jnp.float32),
            pltpu.VMEM((behind, block, tile), v.dtype),
            pltpu.VMEM((units, 8, tile), jnp.float32),
            pltpu.VMEM((units, 1, tile), jnp.float32),
            pltpu.VMEM((units, 1, tile), jnp.float32),
            pltpu.VMEM((units, dim + ONES_ROWS, tile), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(q, k, v, rel_pos_bias)
