"""A mixture of experts that computes the chosen experts alone, on rows sorted by expert.

XLA routes and counts for every block of tokens how many go to which expert. `_dispatch` multiplies
a block with a matrix of zeros and ones, which sorts its rows by expert, and copies them in pieces
of ROWS rows to where the expert's rows are collected; what ends in the middle of a piece waits in
VMEM for the next block. `_experts` runs tiles of rows through the MLP of their expert; no tile has
rows of two experts, and those of one are about equally full. `_combine` fetches each block's pieces
again and multiplies them with a matrix of the router's weights. Nothing is dropped, however
unequal the load. Activations and results must be finite: zeros of those matrices meet all of a
block's.

Shortcut: experts that were not chosen, whose weight is zero, are not computed.

VMEM of `_experts` at a width of 4096: two buffers each of a tile's rows in and out (12 MiB) and of
the blocks of the three matrices (4 MiB), 72 MiB; the sum of a tile in float32, 24 MiB.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_TOKENS = 512  # tokens that are sorted, and combined, at once
TILE = 1536  # most rows of an expert for which its matrices are read once
BLOCK_MLP = 512  # hidden columns of one grid step
SUB_ROWS = 256  # rows that are multiplied at once; a tile may end after any of these
COLUMNS = 1024  # columns that are sorted or combined at once
ROWS = 16  # rows of a copy: a bfloat16 tile
VMEM_LIMIT_BYTES = 110 * 2**20

TUNABLES = {
    "BLOCK_TOKENS": (128, 256, 512),
    "TILE": (256, 512, 1024, 1536),
    "BLOCK_MLP": (128, 256, 512),
    "SUB_ROWS": (128, 256, 512),
}


def constraints(BLOCK_TOKENS, TILE, BLOCK_MLP, SUB_ROWS):
    """What must hold between the tunables at the published size."""
    width, experts, chosen = 4096, 8, 2
    used = 2 * 2 * width * (2 * TILE + 3 * BLOCK_MLP) + 4 * width * (TILE + SUB_ROWS)
    packed = chosen * BLOCK_TOKENS + 2 * ROWS * experts
    sort = width * (2 * 2 * packed + 2 * 4 * BLOCK_TOKENS) + 4 * packed * (COLUMNS + BLOCK_TOKENS)
    return {
        "tiles and blocks fit in VMEM": max(used, sort) <= VMEM_LIMIT_BYTES,
        "a tile holds what is multiplied at once": SUB_ROWS <= TILE,
    }


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _each_copy(block, counts_ref, places_ref, packed_ref, sorted_hbm, semaphores, *, out):
    """The copies of a block's pieces, to or from where their expert's rows are."""
    slot = lax.rem(block, 2)

    def do(action):
        def body(piece, carry):
            place = pl.multiple_of(places_ref[block, piece], ROWS)
            here = packed_ref.at[slot, pl.ds(pl.multiple_of(piece * ROWS, ROWS), ROWS)]
            there = sorted_hbm.at[pl.ds(place, ROWS)]
            source, to = (here, there) if out else (there, here)
            action(pltpu.make_async_copy(source, to, semaphores.at[slot]))
            return carry

        lax.fori_loop(0, counts_ref[block], body, 0)

    return do


def _dispatch(
    counts_ref, places_ref, edges_ref, x_ref, rows_ref, sorted_hbm,
    packed_ref, edge_ref, semaphores,
):  # fmt: skip
    block, blocks = pl.program_id(0), pl.num_programs(0)
    _, length, width = packed_ref.shape
    slot = lax.rem(block, 2)
    copies = functools.partial(
        _each_copy,
        counts_ref=counts_ref,
        places_ref=places_ref,
        packed_ref=packed_ref,
        sorted_hbm=sorted_hbm,
        semaphores=semaphores,
        out=True,
    )

    row = lax.broadcasted_iota(jnp.int32, (length, x_ref.shape[0]), 0)
    chosen = functools.reduce(jnp.logical_or, (row == one for one in _rows(rows_ref[0])))
    select = jnp.where(chosen, 1.0, 0.0).astype(x_ref.dtype)
    step = _block(width, COLUMNS)
    for at in (slice(i, i + step) for i in range(0, width, step)):
        product = jnp.dot(select, x_ref[:, at], preferred_element_type=jnp.float32)
        packed_ref[slot, :, at] = product.astype(packed_ref.dtype)

    @pl.when(block == 0)
    def _():
        edge_ref[...] = jnp.zeros_like(edge_ref)

    for expert in range(edge_ref.shape[0]):
        first, last = (pl.multiple_of(edges_ref[i, block, expert], ROWS) for i in (0, 1))
        packed_ref[slot, pl.ds(first, ROWS)] += edge_ref[expert]
        ends_within = edges_ref[2, block, expert] > 0
        rest = packed_ref[slot, pl.ds(last, ROWS)]
        edge_ref[expert] = jnp.where(ends_within, rest, jnp.zeros_like(rest))

    # The last piece of the block before may be written again: copies must not overtake.
    @pl.when(block > 0)
    def _():
        copies(block - 1)(lambda copy: copy.wait())

    copies(block)(lambda copy: copy.start())

    @pl.when(block == blocks - 1)
    def _():
        copies(block)(lambda copy: copy.wait())


def _rows(matrix):
    return [matrix[i : i + 1] for i in range(matrix.shape[0])]


def _experts(expert_ref, used_ref, x_ref, gate_ref, up_ref, down_ref, out_ref, sum_ref):
    tile, step = pl.program_id(0), pl.program_id(1)
    rows = _block(x_ref.shape[0], SUB_ROWS)
    dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)

    @pl.when(step == 0)
    def _():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    def body(index, carry):
        at = pl.ds(pl.multiple_of(index * rows, rows), rows)
        x = x_ref[at]
        hidden = jax.nn.silu(dot(x, gate_ref[0])) * dot(x, up_ref[0])
        sum_ref[at] += dot(hidden.astype(x.dtype), down_ref[0])
        return carry

    lax.fori_loop(0, pl.cdiv(used_ref[tile], rows), body, 0)

    @pl.when(step == pl.num_programs(1) - 1)
    def _():
        out_ref[...] = sum_ref[...].astype(out_ref.dtype)


def _combine(
    counts_ref, places_ref, rows_ref, weights_ref, sorted_hbm, out_ref, packed_ref, semaphores
):
    block, blocks = pl.program_id(0), pl.num_programs(0)
    (tokens, width), length = out_ref.shape, packed_ref.shape[1]
    copies = functools.partial(
        _each_copy,
        counts_ref=counts_ref,
        places_ref=places_ref,
        packed_ref=packed_ref,
        sorted_hbm=sorted_hbm,
        semaphores=semaphores,
        out=False,
    )

    @pl.when(block == 0)
    def _():
        # Rows that are not fetched have the weight zero, and must not be infinite.
        packed_ref[...] = jnp.zeros_like(packed_ref)
        copies(block)(lambda copy: copy.start())

    @pl.when(block + 1 < blocks)
    def _():
        copies(block + 1)(lambda copy: copy.start())

    copies(block)(lambda copy: copy.wait())
    row = lax.broadcasted_iota(jnp.int32, (tokens, length), 1)
    weights = jnp.zeros((tokens, length), jnp.float32)
    for k in range(rows_ref.shape[1]):
        one = slice(k, k + 1)
        weights += jnp.where(row == rows_ref[:, one], weights_ref[:, one], 0.0)
    weights = weights.astype(packed_ref.dtype)
    step = _block(width, COLUMNS)
    for at in (slice(i, i + step) for i in range(0, width, step)):
        packed = packed_ref[lax.rem(block, 2), :, at]
        out_ref[:, at] = jnp.dot(weights, packed, preferred_element_type=jnp.float32)


def _route(x, router_weights, block, tile):
    """Where the rows go, and with which weights they come back."""
    chosen, largest = [], []
    logits = x @ router_weights
    experts = jnp.arange(logits.shape[1])
    for _ in range(CONFIG["num_experts_per_tok"]):
        one = jnp.argmax(logits, axis=1)[:, None] == experts
        largest.append(jnp.max(logits, axis=1))
        chosen.append(one.reshape(-1, block, len(experts)))
        logits = jnp.where(one, -jnp.inf, logits)
    weights = jax.nn.softmax(jnp.stack(largest, axis=1), axis=1).astype(jnp.float32)

    # Ranks among an expert's rows: of a token within its block, and of a block's first row.
    mine = functools.reduce(jnp.add, (one.astype(jnp.int32) for one in chosen))
    rank = jnp.cumsum(mine, axis=1) - mine
    load = jnp.sum(mine, axis=1)
    end = jnp.cumsum(load, axis=0)
    start = end - load

    # An expert's rows fill as few tiles as can be, all about alike.
    total = end[-1]
    tiles = -(-total // tile)
    unit = _block(tile, SUB_ROWS)  # of which only an expert's last one is not full
    each = -(-total // (jnp.maximum(tiles, 1) * unit)) * unit
    last_tile = jnp.cumsum(tiles)
    first_tile = last_tile - tiles
    number = jnp.arange(x.shape[0] * len(chosen) // tile + len(experts))
    owner = jnp.sum(number[:, None] >= last_tile, axis=1, dtype=jnp.int32)
    own = owner[:, None] == experts
    begun = (number[:, None] - first_tile) * each
    used = jnp.sum(jnp.where(own, jnp.clip(total - begun, 0, each), 0), axis=1)
    owner = jnp.minimum(owner, len(experts) - 1)

    # The pieces of a block, one expert after the other, and the rows that collect them.
    low, pieces = start // ROWS, -(-end // ROWS) - start // ROWS
    after = jnp.cumsum(pieces, axis=1)
    before = after - pieces
    piece = jnp.arange((len(chosen) * block + 2 * ROWS * len(experts)) // ROWS)[:, None]
    inside = (piece >= before[:, None]) & (piece < after[:, None])
    row = (low[:, None] + piece - before[:, None]) * ROWS
    place = first_tile * tile + row // jnp.maximum(each, 1) * (tile - each) + row
    places = jnp.sum(jnp.where(inside, place, 0), axis=2)
    edges = jnp.stack([before * ROWS, (before + end // ROWS - low) * ROWS, end % ROWS])

    # The row of each token and choice among the rows of its block.
    local = (before * ROWS + start - low * ROWS)[:, None] + rank
    rows = jnp.stack([jnp.sum(jnp.where(one, local, 0), axis=2) for one in chosen], axis=1)
    return rows, weights, after[:, -1], places, edges, owner, used, last_tile[-1]


def workload(x, router_weights, expert_gate_kernels, expert_up_kernels, expert_down_kernels):
    """Sends x (B, S, E) through the chosen experts' MLPs (N, E, M), (N, E, M), (N, M, E)."""
    shape, (experts, width, mlp) = x.shape, expert_gate_kernels.shape
    x = x.reshape(-1, width)
    count, chosen = len(x), CONFIG["num_experts_per_tok"]
    # At least four blocks, so that copies of several are under way at any size.
    block = max(n for n in range(ROWS, BLOCK_TOKENS + 1, ROWS) if count % (4 * n) == 0)
    tile, block_mlp = min(TILE, count), _block(mlp, BLOCK_MLP)
    rows, weights, pieces, places, edges, owner, used, tiles = _route(
        x, router_weights, block, tile
    )
    packed = pltpu.VMEM((2, places.shape[1] * ROWS, width), x.dtype)
    params = functools.partial(pltpu.CompilerParams, vmem_limit_bytes=VMEM_LIMIT_BYTES)
    sorted_rows = jax.ShapeDtypeStruct((len(used) * tile, width), x.dtype)

    dispatched = pl.pallas_call(
        _dispatch,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(count // block,),
            in_specs=[
                pl.BlockSpec((block, width), lambda b, *_: (b, 0)),
                pl.BlockSpec((1, chosen, block), lambda b, *_: (b, 0, 0)),
            ],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[
                packed,
                pltpu.VMEM((experts, ROWS, width), x.dtype),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=sorted_rows,
        compiler_params=params(dimension_semantics=("arbitrary",)),
    )(pieces, places, edges, x, rows)

    results = pl.pallas_call(
        _experts,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(tiles, mlp // block_mlp),
            in_specs=[
                pl.BlockSpec((tile, width), lambda t, j, *_: (t, 0)),
                pl.BlockSpec((1, width, block_mlp), lambda t, j, owner, _: (owner[t], 0, j)),
                pl.BlockSpec((1, width, block_mlp), lambda t, j, owner, _: (owner[t], 0, j)),
                pl.BlockSpec((1, block_mlp, width), lambda t, j, owner, _: (owner[t], j, 0)),
            ],
            out_specs=pl.BlockSpec((tile, width), lambda t, j, *_: (t, 0)),
            scratch_shapes=[pltpu.VMEM((tile, width), jnp.float32)],
        ),
        out_shape=sorted_rows,
        compiler_params=params(dimension_semantics=("arbitrary", "arbitrary")),
    )(owner, used, dispatched, expert_gate_kernels, expert_up_kernels, expert_down_kernels)

    out = pl.pallas_call(
        _combine,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(count // block,),
            in_specs=[
                pl.BlockSpec((block, chosen), lambda b, *_: (b, 0)),
                pl.BlockSpec((block, chosen), lambda b, *_: (b, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((block, width), lambda b, *_: (b, 0)),
            scratch_shapes=[packed, pltpu.SemaphoreType.DMA((2,))],
        ),
        out_shape=jax.ShapeDtypeStruct((count, width), jnp.float32),
        compiler_params=params(dimension_semantics=("arbitrary",)),
    )(pieces, places, jnp.swapaxes(rows, 1, 2).reshape(count, chosen), weights, results)
    return out.reshape(shape)
