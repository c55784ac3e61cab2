"""Grouped matrix product with one grid step per group, limited by reading the matrices.

A step multiplies a window of rows that holds the whole group, however it lies to the tiles, by the
group's whole matrix, while the pipeline loads the next one. So every matrix is read once and no
tile of rows is multiplied twice. Rows of other groups in the window are dropped; results leave by
copies of ROWS rows, as many as the group touches. Where two groups share such a piece, the first
one's part waits in VMEM for the second. Groups may be empty, but none has more rows than
max_expert_size, which sets the window; M is a multiple of ROWS.

VMEM at K = 4096, N = 1536: two buffers each of the matrix (12 MiB), the window (272 rows, 2.1 MiB)
and the result (0.8 MiB), 30 MiB, and what the compiler keeps of the product in float32.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS = 16  # rows of a copy: a bfloat16 tile, or several
COLUMN_BLOCKS = 1  # parts of the product that are rounded one by one: a divisor of N
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "ROWS": (16, 32, 64),
    "COLUMN_BLOCKS": (1, 2, 4),
}


def constraints(ROWS, COLUMN_BLOCKS):
    """What must hold between the tunables at the published size."""
    k, n, largest, buffers, item = 4096, 1536, 256, 2, 2
    window = -(-largest // ROWS) * ROWS + ROWS
    used = buffers * item * (k * n + window * k + window * n) + 4 * window * n // COLUMN_BLOCKS
    return {"blocks fit in VMEM": used <= VMEM_LIMIT_BYTES}


def _kernel(
    starts_ref, ends_ref, firsts_ref, pieces_ref, window_ref,
    lhs_ref, rhs_ref, out_ref, result_ref, edge_ref, semaphore,
):  # fmt: skip
    group, groups = pl.program_id(0), pl.num_programs(0)
    window, columns = lhs_ref.shape[0], rhs_ref.shape[2]
    start, end, first = starts_ref[group], ends_ref[group], firsts_ref[group]
    slot = lax.rem(group, 2)

    def each_copy(index, action):
        """Does something to the copies of a group's pieces."""

        def body(piece, carry):
            # Behind the window of the last group there are only zeros.
            at = jnp.minimum(piece * ROWS - firsts_ref[index], window_ref[0])
            source = result_ref.at[lax.rem(index, 2), pl.ds(pl.multiple_of(at, ROWS), ROWS)]
            to = out_ref.at[pl.ds(pl.multiple_of(piece * ROWS, ROWS), ROWS)]
            action(pltpu.make_async_copy(source, to, semaphore))
            return carry

        lax.fori_loop(pieces_ref[0, index], pieces_ref[1, index], body, 0)

    row = first + lax.broadcasted_iota(jnp.int32, (window, 1), 0)
    mine = (row >= start) & (row < end)
    width = columns // COLUMN_BLOCKS
    for at in (slice(i * width, (i + 1) * width) for i in range(COLUMN_BLOCKS)):
        product = jnp.dot(lhs_ref[...], rhs_ref[0, :, at], preferred_element_type=jnp.float32)
        result_ref[slot, :window, at] = jnp.where(mine, product, 0.0).astype(result_ref.dtype)
    result_ref[slot, window:] = jnp.zeros_like(edge_ref)

    shared = pl.multiple_of(start // ROWS * ROWS - first, ROWS)
    row = first + shared + lax.broadcasted_iota(jnp.int32, (ROWS, 1), 0)
    at = pl.ds(shared, ROWS)
    result_ref[slot, at] = jnp.where(row < start, edge_ref[...], result_ref[slot, at])
    # If the group ends with a piece, these are rows that no other group needs.
    last = pl.multiple_of(end // ROWS * ROWS - first, ROWS)
    edge_ref[...] = result_ref[slot, pl.ds(last, ROWS)]

    # The last piece of the group before may be the first of this one: copies must not overtake.
    @pl.when(group > 0)
    def _():
        each_copy(group - 1, lambda copy: copy.wait())

    each_copy(group, lambda copy: copy.start())

    @pl.when(group == groups - 1)
    def _():
        each_copy(group, lambda copy: copy.wait())


def workload(lhs, rhs, group_sizes, max_expert_size):
    """Rows of lhs (M, K), sorted by group, times the group's matrix in rhs (G, K, N)."""
    (m, k), (groups, _, n) = lhs.shape, rhs.shape
    window = min(m, -(-max_expert_size // ROWS) * ROWS + ROWS)
    ends = jnp.cumsum(group_sizes)
    starts = ends - group_sizes
    # A window starts with the group's first piece, or earlier where the rows end.
    firsts = jnp.minimum(starts // ROWS * ROWS, m - window)
    # The last group also writes the zeros behind it.
    pieces = jnp.stack([starts // ROWS, (-(-ends // ROWS)).at[-1].set(m // ROWS)])
    return pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(groups,),
            in_specs=[
                pl.BlockSpec(
                    (pl.Element(window), pl.Element(k)),
                    lambda g, starts, ends, firsts, *_: (pl.multiple_of(firsts[g], ROWS), 0),
                ),
                pl.BlockSpec((1, k, n), lambda g, *_: (g, 0, 0)),
            ],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[
                pltpu.VMEM((2, window + ROWS, n), lhs.dtype),
                pltpu.VMEM((ROWS, n), lhs.dtype),
                pltpu.SemaphoreType.DMA,
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(starts, ends, firsts, pieces, jnp.array([window], jnp.int32), lhs, rhs)
