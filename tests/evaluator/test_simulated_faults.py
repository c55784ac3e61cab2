"""Faults that only the simulated TPU sees are told with the ref, the grid step and the line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxbench_env.evaluator.children import trace

X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
BLOCK = pl.BlockSpec((8, 128), lambda i: (i, 0))
LIKE_X = jax.ShapeDtypeStruct(X.shape, X.dtype)
ANY = pl.BlockSpec(memory_space=pl.ANY)


def by_rows(kernel, *scratch, x=BLOCK):
    """Calls a kernel for every eight rows of x."""
    return pl.pallas_call(
        kernel, LIKE_X, grid=(4,), in_specs=[x], out_specs=BLOCK, scratch_shapes=scratch
    )


def two_slots(wait_for):
    """Doubles x block by block; the next block is fetched while one is computed."""

    def kernel(x_hbm, o_ref, slots, sems):
        i = pl.program_id(0)

        def fetch(block, slot):
            rows = x_hbm.at[pl.ds(block * 8, 8)]
            return pltpu.make_async_copy(rows, slots.at[slot], sems.at[slot])

        @pl.when(i == 0)
        def _():
            fetch(0, 0).start()

        @pl.when(i + 1 < pl.num_programs(0))
        def _():
            fetch(i + 1, (i + 1) % 2).start()

        wait_for(fetch, i)
        o_ref[...] = slots[i % 2] * 2

    return by_rows(
        kernel, pltpu.VMEM((2, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,)), x=ANY
    )


def block_outside():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    shifted = pl.BlockSpec((8, 128), lambda i: (i + 1, 0))
    return pl.pallas_call(kernel, LIKE_X, grid=(4,), in_specs=[shifted], out_specs=BLOCK)


def rows_outside():
    def kernel(x_ref, o_ref):
        i = pl.program_id(0)
        o_ref[...] = x_ref[pl.ds(i * 8 + 4, 8)]

    whole = pl.BlockSpec((32, 128), lambda i: (0, 0))
    return pl.pallas_call(kernel, LIKE_X, grid=(4,), in_specs=[whole], out_specs=BLOCK)


def through_views(start):
    """Copies x by way of a scratch of half the bits, read packed, in halves, one from `start`."""

    def kernel(x_ref, o_ref, halves_ref):
        words = pltpu.bitcast(x_ref[...], jnp.uint16)
        halves_ref[...] = words.reshape(1, *words.shape)
        i = pl.program_id(0)
        packed = halves_ref.at[0].bitcast(jnp.float32).reshape(2, 4, 128)
        o_ref[:4] = packed[start(i)]
        o_ref[4:] = packed[1]

    return by_rows(kernel, pltpu.VMEM((1, 16, 128), jnp.uint16))


def stored_through_views(mask):
    """Copies x by way of views of a scratch, an odd half and an even half of it."""

    def kernel(x_ref, o_ref, acc_ref):
        rows = acc_ref.at[0].reshape(2, 4, 128)
        rows.bitcast(jnp.int16)[1] = pltpu.bitcast(x_ref[4:], jnp.int16)
        if mask:
            even = jax.lax.broadcasted_iota(jnp.int32, (4, 128), 1) % 2 == 0
            pltpu.store(rows.at[0], x_ref[:4], mask=even)
            pltpu.store(rows.at[0], x_ref[:4], mask=~even)
        else:
            rows[0] = x_ref[:4]
        o_ref[...] = acc_ref[0]

    return by_rows(kernel, pltpu.VMEM((1, 8, 128), jnp.float32))


def views_of_a_copy(wait_first):
    """The first half of a scratch is read through a view, while the second may be written."""

    def kernel(x_hbm, o_ref, both_ref, sem):
        copy = pltpu.make_async_copy(x_hbm.at[pl.ds(8, 8)], both_ref.at[1], sem)
        both_ref[...] = jnp.zeros_like(both_ref)
        copy.start()
        if wait_first:
            copy.wait()
        o_ref[...] = both_ref.bitcast(jnp.int32)[0].astype(jnp.float32)
        if not wait_first:
            copy.wait()

    return by_rows(kernel, pltpu.VMEM((2, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA, x=ANY)


def unwritten_view():
    def kernel(x_ref, o_ref, acc_ref):
        o_ref[...] = x_ref[...] + acc_ref.reshape(8, 128)[...]

    return by_rows(kernel, pltpu.VMEM((1, 8, 128), jnp.float32))


def unwritten_scratch():
    def kernel(x_ref, o_ref, acc_ref):
        @pl.when(pl.program_id(0) > 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        o_ref[...] = acc_ref[...]

    return by_rows(kernel, pltpu.VMEM((8, 128), jnp.float32))


def unwritten_output():
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) != 2)
        def _():
            o_ref[...] = x_ref[...]

    late = pl.BlockSpec((8, 128), lambda i: ((i + 2) % 4, 0))
    return pl.pallas_call(kernel, LIKE_X, grid=(4,), in_specs=[late], out_specs=late)


def revisited_output():
    """A sum over the outer axis: other blocks come between two visits of a block."""

    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    inner = pl.BlockSpec((8, 128), lambda k, i: (i, 0))
    return pl.pallas_call(
        kernel,
        LIKE_X,
        grid=(2, 4),
        in_specs=[inner],
        out_specs=inner,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )


def two_calls():
    """The second call's scratch has the number of the first one's, and nothing else of it."""

    def kernel(x_ref, o_ref, acc_ref):
        acc_ref[...] = x_ref[...]
        o_ref[...] = acc_ref[...]

    once = by_rows(kernel, pltpu.VMEM((8, 128), jnp.float32))
    return lambda x: once(once(x))


def simulated(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    closed = jax.make_jaxpr(call)(jnp.asarray(X))
    found = trace._simulate(closed, [X], 100)
    path = tmp_path / "simulated"
    result = np.fromfile(path, np.float32).reshape(X.shape) if path.exists() else None
    return found, result


def test_a_copy_that_is_waited_for_is_no_race(tmp_path, monkeypatch):
    call = two_slots(lambda fetch, i: fetch(i, i % 2).wait())
    found, result = simulated(call, tmp_path, monkeypatch)
    assert found == {"outcome": "clean", "reason": ""}
    np.testing.assert_array_equal(result, 2 * X)


def test_access_through_views_is_simulated(tmp_path, monkeypatch):
    for call in (
        through_views(lambda i: 0),
        stored_through_views(False),
        stored_through_views(True),
    ):
        found, result = simulated(call, tmp_path, monkeypatch)
        (tmp_path / "simulated").unlink()
        assert found == {"outcome": "clean", "reason": ""}
        np.testing.assert_array_equal(result, X)


def test_a_view_counts_as_all_of_its_buffer_but_accuses_nobody(tmp_path, monkeypatch):
    found, _ = simulated(views_of_a_copy(True), tmp_path, monkeypatch)
    assert found == {"outcome": "clean", "reason": ""}
    found, _ = simulated(views_of_a_copy(False), tmp_path, monkeypatch)
    assert found["outcome"] == "failed" and "of a reshaped or bitcast ref" in found["reason"]


def test_one_call_does_not_race_with_another(tmp_path, monkeypatch):
    found, result = simulated(two_calls(), tmp_path, monkeypatch)
    assert found == {"outcome": "clean", "reason": ""}
    np.testing.assert_array_equal(result, X)


def test_a_race_names_scratch_and_both_steps(tmp_path, monkeypatch):
    call = two_slots(lambda fetch, i: fetch(i, (i + 1) % 2).wait())
    found, _ = simulated(call, tmp_path, monkeypatch)
    assert found["outcome"] == "race", found
    first = found["reason"].splitlines()[0]
    assert "scratch `slots` (argument 3)" in first
    assert "the copy that was started at grid step (" in first


def signalled_once():
    def kernel(x_ref, o_ref, sem):
        @pl.when(pl.program_id(0) == 0)
        def _():
            pl.semaphore_signal(sem, 1)

        pl.semaphore_wait(sem, 1)
        o_ref[...] = x_ref[...]

    return by_rows(kernel, pltpu.SemaphoreType.REGULAR)


@pytest.mark.parametrize(
    ("call", "step"),
    [
        (two_slots(lambda fetch, i: (fetch(i, i % 2).wait(), fetch(i, i % 2).wait())), "(0,)"),
        (two_slots(lambda fetch, i: fetch(i, (i + i // 3) % 2).wait()), "(3,)"),
        (signalled_once(), "(1,)"),
    ],
)
def test_a_wait_that_nothing_ends_is_named(call, step, tmp_path, monkeypatch):
    found, result = simulated(call, tmp_path, monkeypatch)
    assert found["outcome"] == "stuck" and result is None
    assert f"the wait at grid step {step}" in found["reason"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (block_outside(), ["the block of `x_ref` at grid step (3,)", "indices 32 to 39 of axis 0"]),
        (rows_outside(), ["`x_ref` (argument 1)", "grid step (3,)", "indices 28 to 35 of axis 0"]),
        (
            through_views(lambda i: i),
            ["`halves_ref`", "grid step (2,)", "indices 2 to 2 of axis 0"],
        ),
    ],
)
def test_a_read_outside_names_ref_and_step(call, says, tmp_path, monkeypatch):
    found, result = simulated(call, tmp_path, monkeypatch)
    assert found["outcome"] == "out_of_bounds" and result is None
    assert all(text in found["reason"] for text in says), found


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (unwritten_scratch(), "scratch `acc_ref` (argument 3) is read at grid step (0,) before"),
        (unwritten_view(), "scratch `acc_ref` (argument 3) is read at grid step (0,) before"),
        (unwritten_output(), "`o_ref` (argument 2) is read at grid step (2,) before"),
        (revisited_output(), "`o_ref` (argument 2) comes back at grid step (1, 0)"),
    ],
)
def test_what_explains_poisoned_numbers_is_named(call, says, tmp_path, monkeypatch):
    found, result = simulated(call, tmp_path, monkeypatch)
    assert found["outcome"] == "clean"
    assert says in found["hint"], found
    assert not np.array_equal(result, X) and not np.array_equal(result, 2 * X)
