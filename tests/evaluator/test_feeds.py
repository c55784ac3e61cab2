"""Values of scalar operands: from the program, on secret inputs, to the places in the dump."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import workloads
from jaxbench_env import Evaluator
from jaxbench_env.evaluator import build, timing, tracing
from jaxbench_env.evaluator.baseline import LIMITS
from jaxbench_env.evaluator.judge import feeds
from jaxbench_env.evaluator.timing import Kernel, hlo
from jaxbench_env.evaluator.timing.feeds import pack

LIBRARY = Path(__file__).parents[2] / "baselines" / "library_kernels"
PAGED_SUM = Path(__file__).parents[1] / "fixtures" / "workloads" / "paged_sum.py"
N = 16


def kernel(table, x, steps=None):
    """A kernel whose scalar operand is `table`, and the bound of its grid `steps`."""

    def body(t_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...] * t_ref[0].astype(x_ref.dtype)

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(1 if steps is None else steps,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, t: (0, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, t: (0, 0)),
    )
    out = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return pl.pallas_call(body, grid_spec=grid, out_shape=out)(table, x)


class Inputs(SimpleNamespace):
    """Stands for a workload with the arguments x (large), n and k (integers)."""

    arrays: dict

    def __init__(self):
        arrays = {
            "x": np.full((8, 128), 2, np.float32),
            "n": np.arange(N, dtype=np.int32)[::-1].copy(),
            "k": np.int32([3]),
        }
        specs = {name: workloads.ArraySpec(a.shape, str(a.dtype)) for name, a in arrays.items()}
        super().__init__(presets={"v6e": SimpleNamespace(args=specs)}, arrays=arrays, drawn=[])

    def steering_inputs(self, preset, names, draw, seed):
        self.drawn += names
        return tuple(self.arrays[name] for name in names)


def found(function, inputs=None):
    """The kernels of function(x, n, k) with their values."""
    inputs = inputs or Inputs()
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inputs.arrays.values()]
    unchecked = [export.DisabledSafetyCheck.custom_call("evil")]
    traced = export.export(jax.jit(function), platforms=["tpu"], disabled_checks=unchecked)
    exported = traced(*specs)
    kept = exported.module_kept_var_idx
    return feeds.kernels(exported.mlir_module_serialized, inputs, 0, kept=kept)


# ------------------------------------------------------------------------------- computing values


def test_only_the_inputs_that_the_operands_depend_on_are_drawn():
    inputs = Inputs()
    (one,) = found(lambda x, n, k: kernel(n[:4] * 2 + k, x * x + n[5].astype(x.dtype)), inputs)
    assert inputs.drawn == ["n", "k"]
    np.testing.assert_array_equal(one.values[0], inputs.arrays["n"][:4] * 2 + 3)


def test_a_dynamic_grid_bound_is_an_operand():
    (one,) = found(lambda x, n, k: kernel(n, x, steps=jnp.sum(n) // 8))
    assert one.values[0] == N * (N - 1) // 16 and one.values[1].shape == (N,)


STEPS = {
    "add": lambda a, n, k: a + k,
    "sort": lambda a, n, k: jnp.sort(a),
    "sum": lambda a, n, k: jnp.cumsum(a),
    "max": lambda a, n, k: jnp.maximum(a, n),
    "take": lambda a, n, k: a[n],
    "where": lambda a, n, k: jnp.where(a > k, a, n),
    "jit": lambda a, n, k: jax.jit(lambda b: b * 3 - n)(a),
    "loop": lambda a, n, k: jax.lax.fori_loop(0, 3, lambda i, b: b + n[i] + k, a),
    "scan": lambda a, n, k: jax.lax.scan(lambda c, b: (c + b, c * k[0]), jnp.int32(0), a)[1],
    "cond": lambda a, n, k: jax.lax.cond(k[0] > 2, lambda b: b + n, lambda b: b - n, a),
    "search": lambda a, n, k: jnp.searchsorted(jnp.sort(n), a).astype(jnp.int32),
    "set": lambda a, n, k: a.at[n[:2]].set(k),
    "top": lambda a, n, k: jax.lax.top_k(a.astype(jnp.float32), N)[1],
}


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4))
def test_a_sliced_program_computes_what_the_whole_one_does(names):
    def table(n, k):
        a = n
        for name in names:
            a = STEPS[name](a, n, k)
        return a

    inputs = Inputs()
    (one,) = found(lambda x, n, k: kernel(table(n, k), x), inputs)
    assert not one.missing
    np.testing.assert_array_equal(
        one.values[0], table(*(jnp.asarray(inputs.arrays[i]) for i in "nk"))
    )


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_step_can_be_sliced(name):
    inputs = Inputs()
    (one,) = found(lambda x, n, k: kernel(STEPS[name](n, n, k), x), inputs)
    want = STEPS[name](*(jnp.asarray(inputs.arrays[i]) for i in "nnk"))
    np.testing.assert_array_equal(one.values[0], want)


def doubled(times):
    """A program of few lines that runs for 2 ** times steps."""

    def again(inner):
        return jax.jit(lambda a: inner(inner(a)))

    return functools.reduce(lambda step, _: again(step), range(times), jax.jit(lambda a: a + 1))


def callback(n):
    return jax.ffi.ffi_call("evil", jax.ShapeDtypeStruct(n.shape, n.dtype))(n)


REFUSED = {
    "Pallas": lambda x, n, k: kernel(kernel(n, x)[0, :4].astype(jnp.int32), x),
    "loop": lambda x, n, k: jax.lax.fori_loop(0, 5, lambda i, y: kernel(n + i, y), x),
    "branch": lambda x, n, k: jax.lax.cond(k[0] > 2, lambda y: kernel(n, y), lambda y: y, x),
    "length": lambda x, n, k: kernel(jax.lax.fori_loop(0, k[0], lambda i, a: a + 1, n), x),
    "too long": lambda x, n, k: kernel(jax.lax.fori_loop(0, 1 << 30, lambda i, a: a + n, n), x),
    "long": lambda x, n, k: kernel(doubled(14)(n), x),
    "matrix": lambda x, n, k: kernel(
        jnp.sum(
            jnp.broadcast_to(n.astype(jnp.float32), (99999, N)) @ jnp.ones((N, 9999)), 1
        ).astype(jnp.int32)[:N],
        x,
    ),
    "custom_call": lambda x, n, k: kernel(callback(n), x),
}


@pytest.mark.parametrize("why", sorted(REFUSED))
def test_what_cannot_be_computed_beforehand_has_a_reason(why):
    if why == "long":  # such a program is not even looked at
        with pytest.raises(feeds.NoValues, match="long"):
            found(REFUSED[why])
        return
    kernels = found(REFUSED[why])
    reasons = [reason for one in kernels for reason in one.missing.values()]
    assert len(reasons) == 1
    assert {"matrix": "too long", "length": "length"}.get(why, why) in reasons[0]


def test_inputs_that_cannot_be_drawn_alone_give_no_values():
    gemm = workloads.get("flex_attention")
    with pytest.raises(ValueError, match="without the other"):
        gemm.steering_inputs("v6e", ["q"], "nominal", 0)


STEERED = [w.id for w in workloads.every() if w.generate_steering is not None]


@pytest.mark.parametrize("name", STEERED)
@pytest.mark.parametrize("draw", workloads.DRAWS)
def test_steering_inputs_are_distributed_as_all_inputs(name, draw):
    workload = workloads.get(name)
    rng = np.random.default_rng(0)
    chosen = list(workload.generate_steering(rng, workload.presets["varied"], draw))
    alone = workload.steering_inputs("varied", chosen, draw, 3)
    whole = dict(
        zip(workload.presets["varied"].args, workload.inputs("varied", draw, 4), strict=True)
    )
    again = workload.steering_inputs("varied", chosen, draw, 3)
    for key, one, same in zip(chosen, alone, again, strict=True):
        other = whole[key]
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_array_equal(one, same)
        if key in ("page_indices", "num_seqs"):  # whole permutations; nothing random
            np.testing.assert_array_equal(np.sort(one, axis=None), np.sort(other, axis=None))
        elif one.dtype.kind == "i":
            assert one.sum() == pytest.approx(other.sum(), rel=0.5)
        else:
            wide = one.astype(np.float32), other.astype(np.float32)
            assert wide[0].std() == pytest.approx(wide[1].std(), rel=0.2)


def test_integers_of_the_largest_workloads_are_drawn_without_their_gigabytes():
    for name, argument in (("megablox_gmm", "group_sizes"), ("paged_attention", "page_indices")):
        workload = workloads.get(name)
        assert workload.presets["v6e"].nbytes > 1 << 30
        (array,) = workload.steering_inputs("v6e", [argument], "nominal", 1)
        assert array.nbytes < 1 << 20


# ---------------------------------------------------------------------------------------- layouts


def laid_out(values, rows, columns, bits):
    """Words of a matrix in tiles of rows x columns, rows of one column sharing words."""
    each = 32 // bits
    words = []
    for top in range(0, values.shape[0], rows):
        for left in range(0, values.shape[1], columns):
            for row in range(top, top + rows, each):
                for column in range(left, left + columns):
                    word = 0
                    for byte in range(each):
                        if row + byte >= values.shape[0] or column >= values.shape[1]:
                            word = None
                            break
                        word |= (int(values[row + byte, column]) & (1 << bits) - 1) << bits * byte
                    words.append(word)
    return words


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 300),
    st.sampled_from([("s32", "T(8,128)", 8, 32), ("s8", "T(8,128)(4,1)", 8, 8)]),
    st.integers(0, 99),
)
def test_matrices_lie_in_tiles(rows, columns, layout, seed):
    kind, tiles, tall, bits = layout
    values = np.random.default_rng(seed).integers(-(1 << 7), 1 << 7, (rows, columns))
    if values.size > 1:
        words = pack(values, f"{kind}[{rows},{columns}]{{1,0:{tiles}S(1)}}")
        assert words == laid_out(values, tall, 128, bits)


def test_small_bytes_share_words_in_fours():
    values = np.arange(16, dtype=np.int8).reshape(1, 4, 4)
    words = pack(values, "s8[1,4,4]{2,1,0:T(4,128)(4,1)S(1)}")
    assert len(words) == 128 and words[4:] == [None] * 124
    assert words[:2] == [0 | 4 << 8 | 8 << 16 | 12 << 24, 1 | 5 << 8 | 9 << 16 | 13 << 24]


@pytest.mark.parametrize("shape", ["s32[]", "s32[1]{0:T(128)}"])
def test_a_single_number_is_a_word(shape):
    assert pack(np.int32([7]).reshape(() if shape == "s32[]" else 1), shape) == [7]


@pytest.mark.parametrize(
    "shape", ["s32[3]{0}", "s32[4]{1}", "f32[4]{0}", "s32[4]{0:T(0)}", "s32[4]{0:T(2,2)}", "x", ""]
)
def test_other_shapes_and_layouts_have_no_words(shape):
    assert pack(np.arange(4), shape) is None


# --------------------------------------------------------------------------------------- matching


def module(*calls):
    """An HLO module that calls kernels: (name, body)."""
    lines = [
        f'  %{name} = f32[8]{{0}} custom-call(%n), custom_call_target="tpu_custom_call", '
        f'metadata={{op_name="f"}}, backend_config={{"custom_call_config":{{"body":"{body}"}}}}'
        for name, body in calls
    ]
    text = "\n".join(["ENTRY %main (n: s32[2]) -> f32[8] {", "  %n = s32[2]{0} parameter(0)"])
    return hlo.Module(text + "\n" + "\n".join(lines) + "\n}\n")


def a_kernel(body, *values, after=()):
    return Kernel(hlo.kernel_hash(body), {0: np.int32(values)}, {}, frozenset(after))


def test_kernels_are_found_by_their_code():
    values, notes = timing.match(
        [a_kernel("AA", 1, 2), a_kernel("BB", 3, 4)], module(("b", "BB"), ("a", "AA"))
    )
    assert values == {("a", 0): [1, 2], ("b", 0): [3, 4]} and not notes


def test_calls_of_one_kernel_with_equal_values_all_get_them():
    twice = [a_kernel("AA", 1, 2), a_kernel("AA", 1, 2)]
    for names in (["a"], ["a", "b"], ["a", "b", "c"]):  # merged, as they were, copied
        values, _ = timing.match(twice, module(*((name, "AA") for name in names)))
        assert values == {(name, 0): [1, 2] for name in names}


def test_calls_of_one_kernel_that_cannot_be_told_apart_get_nothing():
    values, notes = timing.match(
        [a_kernel("AA", 1, 2), a_kernel("AA", 3, 4)], module(("a", "AA"), ("b", "AA"))
    )
    assert values == {} and "which is which" in notes[0]


def test_calls_that_depend_on_each_other_are_told_apart_by_their_order():
    chain = [a_kernel("AA", 1, 2), a_kernel("AA", 3, 4, after={0})]
    values, notes = timing.match(chain, module(("z", "AA"), ("a", "AA")))
    assert values == {("z", 0): [1, 2], ("a", 0): [3, 4]} and not notes
    assert timing.match(chain, module(("z", "AA")))[0] == {}


def test_dependencies_between_calls_are_seen():
    first, second = found(lambda x, n, k: kernel(n + 1, kernel(n, x)))
    assert first.after == frozenset() and second.after == {0}
    left, right = found(lambda x, n, k: kernel(n + 1, x) + kernel(n, x))
    assert not left.after and not right.after


def test_kernels_survive_the_way_to_another_process():
    kernels = [*found(lambda x, n, k: kernel(n, x, steps=k[0])), *found(REFUSED["Pallas"])]
    records, blobs = timing.to_blobs(kernels)
    back = timing.from_blobs(json.loads(json.dumps(records)), blobs)
    for one, other in zip(kernels, back, strict=True):
        assert (one.body, one.missing, one.after) == (other.body, other.missing, other.after)
        for index, values in one.values.items():
            np.testing.assert_array_equal(values, other.values[index])


# ------------------------------------------------------------------------------------- end to end

TEXT = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def workload(pages, table):
    def kernel(table, pages, out, page, arrived):
        row = pl.program_id(0)
        out[...] = jnp.zeros_like(out)

        def add(place, _):
            copy = pltpu.make_async_copy(pages.at[table[row, place]], page, arrived)
            copy.start()
            copy.wait()
            out[...] += page[...][None]

        jax.lax.fori_loop(0, table[row, table.shape[1] - 1], add, None)

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(table.shape[0],),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((1, 8, 128), lambda i, t: (i, 0, 0)),
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct((table.shape[0], 8, 128), pages.dtype),
    )(table, pages)
"""


