"""What can be read in a traced function without running or lowering it.

XLA's own cost analysis would start the process's accelerator, which an evaluation must not do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Var

# One operation for each element of the result, if that is floating.
_ELEMENTWISE = frozenset(
    "abs acos acosh add add_any asin asinh atan atan2 atanh cbrt ceil clamp cos cosh cumlogsumexp "
    "cummax cummin cumprod cumsum digamma div erf erf_inv erfc exp exp2 expm1 floor integer_pow "
    "lgamma log log1p logistic max min mul neg nextafter pow rem round rsqrt sign sin sinh sqrt "
    "square sub tan tanh".split()
)


def inner(equation: Any) -> list[Any]:
    """The jaxprs inside an equation."""
    found = []
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                found.append(item)
    return found


def walk(jaxpr: Any) -> Iterator[Any]:
    """All equations, also those of inner jaxprs."""
    for equation in jaxpr.eqns:
        yield equation
        for part in inner(equation):
            yield from walk(part)


def depends(jaxpr: Any) -> bool:
    """Whether a result can depend on an argument; an equation's results do if one operand does."""
    reached = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(isinstance(v, Var) and v in reached for v in equation.invars):
            reached.update(equation.outvars)
    return any(isinstance(v, Var) and v in reached for v in jaxpr.outvars)


def flops(jaxpr: Any) -> int:
    """Floating-point operations, multiply and add counted as two.

    Counts matrix products and convolutions, reductions, and one operation per element for
    arithmetic and functions such as exp. Moving data, integers and comparisons count nothing. A
    `lax.scan` counts as often as it runs, the larger branch of a `lax.cond` once, and a
    `lax.while_loop` once, since how often it runs is not known.
    """
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    out = equation.outvars[0].aval if equation.outvars else None
    if name == "dot_general":
        (contracting, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2 * out.size * math.prod(shape[axis] for axis in contracting)
    if name == "conv_general_dilated":
        weights = equation.invars[1].aval
        features = weights.shape[params["dimension_numbers"].rhs_spec[0]]
        inserted = math.prod(params["lhs_dilation"])  # zeros between the inputs cost nothing
        return 2 * out.size * (weights.size // features) // inserted
    if name.startswith("reduce_window"):
        return out.size * math.prod(params["window_dimensions"])
    if name.startswith(("reduce", "arg")):
        return equation.invars[0].aval.size if name != "reduce_precision" else 0
    if name.startswith("scatter"):
        return equation.invars[2].aval.size if name != "scatter" else 0
    parts = [flops(part) for part in inner(equation)]
    if name == "scan":
        return params["length"] * sum(parts)
    if name == "cond":
        return max(parts, default=0)
    if name in _ELEMENTWISE:
        return out.size if jnp.issubdtype(out.dtype, jnp.floating) else 0
    return sum(parts)
