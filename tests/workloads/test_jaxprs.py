import jax
import jax.numpy as jnp
import pytest
from jax import lax

from workloads import jaxprs


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda a, b: a @ b, [(64, 128), (128, 32)]),
        (lambda a: jnp.sum(a * a, axis=-1), [(64, 256)]),
        (
            lambda a, w: lax.conv_general_dilated(a, w, (1, 1), "VALID"),
            [(2, 8, 16, 16), (16, 8, 3, 3)],
        ),
        (lambda a, w: lax.conv_transpose(a, w, (2, 2), "SAME"), [(2, 16, 16, 8), (4, 4, 8, 16)]),
    ],
)
def test_flops_agree_with_those_that_xla_counts(function, shapes):
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    counted = jaxprs.flops(jax.make_jaxpr(function)(*args).jaxpr)
    assert counted == pytest.approx(
        jax.jit(function).lower(*args).cost_analysis()["flops"], rel=0.1
    )


def test_flops_of_loops_count_every_turn():
    def scanned(a):
        return lax.fori_loop(
            0, 10, lambda i, x: lax.cond(x[0, 0] > 0, lambda y: y @ y, jnp.abs, x), a
        )

    closed = jax.make_jaxpr(scanned)(jax.ShapeDtypeStruct((64, 64), jnp.float32))
    assert jaxprs.flops(closed.jaxpr) == pytest.approx(10 * 2 * 64**3, rel=0.01)


def test_what_depends_on_its_arguments():
    spec = jax.ShapeDtypeStruct((8,), jnp.float32)
    for function, found in ((jnp.sin, True), (jnp.zeros_like, False), (lambda x: x.size, False)):
        assert jaxprs.depends(jax.make_jaxpr(function)(spec).jaxpr) == found
