"""Latent attention: projections in panels, and a pipeline of transposed scores between them.

A unit is the queries of one tile (256 columns) against a block of keys (1024 rows). With keys in
the rows, maxima run along rows, which costs no cross-lane operations, and the weights are the
matrix unit's stationary operand in their product with the values: a head of 128 then fills it,
where as the moving operand it would leave half of its columns empty. Ones below the values make
the same product give the sums of the weights. The block on the diagonal is cut at each tile.

The compiler mostly keeps the order of the source and does not look across iterations, so the order
here is that of a software pipeline: while a unit's scores become weights, the matrix unit makes
the scores of the unit AHEAD of it and the product of the one BEHIND. Both use the same slots as the
unit itself, which ties the three together: scores are stored where others have just been read.

All arrays stay (positions, columns): a pair of heads is a block of columns, and nothing is
transposed between the products. The rotary columns are sorted into first and second members of
pairs in the weights, where the order does not matter to a product of query and key. A rotary query
is rotated behind the product that makes it. Two heads share 128 rotary columns; each takes them
with the other's set to zero, against the shared key twice, so that content and rotary part are one
contraction over 256. The projections are the products of gemm.py, whole contractions.

Content keys and values have 128 columns a head.

VMEM: queries, keys, values and result of 2 heads in two buffers each, 10 MiB; scores 4 MiB, weights
1 MiB, accumulators (of this block of queries and of the last) 2.3 MiB, scaled queries 1 MiB,
18 MiB. In the output projection two panels each of 1024 x 16384, 64 MiB, and of 16384 x 256,
16 MiB.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK = 1024  # keys of a unit, and queries whose units take turns
BLOCK_M = 1024  # rows of a projection's panel, twice that for short contractions
BLOCK_N = 1024  # columns, less for long contractions
AHEAD = 4  # units
BEHIND = 2
TILE = 256  # queries of a unit
ONES_ROWS = 16  # the smallest bfloat16 tile
HEADS = 2  # heads whose units take turns, and that share 128 rotary columns
SHORT = 2048
PANEL_BYTES = 8 * 2**20
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "BLOCK": (256, 512, 1024),
    "AHEAD": (1, 2, 4),
    "BEHIND": (1, 2),
    "BLOCK_M": (512, 1024),
    "BLOCK_N": (256, 512, 1024),
}


def constraints(BLOCK, AHEAD, BEHIND, BLOCK_M, BLOCK_N):
    """What must hold between the tunables at the published size."""
    seq, dim, contraction = 2048, 128, 16384
    operands = 2 * seq * (10 * dim) * 2
    slots = BLOCK * TILE * (4 * AHEAD + 2 * BEHIND)
    accumulators = 2 * HEADS * BLOCK * (dim + ONES_ROWS) * 4
    panels = 2 * (2 * BLOCK_M * contraction + PANEL_BYTES)
    return {
        "blocks of the attention fit in VMEM": operands + slots + accumulators <= VMEM_LIMIT_BYTES,
        "panels of the output projection fit in VMEM": panels + BLOCK_M * BLOCK_N * 8
        <= VMEM_LIMIT_BYTES,
        # Else a unit is added after the next in its place was prepared, and the result is wrong.
        "more units take turns than are behind": HEADS * BLOCK > BEHIND * TILE,
    }


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _dot(a, b, contract):
    return lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=jnp.float32)


def _product_kernel(a_ref, b_ref, out_ref):
    product = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)
    out_ref[...] = product.astype(out_ref.dtype)


def _rotated_kernel(a_ref, b_ref, cos_ref, sin_ref, out_ref):
    product = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)
    lanes = cos_ref.shape[1]
    half = lanes // (2 * HEADS)
    first = lax.broadcasted_iota(jnp.int32, cos_ref.shape, 1) % (2 * half) < half
    for start in range(0, product.shape[1], lanes):
        x = product[:, start : start + lanes]
        other = jnp.where(first, pltpu.roll(x, lanes - half, 1), pltpu.roll(x, half, 1))
        rotated = x * cos_ref[...] + other * sin_ref[...]
        out_ref[:, start : start + lanes] = rotated.astype(out_ref.dtype)


def _project(a, b, *tables):
    """Multiplies a (M, K) with b (K, N); with tables (M, 128) it rotates the result by them."""
    (m, k), (_, n) = a.shape, b.shape
    block_m = _block(m, BLOCK_M * (2 if k <= SHORT else 1))
    block_n = _block(n, min(BLOCK_N, PANEL_BYTES // (2 * k)))
    return pl.pallas_call(
        _rotated_kernel if tables else _product_kernel,
        grid=(m // block_m, n // block_n),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, block_n), lambda i, j: (0, j)),
            *(pl.BlockSpec((block_m, table.shape[1]), lambda i, j: (i, 0)) for table in tables),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(a, b, *tables)


def _attention_kernel(
    nope_ref, rope_ref, key_ref, rope_key_ref, value_ref, out_ref,
    scaled, scores, weights, peaks, peak, fade, acc,
):  # fmt: skip
    heads, seq, dim = HEADS, nope_ref.shape[0], nope_ref.shape[1] // HEADS
    units, tile, _ = scaled.shape
    tiles = units // heads
    block = tiles * tile
    blocks = seq // block
    ahead, behind = scores.shape[0], weights.shape[0]

    @pl.when(pl.program_id(0) + pl.program_id(1) == 0)
    def _():
        # What is added before there are weights must be finite.
        for ref in (weights, fade, acc):
            ref[...] = jnp.zeros_like(ref)

    def keys(k, rows):
        return pl.ds(pl.multiple_of(k * block, block), rows)

    def queries(u, q):
        return pl.ds(pl.multiple_of(q * block, block) + u % tiles * tile, tile)

    def columns(u):
        return pl.ds(u // tiles * dim, dim)

    def length(u, diagonal):
        return (u % tiles + 1) * tile if diagonal else block

    def scale(u, q):
        factor = CONFIG["scale"] * math.log2(math.e)  # so that exp2 will do
        rope = rope_ref[queries(u, q), :].astype(jnp.float32)
        lane = lax.broadcasted_iota(jnp.int32, rope.shape, 1)
        rope = jnp.where(lane // (rope.shape[1] // heads) == u // tiles, rope, 0)
        nope = nope_ref[queries(u, q), columns(u)].astype(jnp.float32)
        x = jnp.concatenate([nope, rope], axis=1) * factor
        scaled[u] = x.astype(scaled.dtype)

    def score(u, k, diagonal):
        rows = length(u, diagonal)
        key = [key_ref[keys(k, rows), columns(u)], rope_key_ref[keys(k, rows), :]]
        s = _dot(jnp.concatenate(key, axis=1), scaled[u], ((1,), (1,)))
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
        values = jnp.concatenate([value_ref[keys(k, rows), columns(u)].T, ones], axis=0)
        product = _dot(values, weights[u % behind, :rows], ((1,), (0,)))
        acc[q % 2, u] = acc[q % 2, u] * fade[u] + product

    def write(u, q):
        result = acc[q % 2, u, :dim] * (1.0 / acc[q % 2, u, dim : dim + 1])
        out_ref[queries(u, q), columns(u)] = result.astype(out_ref.dtype).T

    def step(q, k, diagonal=False, diagonal_next=False):
        """All units of a block of queries and a block of keys, and parts of those around them."""
        last_q = jnp.where(k > 0, q, jnp.maximum(q - 1, 0))
        last_k = jnp.maximum(jnp.where(k > 0, k, q) - 1, 0)
        next_q, next_k = (jnp.minimum(q + 1, blocks - 1), 0) if diagonal else (q, k + 1)
        for u in range(units):
            if diagonal:
                write(u, jnp.maximum(q - 1, 0))
            if u < behind:
                add(u - behind + units, last_q, last_k, False)
            else:
                add(u - behind, q, k, diagonal)
            weigh(u, diagonal)
            soon = (u + ahead) % units
            if u + ahead < units:
                score(soon, k, diagonal)
                if diagonal:
                    scale(soon, next_q)
            else:
                if diagonal:
                    scale(soon, next_q)
                score(soon, next_k, diagonal_next)
            prepare((u + 1) % units, (k if u + 1 < units else next_k) == 0)

    for u in range(units):
        scale(u, 0)
    for u in range(ahead):
        score(u, 0, True)
    prepare(0, True)

    def block_of_queries(q, carry):
        def block_of_keys(k, carry):
            step(q, k)
            return carry

        if blocks > 2:
            lax.fori_loop(0, q - 1, block_of_keys, 0)

        @pl.when(q > 0)
        def _():
            step(q, q - 1, diagonal_next=True)

        step(q, q, diagonal=True)
        return carry

    lax.fori_loop(0, blocks, block_of_queries, 0)
    for u in range(units - behind, units):
        add(u, blocks - 1, blocks - 1, True)
    for u in range(units):
        write(u, blocks - 1)


def _attend(batch, nope, rope, key, rope_key, value):
    """Attends; all arguments are (B S, columns), with the heads in the columns."""
    rows, width = nope.shape
    seq, dim, lanes = rows // batch, 128, rope_key.shape[1]
    heads = width // dim
    block = _block(seq, BLOCK)
    tile = _block(block, TILE)
    units = HEADS * block // tile
    ahead, behind = math.gcd(units, AHEAD), math.gcd(units, BEHIND)
    pair = pl.BlockSpec((seq, HEADS * dim), lambda b, h: (b, h))
    return pl.pallas_call(
        _attention_kernel,
        grid=(batch, heads // HEADS),
        in_specs=[
            pair,
            pl.BlockSpec((seq, lanes), lambda b, h: (b, h)),
            pair,
            pl.BlockSpec((seq, lanes), lambda b, h: (b, 0)),
            pair,
        ],
        out_specs=pair,
        out_shape=jax.ShapeDtypeStruct(value.shape, value.dtype),
        scratch_shapes=[
            pltpu.VMEM((units, tile, dim + lanes), nope.dtype),
            pltpu.VMEM((ahead, block, tile), jnp.float32),
            pltpu.VMEM((behind, block, tile), value.dtype),
            pltpu.VMEM((units, 8, tile), jnp.float32),
            pltpu.VMEM((units, 1, tile), jnp.float32),
            pltpu.VMEM((units, 1, tile), jnp.float32),
            pltpu.VMEM((2, units, dim + ONES_ROWS, tile), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(nope, rope, key, rope_key, value)


def _sorted_pairs(w):
    """Columns 0, 2, 4, ... and then 1, 3, 5, ..."""
    return jnp.concatenate([w[..., 0::2], w[..., 1::2]], axis=-1)


def workload(x, q_down_proj, q_up_proj, kv_down_proj, k_up_proj, v_up_proj, o_proj):
    """Latent attention of x (B, S, E), with weights named for what they make."""
    batch, seq, width = x.shape
    latent, q_latent = k_up_proj.shape[0], q_up_proj.shape[0]
    rope = kv_down_proj.shape[1] - latent
    heads = (q_up_proj.shape[1] - k_up_proj.shape[1]) // rope

    frequency = CONFIG["rope_theta"] ** (-jnp.arange(0, rope, 2, dtype=jnp.float32) / rope)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] * frequency
    cos, sin = (jnp.tile(f(angle), (batch, 1)) for f in (jnp.cos, jnp.sin))
    tables = jnp.tile(cos, (1, 2 * HEADS)), jnp.tile(jnp.concatenate([-sin, sin], 1), (1, HEADS))

    down = [q_down_proj, kv_down_proj[:, :latent], _sorted_pairs(kv_down_proj[:, latent:])]
    down = jnp.concatenate(down, axis=1)
    down = jnp.pad(down, ((0, 0), (0, -down.shape[1] % 256)))
    compressed = _project(x.reshape(batch * seq, width), down)
    for_q, for_kv = jnp.split(compressed[:, : q_latent + latent], [q_latent], axis=1)

    even, odd = jnp.split(compressed[:, q_latent + latent :][:, :rope].astype(jnp.float32), 2, 1)
    rope_key = jnp.concatenate([even * cos - odd * sin, even * sin + odd * cos], axis=1)
    rope_key = jnp.tile(rope_key.astype(x.dtype), (1, HEADS))

    def padded(w, axis):  # by heads of zeros, where they are not a multiple
        columns = w.shape[axis] // heads * (-heads % HEADS)
        return jnp.pad(w, [(0, columns if a == axis else 0) for a in range(2)]) if columns else w

    up = q_up_proj.reshape(q_latent, heads, -1)
    up_nope = up[..., :-rope].reshape(q_latent, -1)
    up_rope = _sorted_pairs(up[..., -rope:]).reshape(q_latent, -1)
    out = _attend(
        batch,
        _project(for_q, padded(up_nope, 1)),
        _project(for_q, padded(up_rope, 1), *tables),
        _project(for_kv, padded(k_up_proj, 1)),
        rope_key,
        _project(for_kv, padded(v_up_proj, 1)),
    )
    return _project(out, padded(o_proj, 0)).reshape(x.shape)
