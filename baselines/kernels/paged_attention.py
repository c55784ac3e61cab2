"""Decoding over paged keys and values, limited by reading each page once.

Pages come by copies of the kernel's own, GROUP_PAGES at a time, the next groups (of this sequence
or of the following ones) during the work on this one. A page is a matrix with a row for each
position and head, just as it lies in memory: all query heads are multiplied with all rows at once,
and products of a query head with another head's key are masked. That is Hkv times the
multiplications, which the matrix units do in the time that the pages take to arrive, and
saves separating the heads.

Lengths are at least one. Every entry of the table is a page and holds finite numbers, also behind a
sequence: chunks are fetched whole, and what is behind gets the weight zero.

VMEM: four buffers each of keys and values (512 KiB apiece), 4 MiB, and the scores of a group,
512 KiB.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

GROUP_PAGES = 16  # pages that are multiplied at once
CHUNK_PAGES = 1  # pages that are fetched, needed or not, where one of them is needed
BUFFERS = 4  # groups in VMEM at a time

TUNABLES = {
    "GROUP_PAGES": (8, 16, 32, 64),
    "CHUNK_PAGES": (1, 2, 4),
    "BUFFERS": (2, 4),
}


def constraints(GROUP_PAGES, CHUNK_PAGES, BUFFERS):
    """What must hold between the tunables at the published size."""
    page_bytes, score_bytes = 2 * 16 * 8 * 128, 4 * 16 * 8 * 64
    used = GROUP_PAGES * (2 * BUFFERS * page_bytes + 2 * score_bytes)
    return {
        "pages and scores fit in VMEM": used <= 28 * 2**20,
        "a chunk is a part of a group": CHUNK_PAGES <= GROUP_PAGES,
    }


def _kernel(
    lengths_ref, groups_ref, firsts_ref, owners_ref, table_ref, _, query_ref, keys_hbm, values_hbm,
    out_ref, keys_ref, values_ref, semaphores,
):  # fmt: skip
    sequence, sequences = pl.program_id(0), pl.num_programs(0)
    _, pages, rows, dim = keys_ref.shape
    heads, slots = query_ref.shape[1], CONFIG["page_size"]
    kv_heads = rows // slots
    length = lengths_ref[sequence]
    chunk_pages = CHUNK_PAGES if pages % CHUNK_PAGES == 0 else 1

    def each_chunk(number, action):
        """Calls action(sequence, group, slot, page in it) for each chunk of a group in use."""
        sequence = owners_ref[number]
        group = number - firsts_ref[sequence]
        used = pl.cdiv(lengths_ref[sequence], slots) - group * pages

        def body(chunk, carry):
            action(sequence, group, lax.rem(number, BUFFERS), chunk * chunk_pages)
            return carry

        lax.fori_loop(0, jnp.minimum(pl.cdiv(used, chunk_pages), pages // chunk_pages), body, 0)

    def start_copies(sequence, group, slot, first):
        for at in range(chunk_pages):
            page = table_ref[sequence, group * pages + first + at]
            for source, to in ((keys_hbm, keys_ref), (values_hbm, values_ref)):
                to = to.at[slot, first + at]
                pltpu.make_async_copy(source.at[page], to, semaphores.at[slot]).start()

    def wait_for_copies(sequence, group, slot, first):
        chunk = pl.ds(0, chunk_pages)  # a wait counts bytes, of whichever pages
        for source, to in ((keys_hbm, keys_ref), (values_hbm, values_ref)):
            to = to.at[slot, pl.ds(first, chunk_pages)]
            pltpu.make_async_copy(source.at[chunk], to, semaphores.at[slot]).wait()

    def fetch(number):
        @pl.when(number < firsts_ref[sequences])
        def _():
            each_chunk(number, start_copies)

    @pl.when(sequence == 0)
    def _():
        # What lies behind a sequence has the weight zero, and must not be infinite.
        values_ref[...] = jnp.zeros_like(values_ref)
        for number in range(BUFFERS - 1):
            fetch(number)

    column = lax.broadcasted_iota(jnp.int32, (heads, rows), 1)
    head = lax.broadcasted_iota(jnp.int32, (heads, rows), 0) // (heads // kv_heads)
    other_head = jnp.where(lax.rem(column, kv_heads) == head, 0.0, CONFIG["mask_fill"])
    position = column[:1] // kv_heads
    query = query_ref[0].astype(jnp.float32) * (CONFIG["scale"] * math.log2(math.e))
    query = query.astype(query_ref.dtype)

    def step(group, carry):
        largest, total, out = carry
        number = firsts_ref[sequence] + group
        fetch(number + BUFFERS - 1)
        each_chunk(number, wait_for_copies)
        slot = lax.rem(number, BUFFERS)
        scores = lax.dot_general(
            query,
            keys_ref[slot].reshape(pages * rows, dim),
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        left = length - group * pages * slots
        masked = []
        for page in range(pages):
            part = scores[:, page * rows : (page + 1) * rows] + other_head
            masked.append(jnp.where(position < left - page * slots, part, CONFIG["mask_fill"]))
        top = functools.reduce(jnp.maximum, masked)
        new = jnp.maximum(largest, jnp.max(top, axis=1, keepdims=True))
        faded = jnp.exp2(largest - new)
        weights = [jnp.exp2(part - new) for part in masked]
        total = faded * total + sum(weights)
        weights = jnp.concatenate([w.astype(values_ref.dtype) for w in weights], axis=1)
        out = faded * out + jnp.dot(
            weights,
            values_ref[slot].reshape(pages * rows, dim),
            preferred_element_type=jnp.float32,
        )
        return new, total, out

    zeros = jnp.zeros((heads, rows), jnp.float32), jnp.zeros((heads, dim), jnp.float32)
    start = (jnp.full((heads, 1), CONFIG["mask_fill"], jnp.float32), *zeros)
    _, total, out = lax.fori_loop(0, groups_ref[sequence], step, start)
    out_ref[0] = (out / jnp.sum(total, axis=1, keepdims=True)).astype(out_ref.dtype)


def workload(queries, k_pages, v_pages, kv_lens, page_indices, cu_q_lens):
    """Row cu_q_lens[s] of queries (T, Hq, D) attends to sequence s; pages (P, slots, Hkv, D)."""
    (_, heads, dim), (count, slots, kv_heads, _) = queries.shape, k_pages.shape
    sequences = page_indices.shape[0]
    pages = max(n for n in range(1, GROUP_PAGES + 1) if page_indices.shape[1] % n == 0)
    rows = slots * kv_heads
    groups = -(-kv_lens // (pages * slots))
    # The groups of all sequences are numbered; a number's owner has that number or a lower first.
    ends = jnp.cumsum(groups)
    firsts = jnp.append(0, ends)
    numbers = jnp.arange(sequences * (page_indices.shape[1] // pages))
    owners = jnp.sum(numbers[:, None] >= ends, axis=1, dtype=jnp.int32)
    buffer = pltpu.VMEM((BUFFERS, pages, rows, dim), k_pages.dtype)
    return pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=6,
            grid=(sequences,),
            in_specs=[
                pl.BlockSpec((1, heads, dim), lambda s, *refs: (refs[5][s], 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((1, heads, dim), lambda s, *_: (s, 0, 0)),
            scratch_shapes=[buffer, buffer, pltpu.SemaphoreType.DMA((BUFFERS,))],
        ),
        out_shape=jax.ShapeDtypeStruct((sequences, heads, dim), queries.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), disable_bounds_checks=True
        ),
    )(
        kv_lens,
        groups,
        firsts,
        owners,
        page_indices,
        cu_q_lens,
        queries,
        k_pages.reshape(count, rows, dim),
        v_pages.reshape(count, rows, dim),
    )
