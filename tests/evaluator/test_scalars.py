"""Index maps are evaluated as jax evaluates them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evidence_programs import double, read, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl

GRID = (5, 7)
CONSTANTS = st.integers(-9, 9)


def expressions():
    """Functions of the two grid indices."""
    leaves = st.one_of(
        st.just(("i", lambda i, j: i)),
        st.just(("j", lambda i, j: j)),
        CONSTANTS.map(lambda c: (str(c), lambda i, j: jnp.int32(c))),
    )

    def deeper(inner):
        pairs = st.tuples(inner, inner)
        divisors = st.integers(1, 9) | st.integers(-9, -1)
        return st.one_of(
            pairs.map(lambda p: _join("+", p, lambda a, b: a + b)),
            pairs.map(lambda p: _join("-", p, lambda a, b: a - b)),
            pairs.map(lambda p: _join("*", p, lambda a, b: a * b)),
            pairs.map(lambda p: _join("min", p, jnp.minimum)),
            pairs.map(lambda p: _join("max", p, jnp.maximum)),
            pairs.map(lambda p: _join("where", p, lambda a, b: jnp.where(a < b, a, b + 1))),
            pairs.map(lambda p: _join("cond", p, _cond)),
            st.tuples(inner, divisors).map(lambda p: _with("//", p, lambda a, c: a // c)),
            st.tuples(inner, divisors).map(lambda p: _with("%", p, lambda a, c: a % c)),
            st.tuples(inner, divisors).map(lambda p: _with("div", p, jax.lax.div)),
            st.tuples(inner, divisors).map(lambda p: _with("rem", p, jax.lax.rem)),
            st.tuples(inner, st.integers(0, 4)).map(lambda p: _with(">>", p, lambda a, c: a >> c)),
        )

    return st.recursive(leaves, deeper, max_leaves=6)


def _cond(a, b):
    return jax.lax.cond(a >= b, lambda: a - 1, lambda: b * 2)


def _join(name, pair, function):
    (left, f), (right, g) = pair
    return f"({left} {name} {right})", lambda i, j: function(f(i, j), g(i, j))


def _with(name, pair, function):
    (left, f), constant = pair
    return f"({left} {name} {constant})", lambda i, j: function(f(i, j), jnp.int32(constant))


@settings(max_examples=6, deadline=None)
@given(st.lists(expressions(), min_size=5, max_size=5))
def test_an_index_map_has_the_values_that_jax_gives_it(drawn):
    functions = [function for _, function in drawn]

    def sum_all(*refs):
        refs[-1][...] = sum(ref[...] for ref in refs[:-1])

    def f(*arrays):
        return pl.pallas_call(
            sum_all,
            grid=GRID,
            in_specs=[
                pl.BlockSpec((8, 128), lambda i, j, own=own: (own(i, j), 0)) for own in functions
            ],
            out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, j)),
            out_shape=spec(40, 896),
        )(*arrays)

    (call,) = read(f, *[spec(40, 896)] * len(functions)).calls
    i, j = (jnp.asarray(index, jnp.int32).ravel() for index in np.indices(GRID))
    for place, function in enumerate(functions):
        (access,) = (a for a in call.kernel.accesses if a.argument == place)
        found = access.starts[0]
        found = found.reshape(found.shape + (1,) * (len(GRID) - found.ndim))
        expected = 8 * np.asarray(jax.vmap(function)(i, j)).reshape(GRID).astype(np.int64)
        np.testing.assert_array_equal(np.broadcast_to(found, GRID), expected)


@pytest.mark.parametrize("steps", [(1000, 3000), (2_000_000,)])
def test_a_grid_of_millions_of_steps_is_read_at_once(steps):
    def f(x):
        return pl.pallas_call(
            double,
            grid=steps,
            in_specs=[pl.BlockSpec((8, 128), lambda *at: (at[0] % 8, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda *at: (at[-1] % 8, 0)),
            out_shape=x,
        )(x)

    (call,) = read(f, spec(64, 128)).calls
    sizes = [access.starts[0].size for access in call.kernel.accesses]
    assert max(sizes) <= max(steps)
