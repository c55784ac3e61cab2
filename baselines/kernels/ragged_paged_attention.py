"""Flash attention of the newest tokens over paged keys and values.

A grid step is a sequence. Pages come by copies of the kernel's own, GROUP_PAGES at a time, the next
groups (of this sequence or of the following ones) during the work on this one. The query heads
of a key head are stacked, so a product has T * Hq / Hkv rows.

A key and its value lie in the two halves of the same 32-bit words: a row of words, every Hkv-th,
gives both of one head. Only the groups that hold a sequence's end are masked. The values have as
many columns again of ones: the matrix unit has room for them, and the same product gives the sums.

At least one sequence is in use, and those in use have at least T positions. Every entry of their
tables is a page and holds finite numbers, also behind a sequence: groups are fetched whole.

VMEM: a buffer of a group (2 MiB), two each of the queries and the result (1 MiB), 6 MiB; a group's
words, 2 MiB; the scaled queries, 1 MiB; largest score, result and sum of each row in float32,
6 MiB; and the scores of the heads that are under way, 1 MiB each.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

GROUP_PAGES = 32  # pages that are multiplied at once
CHUNK_PAGES = 4  # copies that are started without a loop; groups have a multiple of it
AHEAD = 1  # heads whose scores are started before the oldest is finished
BUFFERS = 1  # groups in VMEM at a time
VMEM_LIMIT_BYTES = 64 * 2**20

TUNABLES = {
    "GROUP_PAGES": (8, 16, 32, 64),
    "AHEAD": (0, 1, 2),
    "BUFFERS": (1, 2, 4),
}


def constraints(GROUP_PAGES, AHEAD, BUFFERS):
    """What must hold between the tunables at the published size."""
    page, rows, dim, heads = 16, 512, 128, 8
    groups = (BUFFERS + 1) * 2 * GROUP_PAGES * page * 2 * heads * dim
    state = 2 * 5 * heads * rows * dim + 4 * 3 * heads * rows * dim
    scores = (AHEAD + 2) * 4 * rows * GROUP_PAGES * page
    return {"groups, state and scores fit in VMEM": groups + state + scores <= VMEM_LIMIT_BYTES}


def _kernel(
    lengths_ref, groups_ref, firsts_ref, owners_ref, table_ref, _, query_ref, pages_hbm, out_ref,
    pages_ref, words_ref, scaled_ref, largest_ref, sum_ref, semaphores,
):  # fmt: skip
    sequence, sequences = pl.program_id(0), pl.num_programs(0)
    _, pages, slots, _, dim = pages_ref.shape
    kv_heads, rows = scaled_ref.shape[:2]
    tokens, heads = query_ref.shape[:2]
    share, span = heads // kv_heads, pages * slots
    groups = groups_ref[sequence]

    def fetch(number, slot):
        """Starts the copies of a group's pages, or of the last group's if there is none."""
        number = jnp.minimum(number, firsts_ref[sequences] - 1)
        owner = owners_ref[number]
        first = (number - firsts_ref[owner]) * pages

        def body(chunk, carry):
            for at in range(CHUNK_PAGES):
                at += chunk * CHUNK_PAGES
                page = pages_hbm.at[table_ref[owner, first + at]]
                pltpu.make_async_copy(page, pages_ref.at[slot, at], semaphores.at[slot]).start()
            return carry

        lax.fori_loop(0, pages // CHUNK_PAGES, body, 0)

    def wait(slot):
        # A wait counts bytes, of whichever pages.
        source = pages_hbm.at[pl.ds(0, pages)]
        pltpu.make_async_copy(source, pages_ref.at[slot], semaphores.at[slot]).wait()

    @pl.when(sequence == 0)
    def _():
        for slot in range(BUFFERS):
            fetch(slot, slot)

    for head in range(kv_heads):
        query = query_ref[:, head * share : (head + 1) * share].astype(jnp.float32)
        query = query.reshape(rows, dim) * (CONFIG["scale"] * math.log2(math.e))
        scaled_ref[head] = query.astype(scaled_ref.dtype)
    largest_ref[...] = jnp.full_like(largest_ref, CONFIG["mask_fill"])
    sum_ref[...] = jnp.zeros_like(sum_ref)

    def step(group, carry, masked):
        number = firsts_ref[sequence] + group
        slot = lax.rem(number, BUFFERS)
        wait(slot)
        both = pages_ref[slot].reshape(span * 2 * kv_heads, dim)
        words_ref[...] = pltpu.bitcast(both, jnp.uint32)
        fetch(number + BUFFERS, slot)

        def start(head):
            """Takes the keys and values of a head apart and multiplies queries with keys."""
            words = words_ref[pl.ds(head, span, stride=kv_heads)]
            key, value = (
                lax.bitcast_convert_type(half, jnp.float32).astype(scaled_ref.dtype)
                for half in (words << 16, words & jnp.uint32(0xFFFF0000))
            )
            scores = lax.dot_general(
                scaled_ref[head],
                key,
                (((1,), (1,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            return head, scores, jnp.concatenate([value, jnp.ones_like(value)], axis=1)

        def finish(head, scores, value):
            """Adds the values, weighted, to the result so far."""
            if masked:
                row = lax.broadcasted_iota(jnp.int32, (rows, 1), 0) // share
                last = lengths_ref[sequence] - tokens + row - group * span
                position = lax.broadcasted_iota(jnp.int32, (1, span), 1)
                scores = jnp.where(position <= last, scores, CONFIG["mask_fill"])
            before = largest_ref[head]
            largest = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
            faded = jnp.exp2(before - largest)
            parts = [scores[:, at : at + dim] for at in range(0, span, dim)]
            parts = [part - largest[:, : part.shape[1]] for part in parts]
            weights = jnp.exp2(jnp.concatenate(parts, axis=1)).astype(value.dtype)
            added = jnp.dot(weights, value, preferred_element_type=jnp.float32)
            largest_ref[head] = largest
            faded = jnp.concatenate([faded, faded], axis=1)
            sum_ref[head] = faded * sum_ref[head] + added

        # A software pipeline by the order of the source: the matrix units work on the next head
        # during the exponentials of this one.
        started = []
        for head in range(kv_heads):
            started.append(start(head))
            if len(started) > AHEAD:
                finish(*started.pop(0))
        for entry in started:
            finish(*entry)
        return carry

    # Not below zero: a sequence that is not in use may have any length.
    whole = jnp.clip((lengths_ref[sequence] - tokens + 1) // span, 0, groups)
    lax.fori_loop(0, whole, functools.partial(step, masked=False), 0)
    lax.fori_loop(whole, groups, functools.partial(step, masked=True), 0)

    for head in range(kv_heads):
        result, total = sum_ref[head, :, :dim], sum_ref[head, :, dim:]
        # Sequences that are not in use are zero.
        result *= jnp.where(total > 0, 1 / total, 0.0)
        result = result.reshape(tokens, share, dim).astype(out_ref.dtype)
        out_ref[:, head * share : (head + 1) * share] = result

    @pl.when(sequence == sequences - 1)
    def _():
        for slot in range(BUFFERS):
            wait(slot)


def workload(queries, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs):
    """The newest T of queries (n * T, Hq, D) over pages (P, slots, 2 * Hkv, D) of n sequences."""
    (count, heads, dim), (_, slots, both, _) = queries.shape, kv_pages.shape
    sequences, kv_heads = page_indices.shape[0], both // 2
    tokens, rows = count // sequences, count // sequences * heads // kv_heads
    sizes = range(CHUNK_PAGES, GROUP_PAGES + 1, CHUNK_PAGES)
    pages = max(n for n in sizes if page_indices.shape[1] % n == 0)
    groups = -(-kv_lens // (pages * slots))
    groups = jnp.where(jnp.arange(sequences) < num_seqs, groups, 0)
    # The groups of all sequences are numbered; a number's owner has that number or a lower first.
    ends = jnp.cumsum(groups)
    firsts = jnp.append(0, ends)
    numbers = jnp.arange(sequences * (page_indices.shape[1] // pages))
    owners = jnp.sum(numbers[:, None] >= ends, axis=1, dtype=jnp.int32)
    block = (pl.Element(tokens), pl.Element(heads), pl.Element(dim))
    return pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=6,
            grid=(sequences,),
            in_specs=[
                pl.BlockSpec(block, lambda s, *refs: (refs[5][s], 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((tokens, heads, dim), lambda s, *_: (s, 0, 0)),
            scratch_shapes=[
                pltpu.VMEM((BUFFERS, pages, slots, both, dim), kv_pages.dtype),
                pltpu.VMEM((pages * slots * kv_heads, dim), jnp.uint32),
                pltpu.VMEM((kv_heads, rows, dim), queries.dtype),
                pltpu.VMEM((kv_heads, rows, dim), jnp.float32),
                pltpu.VMEM((kv_heads, rows, 2 * dim), jnp.float32),
                pltpu.SemaphoreType.DMA((BUFFERS,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(queries.shape, queries.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            disable_bounds_checks=True,
            vmem_limit_bytes=VMEM_LIMIT_BYTES,
        ),
    )(
        kv_lens,
        groups,
        firsts,
        owners,
        page_indices,
        jnp.minimum(cu_q_lens[:-1], count - tokens),
        queries,
        kv_pages,
    )
