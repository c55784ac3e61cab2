"""Plain Pallas interpret mode, mended: the same numbers, in a time that does not grow with arrays.

jax's interpreter runs the grid in a loop that carries all arrays. XLA's CPU compiler copies them
in every step, for two reasons: it widens the update of a bfloat16 array to float32, the whole
array, and what was read of an input is written back to it. Here 16-bit floats are carried as
integers of the same bits, and inputs that a kernel does not change are left alone. At 128 steps
over 0.5 GB that is 1.2 s of CPU time instead of 40.

All of this is private to jax: each change is made only where what it changes looks as expected,
and jax as it is does the work where it does not.
"""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.pallas import hlo_interpreter, primitives
from jax._src.state import discharge, indexing
from jax._src.state import types as state

_BITS = {1: jnp.uint8, 2: jnp.uint16}


def _narrow(x) -> bool:
    dtype = getattr(x, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize in _BITS


def _bits(x):
    """A narrow float's bits as integers; anything else as it is."""
    return lax.bitcast_convert_type(x, _BITS[x.dtype.itemsize]) if _narrow(x) else x


def _carry_bits(while_loop):
    """`lax.while_loop` that carries narrow floats as integers."""

    def loop(cond, body, init):
        leaves, tree = jax.tree.flatten(init)
        dtypes = [x.dtype if _narrow(x) else None for x in leaves]

        def encode(carry):
            return [_bits(x) for x in jax.tree.leaves(carry)]

        def decode(carry):
            pairs = zip(carry, dtypes, strict=True)
            values = [lax.bitcast_convert_type(x, d) if d is not None else x for x, d in pairs]
            return jax.tree.unflatten(tree, values)

        return decode(
            while_loop(lambda c: cond(decode(c)), lambda c: encode(body(decode(c))), encode(init))
        )

    return loop


def _keep_blocks(dynamic_slice, dynamic_update_slice):
    """Both functions, for narrow floats by their bits, and without writing back what was read."""
    read: dict[int, tuple] = {}  # id of a block -> the block, lest the id be reused, and its array

    def slice_(start, shape, array, squeeze):
        block = dynamic_slice(start, shape, _bits(array), squeeze)
        if _narrow(array):
            block = lax.bitcast_convert_type(block, array.dtype)
        read[id(block)] = block, array
        return block

    def update(start, shape, array, block, squeeze):
        # An array's block lies at the same place for reading and writing in a step.
        if read.pop(id(block), (None, None))[1] is array:
            return array
        new = dynamic_update_slice(start, shape, _bits(array), _bits(block), squeeze)
        return lax.bitcast_convert_type(new, array.dtype) if _narrow(array) else new

    return slice_, update


def _index_arrays(rule):
    """A discharge rule that gets Python numbers as arrays: jax's own asks them for a shape."""

    def wrapped(in_avals, out_avals, *args, **params):
        arrays = [jnp.asarray(a) if isinstance(a, int) else a for a in args]
        return rule(in_avals, out_avals, *arrays, **params)

    return wrapped


def _store_through_views(swap):
    """`discharge.transform_swap_array` for reshaped and bitcast refs too, as the chip has it."""

    def wrapped(x, transforms, val):
        if all(isinstance(t, indexing.NDIndexer) for t in transforms or ()):
            return swap(x, transforms, val)
        held = [x]
        for transform in transforms:
            held.append(discharge.transform_array(held[-1], (transform,)))
        for before, transform in zip(reversed(held[:-1]), reversed(transforms), strict=True):
            if isinstance(transform, state.BitcastTransform):
                val = discharge.bitcast(val, before.dtype)
            elif isinstance(transform, state.ReshapeTransform):
                val = val.reshape(before.shape)
            else:
                _, val = swap(before, (transform,), val)
        return held[-1], val

    return wrapped


def mend() -> None:
    """Changes jax's interpreter in this process."""
    if all(hasattr(discharge, name) for name in ("transform_swap_array", "bitcast")):
        discharge.transform_swap_array = _store_through_views(discharge.transform_swap_array)
    module = hlo_interpreter
    names = ("_dynamic_slice", "_dynamic_update_slice", "loops")
    if all(hasattr(module, name) for name in names):
        module._dynamic_slice, module._dynamic_update_slice = _keep_blocks(
            module._dynamic_slice, module._dynamic_update_slice
        )
        loops = dict(vars(module.loops))
        module.loops = types.SimpleNamespace(
            **{**loops, "while_loop": _carry_bits(loops["while_loop"])}
        )
    rules = getattr(discharge, "_discharge_rules", {})
    for primitive in (primitives.load_p, primitives.swap_p):
        if primitive in rules:
            rules[primitive] = _index_arrays(rules[primitive])
