"""Causal attention with shared keys: online softmax, transposed scores, one software pipeline.

A unit is the queries of one tile (256 columns) against a block of keys (1024 rows). With keys in
the rows, maxima run along rows, which costs no cross-lane operations, and the weights are the
matrix unit's stationary operand in their product with the values: a head of 128 then fills it,
where as the moving operand it would leave half of its columns empty. Ones below the values make
the same product give the sums of the weights. The block on the diagonal is cut at each tile.

The compiler mostly keeps the order of the source and does not look across iterations, so the order
here is that of a software pipeline: while a unit's scores become weights, the matrix unit makes
the scores of the unit AHEAD of it and the product of the one BEHIND. Both use the same slots as the
unit itself, which ties the three together: scores are stored where others have just been read.

The heads whose units take turns share a key head. Heads lie inside positions here, so two heads
share 32-bit words, and a row of every position is a strided load of such words. Results replace the
queries that they come from. Key and value, which are small, are transposed outside by XLA.

VMEM: query and result of a key head's 16 heads in two buffers each, 64 MiB; a key and a value head,
4 MiB; query or result as words, 16 MiB; scores 4 MiB, weights 1 MiB, accumulators (of this block of
queries and of the last) 2.3 MiB, 92 MiB.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 1024  # keys of a unit, and queries whose units take turns
HEADS = 2  # heads whose units take turns
AHEAD = 4  # units
BEHIND = 2
TILE = 256  # queries of a unit
ONES_ROWS = 16  # the smallest bfloat16 tile
VMEM_LIMIT_BYTES = 110 * 2**20

TUNABLES = {
    "BLOCK": (256, 512, 1024),
    "HEADS": (2, 4),
    "AHEAD": (1, 2, 4),
    "BEHIND": (1, 2),
}


def constraints(BLOCK, HEADS, AHEAD, BEHIND):
    """What must hold between the tunables at the published size."""
    seq, group, dim = 4096, 16, 128
    operands = (2 * (2 * group + 2) + group) * seq * dim * 2
    slots = BLOCK * TILE * (4 * AHEAD + 2 * BEHIND)
    accumulators = 2 * HEADS * BLOCK * (dim + ONES_ROWS) * 4
    return {
        "blocks fit in VMEM": operands + slots + accumulators <= VMEM_LIMIT_BYTES,
        "a step is small enough to be compiled in time": HEADS * BLOCK <= 2048,
        # Else a unit is added after the next in its place was prepared, and the result is wrong.
        # Some of the small sizes have two heads to take turns.
        "more units take turns than are behind": min(HEADS, 2) * BLOCK > BEHIND * TILE,
    }


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _dot(a, b, contract):
    return lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=jnp.float32)


def _kernel(
    query_ref,
    key_ref,
    value_ref,
    out_ref,
    scaled,
    scores,
    weights,
    peaks,
    peak,
    fade,
    acc,
    words,
    *,
    heads,
):
    _, seq, held, dim = query_ref.shape
    units, tile, _ = scaled.shape
    pairs, first_pair = held // 2, pl.program_id(2) * (heads // 2)
    tiles = units // heads
    block = tiles * tile
    blocks = seq // block
    ahead, behind = scores.shape[0], weights.shape[0]

    @pl.when(pl.program_id(0) + pl.program_id(1) + pl.program_id(2) == 0)
    def _():
        # What is added before there are weights must be finite.
        for ref in (weights, fade, acc):
            ref[...] = jnp.zeros_like(ref)

    def rows_of(i):
        return 0, pl.ds(pl.multiple_of(i * tile, tile), tile)

    def words_of(i):
        return pl.ds(pl.multiple_of(i * tile * pairs, tile * pairs), tile * pairs)

    @pl.when(pl.program_id(2) == 0)
    def _():
        def pack(i, carry):
            rows = query_ref[rows_of(i)].reshape(tile * held, dim)
            words[words_of(i), :] = pltpu.bitcast(rows, jnp.int32)
            return carry

        lax.fori_loop(0, seq // tile, pack, 0)

    def keys(k, rows):
        return 0, 0, pl.ds(pl.multiple_of(k * block, block), rows)

    def queries(u, q):
        first = (q * block + u % tiles * tile) * pairs + first_pair + u // tiles // 2
        return pl.ds(first, tile, stride=pairs)

    def length(u, diagonal):
        return (u % tiles + 1) * tile if diagonal else block

    def scale(u, q):
        factor = CONFIG["scale"] * math.log2(math.e)  # so that exp2 will do
        both = words[queries(u, q), :]
        bits = both & -(2**16) if u // tiles % 2 else both << 16
        scaled[u] = (lax.bitcast_convert_type(bits, jnp.float32) * factor).astype(scaled.dtype)

    def score(u, k, diagonal):
        rows = length(u, diagonal)
        s = _dot(key_ref[keys(k, rows)], scaled[u], ((1,), (1,)))
        if diagonal:
            row = lax.broadcasted_iota(jnp.int32, (tile, tile), 0)
            causal = row <= lax.broadcasted_iota(jnp.int32, (tile, tile), 1)
            last = jnp.where(causal, s[rows - tile :], -jnp.inf)
            s = jnp.concatenate([s[: rows - tile], last], axis=0) if rows > tile else last
        scores[u % ahead, :rows] = s
        peaks[u] = jnp.max(s.reshape(rows // 8, 8, tile), axis=0)

    def prepare(u, first):
        old = jnp.where(first, -jnp.inf, peak[u])
        peak[u] = jnp.maximum(old, jnp.max(peaks[u], axis=0, keepdims=True))
        fade[u] = jnp.exp2(old - peak[u])

    def weigh(u, diagonal):
        rows = length(u, diagonal)
        weights[u % behind, :rows] = jnp.exp2(scores[u % ahead, :rows] - peak[u]).astype(
            weights.dtype
        )
        if rows < block and u + behind >= units:  # added in the next step, which takes all rows
            weights[u % behind, rows:] = jnp.zeros((block - rows, tile), weights.dtype)

    def add(u, q, k, diagonal):
        rows = length(u, diagonal)
        ones = jnp.ones((ONES_ROWS, rows), weights.dtype)
        values = jnp.concatenate([value_ref[keys(k, rows)].T, ones], axis=0)
        product = _dot(values, weights[u % behind, :rows], ((1,), (0,)))
        acc[q % 2, u] = acc[q % 2, u] * fade[u] + product

    def write(u, q):
        if u // tiles % 2 == 0:  # its pair writes both
            return
        even, odd = (
            lax.bitcast_convert_type(
                (acc[q % 2, n, :dim] * (1.0 / acc[q % 2, n, dim : dim + 1]))
                .astype(out_ref.dtype)
                .astype(jnp.float32),
                jnp.int32,
            )
            for n in (u - tiles, u)
        )
        words[queries(u, q), :] = (odd | lax.shift_right_logical(even, 16)).T

    def step(q, k, diagonal=False, diagonal_next=False, last=False):
        """All units of a block of queries and a block of keys, and parts of those around them."""
        before_q = jnp.where(k > 0, q, jnp.maximum(q - 1, 0))
        before_k = jnp.maximum(jnp.where(k > 0, k, q) - 1, 0)
        next_q, next_k = (q + 1, 0) if diagonal else (q, k + 1)
        for u in range(units):
            if diagonal:
                write(u, jnp.maximum(q - 1, 0))
            if u < behind:
                add(u - behind + units, before_q, before_k, False)
            else:
                add(u - behind, q, k, diagonal)
            weigh(u, diagonal)
            soon = (u + ahead) % units
            if u + ahead < units:
                score(soon, k, diagonal)
            if diagonal and not last:
                scale(soon, next_q)
            if u + ahead >= units and not last:
                score(soon, next_k, diagonal_next)
            if u + 1 < units or not last:
                prepare((u + 1) % units, (k if u + 1 < units else next_k) == 0)

    for u in range(units):
        scale(u, 0)
    for u in range(ahead):
        score(u, 0, True)
    prepare(0, True)

    def block_of_queries(q, carry):
        """A block on the diagonal, and those before the next one in the row below."""

        def block_of_keys(k, carry):
            step(q + 1, k)
            return carry

        step(q, q, diagonal=True)
        lax.fori_loop(0, q, block_of_keys, 0)
        step(q + 1, q, diagonal_next=True)
        return carry

    lax.fori_loop(0, blocks - 1, block_of_queries, 0)
    step(blocks - 1, blocks - 1, diagonal=True, last=True)
    for u in range(units - behind, units):
        add(u, blocks - 1, blocks - 1, True)
    for u in range(units):
        write(u, blocks - 1)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        def unpack(i, carry):
            rows = pltpu.bitcast(words[words_of(i), :], out_ref.dtype)
            out_ref[rows_of(i)] = rows.reshape(tile, held, dim)
            return carry

        lax.fori_loop(0, seq // tile, unpack, 0)


def workload(query, key, value):
    """Attends from query (B, S, Hq, D) to key and value (B, S, Hkv, D); Hq / Hkv is even."""
    batch, seq, all_heads, dim = query.shape
    group = all_heads // key.shape[2]
    heads = math.gcd(group, HEADS)
    block = _block(seq, BLOCK)
    tile = _block(block, TILE)
    units = heads * block // tile
    ahead, behind = math.gcd(units, AHEAD), math.gcd(units, BEHIND)
    # A block has heads in multiples of 8, or all.
    held = group if group % 8 == 0 else all_heads
    own = pl.BlockSpec((1, seq, held, dim), lambda b, g, h: (b, 0, g, 0))
    shared = pl.BlockSpec(
        (1, 1, seq, dim), lambda b, g, h: (b, (g * held + h * heads) // group, 0, 0)
    )
    return pl.pallas_call(
        functools.partial(_kernel, heads=heads),
        grid=(batch, all_heads // held, held // heads),
        in_specs=[own, shared, shared],
        out_specs=own,
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        scratch_shapes=[
            pltpu.VMEM((units, tile, dim), query.dtype),
            pltpu.VMEM((ahead, block, tile), jnp.float32),
            pltpu.VMEM((behind, block, tile), value.dtype),
            pltpu.VMEM((units, 8, tile), jnp.float32),
            pltpu.VMEM((units, 1, tile), jnp.float32),
            pltpu.VMEM((units, 1, tile), jnp.float32),
            pltpu.VMEM((2, units, dim + ONES_ROWS, tile), jnp.float32),
            pltpu.VMEM((seq * held // 2, dim), jnp.int32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",) * 3, vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(query, *(jnp.swapaxes(x, 1, 2) for x in (key, value)))
