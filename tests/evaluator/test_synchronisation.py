"""What a simulated run at a small size says about races at full size."""

import jax
import jax.numpy as jnp
import pytest
from evidence_programs import double, read, rows, spec
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxbench_env.evaluator import verdict
from jaxbench_env.evaluator.judge import evidence

ROWS = 8


def copying(body):
    """A kernel that fetches every block by itself: ``body(fetch, use, i, steps)`` for each."""

    def f(x):
        steps = x.shape[0] // ROWS

        def kernel(x_hbm, o_ref, buffer, semaphores):
            def fetch(slot, i):
                return pltpu.make_async_copy(
                    x_hbm.at[pl.ds(i * ROWS, ROWS)], buffer.at[slot], semaphores.at[slot]
                )

            def use(slot, i):
                o_ref[pl.ds(i * ROWS, ROWS)] = buffer[slot] * 2

            body(fetch, use, steps)

        return pl.pallas_call(
            kernel,
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[pltpu.VMEM((2, ROWS, 128), x.dtype), pltpu.SemaphoreType.DMA((2,))],
        )(x)

    return f


def found(body, small=64, full=512):
    make = copying(body)
    return evidence.synchronised(
        {"v6e": read(make, spec(full, 128)), "tiles": read(make, spec(small, 128))}
    )["tiles"]


def buffered(fetch, use, steps):
    fetch(0, 0).start()

    def body(i, _):
        slot = jax.lax.rem(i, 2)
        pl.when(i + 1 < steps)(lambda: fetch(1 - slot, i + 1).start())
        fetch(slot, i).wait()
        use(slot, i)

    jax.lax.fori_loop(0, steps, body, None)


def drained(fetch, use, steps):
    """Two copies at the end, in slots that depend on whether the number of steps is even."""
    for i in (steps - 2, steps - 1):
        fetch(i % 2, i).start()
    for i in (steps - 2, steps - 1):
        fetch(i % 2, i).wait()
    use(0, 0)


def each(wait):
    def body(fetch, use, steps):
        def step(i, seen):
            fetch(0, i).start()
            wait(fetch(0, i), i, steps, seen)
            use(0, i)
            return seen + 1

        jax.lax.fori_loop(0, steps, step, jnp.int32(0))

    return body


@pytest.mark.parametrize("body", [buffered, each(lambda copy, *_: copy.wait())])
def test_the_same_copies_at_both_sizes(body):
    assert not found(body)


def test_starts_and_waits_that_follow_each_other_have_no_order():
    assert not found(drained, small=64, full=512 + ROWS)


@pytest.mark.parametrize(
    "wait",
    [
        lambda copy, i, steps, seen: copy.wait() if steps < 32 else None,
        lambda copy, i, steps, seen: pl.when(i < 20)(copy.wait),
        lambda copy, i, steps, seen: pl.when(seen < 20)(copy.wait),
        lambda copy, i, steps, seen: pl.when(i < (steps if steps < 32 else 3))(copy.wait),
        lambda copy, i, steps, seen: pl.when(seen < (steps if steps < 32 else 30))(copy.wait),
    ],
    ids=["absent", "first steps", "counted", "bound of the size", "counted, of the size"],
)
def test_a_wait_that_the_full_size_leaves_out(wait):
    assert found(each(wait))


def test_a_wait_that_the_full_size_does_too_late():
    def body(fetch, use, steps):
        fetch(0, 0).start()
        if steps < 32:
            fetch(0, 0).wait()
        use(0, 0)
        if steps >= 32:
            fetch(0, 0).wait()

    assert "stood" in found(body)


def test_a_wait_for_another_slot():
    def body(fetch, use, steps):
        fetch(0, 0).start()
        fetch(1, 1).start()
        fetch(0 if steps < 32 else 1, 0).wait()
        use(0, 0)
        fetch(1 if steps < 32 else 0, 1).wait()

    assert found(body)


def test_a_kernel_without_copies_of_its_own_is_not_concerned():
    programs = {
        "v6e": read(rows(double), spec(512, 128)),
        "tiles": read(rows(double), spec(64, 128)),
    }
    assert evidence.synchronised(programs) == {}
    race = {"outcome": "skipped", "reason": "9999 grid steps", "preset": "tiles"}
    assert verdict.judge_races("9999 grid steps", race, {}) == ("9999 grid steps", False)


def test_races_that_were_not_looked_for_cap_a_kernel_with_copies():
    race = {"outcome": "clean", "reason": "", "preset": "tiles"}
    assert verdict.judge_races("", race, {"v6e": "", "tiles": ""}) == ("", False)
    why, capped = verdict.judge_races("", race, {"v6e": "", "tiles": "a loop is another one"})
    assert capped and "a loop is another one" in why
    assert verdict.judge_races("too many steps", race, {"v6e": "", "tiles": ""})[1]