def test_a_kernel_that_counts_by_a_table_is_timed_by_its_real_counts():
    workload = workloads.load(PAGED_SUM)
    result = Evaluator().evaluate(workload, TEXT, seed=5)
    assert result.correct and "uncertain" not in result.flags, result.message
    # 24 sequences of 1 to 199 pages, one copy each, besides the outputs and the table
    copies = result.counters["dma_count"] - 25
    assert 24 * 60 < copies < 24 * 140
    other = Evaluator().evaluate(workload, TEXT, seed=6)
    assert other.counters["dma_count"] != result.counters["dma_count"]
    assert "table" not in json.dumps(result.to_dict()).replace("pages, table", "")


PUBLISHED = {  # inputs of the published times, and the time of the kernel (or of all) in them
    "paged_attention": (
        {
            "kv_lens": np.full(64, 4096, np.int32),
            "page_indices": np.arange(64 * 256, dtype=np.int32).reshape(64, 256),
            "cu_q_lens": np.arange(65, dtype=np.int32),
        },
        "paged_attention.1",
        3.02,
    ),
    "ragged_paged_attention": (
        {
            "kv_lens": np.full(64, 4096, np.int32),
            "page_indices": np.arange(64 * 256, dtype=np.int32).reshape(64, 256),
            "cu_q_lens": 64 * np.arange(65, dtype=np.int32),
            "num_seqs": np.int32([64]),
        },
        None,
        2.459,
    ),
    "megablox_gmm": ({"group_sizes": np.full(128, 256, np.int32)}, "gmm.1", 1.974),
    "gqa_attention": ({}, None, 14.854),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_library_kernels_take_their_known_time_on_published_inputs(name):
    inputs, program, known = PUBLISHED[name]
    workload, text = workloads.get(name), (LIBRARY / f"{name}.py").read_text()
    with tracing.start(workload, text, build.DEVICE_KINDS["v6e"], tracing.LIMITS) as job:
        artefacts = tracing.Trace(workload, text, job).artefacts()
        artefact = next(blob for _, platform, blob in artefacts if platform == "tpu")
    exported = export.deserialize(bytearray(artefact))
    kernels = feeds.kernels(
        exported.mlir_module_serialized,
        workload,
        0,
        kept=exported.module_kept_var_idx,
        given=inputs,
    )
    assert all(one.values and not one.missing for one in kernels)
    built = build.build(artefact, limits=LIMITS, scalars=build.Scalars(*timing.to_blobs(kernels)))
    ms = built.prediction["ms"]
    if program:
        (row,) = (row for row in built.prediction["programs"] if row["name"] == program)
        ms = row["cycles"] / timing.Constants.load().clock_hz * 1e3
    assert ms == pytest.approx(known, rel=0.1)
