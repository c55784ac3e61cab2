"""What the artefacts of a kernel show: each fault on a small program, and honest look-alikes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evidence_programs import copy, double, exported, matmul, pair, read, rows, spec
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import workloads
from jaxbench_env.evaluator.judge import coverage, evidence, reach

SMALL, LARGE = (spec(256, 256),) * 2, (spec(512, 512),) * 2


def products(specs, **options):
    """Both programs of a matrix product."""
    return pair(lambda interpret: functools.partial(matmul, interpret=interpret, **options), *specs)


def useful(size):
    return {"v6e": 2 * 512**3, "tiles": 2 * 256**3}[size]


@functools.cache
def honest():
    small, large = products(SMALL), products(LARGE)
    return {"v6e": large[0], "tiles": small[0]}, {"v6e": large[1], "tiles": small[1]}


def test_an_honest_product_is_shown_to_do_its_work():
    tpu, cpu = honest()
    assert evidence.one_program(tpu, cpu).shown == "shown"
    assert evidence.covered(tpu).shown == "shown"
    assert evidence.conserved(tpu, useful).shown == "shown"
    assert evidence.kernel(tpu["v6e"]).shown == "shown"


# -------------------------------------------------------------------------------- one program


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: products((spec(256, 128), spec(128, 256)))[1], "multiplies"),
        (lambda: products(SMALL, block=256)[1], "multiplies"),
        (lambda: products((spec(256, 256, dtype=jnp.bfloat16),) * 2)[1], "multiplies"),
        (lambda: read(lambda a, b: rows(double, interpret=True)(a), *SMALL, platform="cpu"),
         "inputs"),
        (lambda: products(SMALL, exponent=True)[1], "special functions"),
    ],
    ids=["contraction", "blocks", "type", "inputs", "exp"],
)  # fmt: skip
def test_a_program_that_is_not_the_checked_one_is_a_fault(other, says):
    tpu, _ = honest()
    fault = evidence.one_program(tpu, {"tiles": other()}).fault
    assert "preset tiles" in fault and says in fault


def test_other_blocks_of_the_same_arrays_are_a_fault():
    def f(block, interpret):
        return rows(double, block=block, interpret=interpret)

    tpu = read(f(8, False), spec(64, 128))
    cpu = read(f(16, True), spec(64, 128), platform="cpu")
    fault = evidence.one_program({"v6e": tpu, "tiles": tpu}, {"tiles": cpu}).fault
    assert "8 steps" in fault


@pytest.mark.parametrize("what", ["matrix product", "special function"])
def test_work_that_the_full_size_lacks_is_a_fault(what):
    tpu, cpu = honest()
    if what == "matrix product":
        full = read(lambda a, b: rows(lambda x, y, o: double(x, o))(a, b), *LARGE)
        cpu = {"tiles": cpu["tiles"]}
    else:
        small = products(SMALL, exponent=True)
        full, tpu, cpu = tpu["v6e"], {"tiles": small[0]}, {"tiles": small[1]}
    assert what in evidence.one_program({**tpu, "v6e": full}, cpu).fault


def test_an_input_that_only_the_full_size_ignores_is_a_fault():
    tpu, cpu = pair(lambda i: rows(lambda x, y, o: double(x, o), interpret=i), *SMALL)
    full = read(lambda a, b: rows(double)(a), *LARGE)
    assert "argument 1" in evidence.one_program({"v6e": full, "tiles": tpu}, {"tiles": cpu}).fault


def test_a_branch_that_only_the_full_size_has_is_told():
    tpu, cpu = pair(lambda i: rows(double, interpret=i), spec(64, 128))

    def branching(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

        @pl.when(pl.program_id(0) > 99)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

    found = evidence.one_program(
        {"v6e": read(rows(branching), spec(256, 128)), "tiles": tpu}, {"tiles": cpu}
    )
    assert not found.fault and "scf.if" in found.shown


# ----------------------------------------------------------------------------------- coverage


def sizes(make):
    """TPU programs of one kernel at two sizes."""
    return {"v6e": read(make, spec(256, 128)), "tiles": read(make, spec(64, 128))}


def late_store(limit):
    def body(x_ref, o_ref):
        @pl.when(pl.program_id(0) < limit)
        def _():
            o_ref[...] = x_ref[...] * 2

    return body


def chunked(short=0):
    """Copies 8 rows at a time by itself, up to 16 chunks if `short`."""

    def f(x):
        count = x.shape[0] // 8

        def body(x_hbm, o_hbm, buffer, semaphore):
            def step(i, carry):
                pltpu.async_copy(x_hbm.at[pl.ds(i * 8, 8)], buffer, semaphore).wait()
                buffer[...] = buffer[...] * 2
                pltpu.async_copy(buffer, o_hbm.at[pl.ds(i * 8, 8)], semaphore).wait()
                return carry

            lax.fori_loop(0, min(count, 16) if short else count, step, 0)

        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        scratch = [pltpu.VMEM((8, x.shape[1]), jnp.float32), pltpu.SemaphoreType.DMA]
        return pl.pallas_call(
            body, in_specs=[anywhere], out_specs=anywhere, out_shape=x, scratch_shapes=scratch
        )(x)

    return f


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (rows(double, out_index=lambda i: (jnp.minimum(i, 15), 0)), "writes 50.0%"),
        (rows(double, in_index=lambda i: (jnp.minimum(i, 15), 0)), "reads 50.0%"),
        (rows(late_store(16)), "writes 50.0%"),
        (chunked(short=1), "writes 50.0%"),
    ],
    ids=["output clipped", "input clipped", "store under a condition", "own copies"],
)
def test_a_part_left_out_at_full_size_is_a_fault(make, says):
    fault = evidence.covered(sizes(make)).fault
    assert says in fault and "8x128 at [128, 0]" in fault


@pytest.mark.parametrize(
    "make",
    [rows(double), chunked(), rows(double, out_index=lambda i: (31 - i, 0), steps=32)],
    ids=["blocks", "own copies", "reversed"],
)
def test_whole_coverage_is_shown(make):
    assert evidence.covered({"v6e": read(make, spec(256, 128))}).shown == "shown"


def test_a_hole_that_the_checked_sizes_have_too_is_no_fault():
    def half(x):
        return rows(double, steps=x.shape[0] // 16)(x)[: x.shape[0] // 2]

    found = evidence.covered(sizes(half))
    assert not found.fault and "could not be shown" in found.shown


@pytest.mark.parametrize(
    ("order", "share"),
    [(range(8), 1.0), ([0, 1, 2, 3] * 2, 0.5), (None, None)],
    ids=["all", "half", "by data"],
)
def test_blocks_chosen_by_scalar_operands(order, share):
    def f(x):
        if order is None:
            places = jnp.argsort(x[:, 0])[:8].astype(jnp.int32)
        else:
            places = np.array(order, np.int32)
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(8,),
            in_specs=[pl.BlockSpec((8, 128), lambda i, order: (order[i], 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, order: (i, 0)),
        )

        def body(order_ref, x_ref, o_ref):
            double(x_ref, o_ref)

        return pl.pallas_call(body, grid_spec=grid, out_shape=x)(places, x)

    program = read(f, spec(64, 128))
    shares = [cover.share for cover in coverage.covers(program) if not cover.write]
    assert shares == [share]
    found = evidence.covered({"v6e": program})
    assert not found.fault and (found.shown == "shown") == (share == 1)


# ------------------------------------------------------------------------------- conservation


def loop_to(limit):
    """Sums the products of 8 x 128 rows with themselves, at most `limit` of them."""

    def f(x):
        def body(x_ref, o_ref):
            def step(i, total):
                block = x_ref[pl.ds(i * 8, 8)]
                return total + lax.dot_general(block, block, (((0,), (0,)), ((), ())))

            steps = min(x.shape[0] // 8, limit)
            o_ref[...] = lax.fori_loop(0, steps, step, jnp.zeros((128, 128), jnp.float32))

        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((128, 128), jnp.float32))(x)

    return f


def test_a_loop_that_stops_early_at_full_size_is_a_fault():
    def count(preset):
        return {"v6e": 2 * 256 * 128**2, "tiles": 2 * 64 * 128**2}[preset]

    assert evidence.conserved(sizes(loop_to(99)), count).shown == "shown"
    assert "50.0% of the useful work" in evidence.conserved(sizes(loop_to(16)), count).fault


def test_steps_that_do_nothing_at_full_size_are_a_fault():
    def skip(i, j, k):
        return i >= 2

    tpu = {"v6e": products(LARGE, skip=skip)[0], "tiles": products(SMALL, skip=skip)[0]}
    assert "left out" in evidence.conserved(tpu, useful).fault


def test_skipping_what_is_masked_is_honest():
    def above(i, j, k):
        return k > i

    tpu = {"v6e": products(LARGE, skip=above)[0], "tiles": products(SMALL, skip=above)[0]}
    assert tpu["v6e"].work().flops == 2 * 512**3 * 10 / 16
    assert evidence.conserved(tpu, lambda preset: useful(preset) / 2).shown == "shown"


def test_work_that_depends_on_data_is_told():
    def f(x):
        def body(x_ref, o_ref):
            @pl.when(x_ref[0, 0] > 0)
            def _():
                o_ref[...] = x_ref[...] * 2

        return pl.pallas_call(body, out_shape=x)(x)

    found = evidence.conserved(sizes(f), lambda preset: 1)
    assert not found.fault and "depends on data" in found.shown


# ------------------------------------------------------------------------------------- kernel


def normalised(x):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)


def busy(x_ref, o_ref):
    """Far more arithmetic than the normalisation."""
    x = x_ref[...]
    for _ in range(20):
        x = x * x + x
    o_ref[...] = x


def ones(x_ref, o_ref):
    busy(x_ref, o_ref)
    o_ref[...] = o_ref[...] * 0 + 1


@pytest.mark.parametrize(
    ("f", "says"),
    [
        (lambda x: rows(copy)(x @ x), "matrix products outside Pallas"),
        (lambda x: rows(copy)(normalised(x)), "0% of the program's own work"),
        (lambda x: x @ x, "does not depend on any Pallas call"),
        (lambda x: (rows(double)(x), x @ x)[1], "does not depend on any Pallas call"),
    ],
    ids=["copy beside a product", "copy beside a norm", "none", "unused"],
)
def test_work_outside_pallas_is_no_kernel(f, says):
    found = evidence.kernel(read(f, spec(128, 128)))
    assert found.status == "no_kernel" and says in found.fault


@pytest.mark.parametrize(
    "f",
    [
        lambda x: rows(busy)(jnp.pad(x.T, ((0, 8), (0, 0))))[:128] + 1,
        lambda x: rows(double)(matmul(x, x)),
    ],
    ids=["prologue and epilogue", "two calls"],
)
def test_cheap_work_around_a_kernel_is_honest(f):
    assert evidence.kernel(read(f, spec(128, 128))).shown == "shown"


@pytest.mark.parametrize(
    "f",
    [
        lambda x, p: normalised(x) + 0 * p,
        lambda x, p: normalised(x) + (p - p),
        lambda x, p: normalised(x) + 1e-6 * p,
        lambda x, p: jnp.where(x[0, 0] > 1e30, p, normalised(x)),
        lambda x, p: jnp.maximum(normalised(x), jnp.minimum(p, -1e30)),
        lambda x, p: normalised(x) + 1e-9 * jnp.mean(p),
        lambda x, p: normalised(x).at[0, :8].set(p[0, :8]),
        lambda x, p: lax.fori_loop(0, 3, lambda i, y: y + 0 * p, normalised(x)),
    ],
    ids=["zero", "difference", "tiny", "where", "maximum", "scalar", "slice", "loop"],
)
def test_a_decoy_is_no_kernel(f):
    x = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    found = reached(lambda x: f(x, rows(busy)(x)), x, np.asarray(normalised(x)))
    assert found.status == "no_kernel" and "still right" in found.fault


@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.cond(x[0, 0] > 1e30, rows(busy), normalised, x),
        lambda x: normalised(x) * rows(ones)(x),
    ],
    ids=["condition", "factor of one"],
)
def test_a_decoy_in_the_flow_of_the_program_is_no_kernel(f):
    x = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    assert reached(f, x, np.asarray(normalised(x))).status == "no_kernel"


def norm_kernel(x_ref, o_ref):
    o_ref[...] = normalised(x_ref[...])


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (rows(norm_kernel), normalised),
        (lambda x: rows(norm_kernel)(x).at[:32].set(0), lambda x: normalised(x).at[:32].set(0)),
        (lambda x: jax.nn.relu(x + rows(norm_kernel)(x)), lambda x: jax.nn.relu(x + normalised(x))),
    ],
    ids=["kernel", "half of the rows", "residual"],
)
def test_a_kernel_that_does_the_work_reaches_the_output(f, expected):
    x = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    assert reached(f, x, np.asarray(expected(jnp.asarray(x)))).shown == "shown"


def reached(f, x, output):
    return reach.reaches(exported(f, spec(*x.shape)), (x,), output, rel=2e-2)


def test_products_with_fewer_bits_at_full_size_are_a_fault():
    def narrow(a, b):
        return matmul(a.astype(jnp.int8), b.astype(jnp.int8)).astype(jnp.float32)

    tpu, cpu = honest()
    small = {"tiles": tpu["tiles"]}, {"tiles": cpu["tiles"]}
    both = read(lambda a, b: matmul(a, b) + narrow(a, b), *LARGE)
    fault = evidence.one_program({"v6e": both, **small[0]}, small[1]).fault
    assert "50% of the multiplications are of i8" in fault
    checked = products(SMALL)[0]
    wider = evidence.one_program({"v6e": tpu["v6e"], "tiles": checked}, small[1])
    assert not wider.fault


@pytest.mark.parametrize(("name", "fault"), [("megablox_gmm", False), ("gemm", True)])
def test_what_only_values_leave_out_is_judged_by_data(monkeypatch, name, fault):
    by_values, always = {"v6e": "valued"}, {"v6e": "plain"}
    holes = {"valued": evidence.Finding("a hole"), "plain": evidence.Finding()}
    monkeypatch.setattr(evidence, "covered", lambda programs, share: holes[programs["v6e"]])
    found = evidence._coverage(workloads.get(name), always, by_values, 1.0)
    assert bool(found.fault) == fault
    holes["plain"] = evidence.Finding("a hole whatever the values")
    assert evidence._coverage(workloads.get(name), always, by_values, 1.0).fault
