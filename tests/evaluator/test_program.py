import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evidence_programs import exported, read, spec
from jax import export
from jax.experimental import pallas as pl

from jaxbench_env.evaluator.judge import artefact


def double(x, name=None):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    return pl.pallas_call(kernel, out_shape=x, name=name)(x)


def matmul(a, b, block=128, loops=1):
    def kernel(a_ref, b_ref, o_ref):
        def body(_, total):
            return total + jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        o_ref[...] = jax.lax.fori_loop(0, loops, body, jnp.zeros_like(o_ref))

    m, k = a.shape
    n = b.shape[1]
    return pl.pallas_call(
        kernel,
        grid=(m // block, n // block),
        in_specs=[
            pl.BlockSpec((block, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, block), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
    )(a, b)


@pytest.mark.parametrize("loops", [1, 5])
def test_products_inside_pallas_are_counted_over_grid_and_loops(loops):
    facts = read(lambda a, b: matmul(a, b, loops=loops), spec(256, 384), spec(384, 512))
    (call,) = facts.calls
    assert call.grid == (2, 4)
    assert facts.matmul_flops == 2 * 256 * 384 * 512 * loops
    assert call.kernel.vmem_bytes == 4 * (128 * 384 * 2 + 128 * 128)
    assert facts.outside_flops == 0


def test_products_outside_pallas_are_counted():
    def f(x, w, k):
        y = jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")
        return double(jax.jit(lambda a: a @ w)(y.reshape(-1, 64)))

    facts = read(f, spec(1, 64, 16, 16), spec(64, 128), spec(64, 64, 3, 3))
    assert facts.outside_flops == 2 * 64 * 16 * 16 * 64 * 9 + 2 * 256 * 64 * 128
    assert len(facts.calls) == 1


def test_a_dropped_call_does_not_count():
    facts = read(lambda x: (double(x), x + 1)[1], spec(8, 128))
    assert facts.calls == ()


def test_a_call_inside_a_nested_function_counts():
    facts = read(
        lambda x: jax.jit(lambda y: jax.lax.cond(y[0, 0] > 0, double, double, y))(x), spec(8, 128)
    )
    assert len(facts.calls) == 2


def test_large_constants_are_seen_and_splats_are_not():
    table = np.arange(300 * 300, dtype=np.float32).reshape(300, 300)
    facts = read(lambda x: x + table + jnp.ones((300, 300)), spec(300, 300))
    assert facts.constant_bytes == 300 * 300 * 4


def contract(*shapes, out):
    return artefact.Contract(tuple((s, "float32") for s in shapes), (out, "float32"))


def test_an_artefact_that_keeps_its_contract_is_loaded():
    blob = exported(double, spec(8, 128)).serialize()
    loaded, facts = artefact.load(bytes(blob), "tpu", contract((8, 128), out=(8, 128)))
    assert len(facts.calls) == 1 and loaded.platforms == ("tpu",)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (jax.jit(double, donate_argnums=0), "tf.aliasing_output"),
        (jax.jit(functools.partial(double, name="TLP")), "'TLP'"),
    ],
    ids=["donation", "name"],
)
def test_a_program_that_names_or_places_things_its_own_way_is_refused(function, says):
    blob = export.export(function, platforms=["tpu"])(spec(8, 128)).serialize()
    with pytest.raises(artefact.ArtefactError, match=says) as caught:
        artefact.load(bytes(blob), "tpu", contract((8, 128), out=(8, 128)))
    assert caught.value.status == "hack_suspected"


def callback(x):
    return jax.pure_callback(lambda v: v, x, x)


@pytest.mark.parametrize(
    ("blob", "status"),
    [
        (b"", "hack_suspected"),
        (b"\x80\x04 not a program" * 100, "hack_suspected"),
        (b"\0" * (33 << 20), "hack_suspected"),
        (exported(double, spec(8, 128), platform="tpu").serialize(), "hack_suspected"),
        (exported(lambda x: x, spec(16, 128), platform="cpu").serialize(), "hack_suspected"),
        (exported(lambda x: (x, x), spec(8, 128), platform="cpu").serialize(), "hack_suspected"),
        (exported(lambda x: x.astype(jnp.int32), spec(8, 128), platform="cpu").serialize(),
         "hack_suspected"),
        (exported(lambda x: jnp.linalg.cholesky(x[:8, :8]) @ x, spec(8, 128), platform="cpu")
         .serialize(), "unsupported"),
    ],
    ids=["empty", "garbage", "huge", "platform", "inputs", "tree", "dtype", "library call"],
)  # fmt: skip
def test_an_artefact_that_breaks_its_contract_is_refused(blob, status):
    with pytest.raises(artefact.ArtefactError) as caught:
        artefact.load(bytes(blob), "cpu", contract((8, 128), out=(8, 128)))
    assert caught.value.status == status
