"""Work of a program, counted: matrix products, arithmetic on vectors, special functions."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo


class Product(NamedTuple):
    """One size of matrix products: elements of operands and result, and the wider type."""

    left: int
    right: int
    out: int
    kind: str
    batch: int = 1

    @property
    def with_vector(self) -> bool:
        """Whether an operand is a vector (of a batch of one)."""
        left, right, out = self.left, self.right, self.out
        return left * self.batch == right * out or right * self.batch == left * out

    @property
    def flops(self) -> int:
        """Its operations, multiply and add counted as two."""
        inner = math.isqrt(self.left * self.right // self.out // self.batch)
        return 2 * self.out * inner

    def __str__(self) -> str:
        """Type, rows, contraction and columns, for example ``bf16 8x64x128``."""
        inner = math.isqrt(self.left * self.right // self.out // self.batch)
        rows, columns = (n // max(inner, 1) // self.batch for n in (self.left, self.right))
        batch = f"{self.batch} of " if self.batch > 1 else ""
        return f"{batch}{self.kind} {rows}x{inner}x{columns}"


ARITHMETIC = {
    *(f"arith.{n}f" for n in "add sub mul div neg maximum minimum maxnum minnum".split()),
    *(f"stablehlo.{n}" for n in "add subtract multiply divide negate maximum minimum".split()),
}
SPECIAL_STABLEHLO = {
    f"stablehlo.{n}"
    for n in "exponential exponential_minus_one log log_plus_one logistic tanh rsqrt sqrt cbrt "
    "power sine cosine tan atan2".split()
}
REDUCTIONS = {
    "vector.multi_reduction", "vector.reduction", "tpu.all_reduce", "tpu.reduce_index",
    "tpu.scan", "stablehlo.reduce", "stablehlo.reduce_window",
}  # fmt: skip


def shape(kind) -> tuple[int, ...]:
    """Shape of a shaped type; () for a scalar."""
    return tuple(kind.shape) if isinstance(kind, ir.ShapedType) else ()


def bits(kind) -> int:
    """Bits of a type's elements."""
    element = str(kind.element_type if isinstance(kind, ir.ShapedType) else kind)
    return width(element)


def width(element: str) -> int:
    """Bits of an element type by its name, as ``bf16`` or ``f8E5M2``."""
    digits = re.search(r"\d+", element)
    return int(digits.group()) if digits else 8


def is_float(kind) -> bool:
    """Whether a type's elements are floating-point numbers."""
    element = str(kind.element_type if isinstance(kind, ir.ShapedType) else kind)
    return element.startswith(("f", "bf"))


@dataclass
class Work:
    """Counted work; a count may be fractional where only a share of the steps does something.

    Attributes:
        products: Number of matrix products by their size.
        flops: Operations of all matrix products, multiply and add counted as two.
        arithmetic: Floating-point operations on vectors, reductions included.
        special: Evaluations of special functions (exp, log, tanh, rsqrt and the like).
        known: Whether all loops and conditions that decide these counts could be read. If not,
            loops count once and conditions as true.
    """

    products: Counter[Product] = field(default_factory=Counter)
    flops: float = 0
    arithmetic: float = 0
    special: float = 0
    known: bool = True

    @property
    def total(self) -> float:
        """All operations."""
        return self.flops + self.arithmetic + self.special

    def flops_of(self, least: int) -> float:
        """Operations of the matrix products whose operands have at least so many bits."""
        return sum(
            count * product.flops
            for product, count in self.products.items()
            if width(product.kind) >= least
        )

    def add(self, other: Work, times: float = 1) -> None:
        """Adds `times` times another's counts."""
        for product, count in other.products.items():
            self.products[product] += count * times
        self.flops += times * other.flops
        self.arithmetic += times * other.arithmetic
        self.special += times * other.special
        self.known = self.known and other.known

    def count(self, operation, times: float) -> bool:
        """Counts one operation; False if it is not work."""
        name = operation.name
        if name in ("tpu.matmul", "stablehlo.dot_general", "stablehlo.convolution"):
            product, flops = _product(operation)
            self.products[product] += times
            self.flops += times * flops
        elif name in ARITHMETIC and is_float(operation.results[0].type):
            self.arithmetic += times * math.prod(shape(operation.results[0].type))
        elif name in SPECIAL_STABLEHLO or name.startswith(("math.", "chlo.")):
            if not operation.results or not is_float(operation.results[0].type):
                return False
            if name in ("math.absf", "math.fma", "math.floor", "math.ceil", "math.roundeven"):
                self.arithmetic += times * math.prod(shape(operation.results[0].type))
            else:
                self.special += times * math.prod(shape(operation.results[0].type))
        elif name == "tpu.reciprocal":
            self.arithmetic += times * math.prod(shape(operation.results[0].type))
        elif name in REDUCTIONS and is_float(operation.operands[0].type):
            size = math.prod(shape(operation.operands[0].type))
            if name == "stablehlo.reduce_window":
                window = ir.DenseI64ArrayAttr(operation.attributes["window_dimensions"])
                size = math.prod(window) * math.prod(shape(operation.results[0].type))
            self.arithmetic += times * size
        else:
            return False
        return True


def _product(operation) -> tuple[Product, int]:
    """Size and flops of a matrix product or convolution."""
    left, right = (shape(o.type) for o in list(operation.operands)[:2])
    out = shape(operation.results[0].type)
    # One lowering converts the narrower operand before the product and the other does not.
    wider = max((o.type for o in list(operation.operands)[:2]), key=bits)
    sizes = math.prod(left), math.prod(right), math.prod(out)
    product = Product(*sizes, str(wider.element_type))
    if operation.name == "stablehlo.convolution":
        numbers = str(operation.attributes["dimension_numbers"])
        kernel = numbers.split("x[")[1].split("]")[0].split(",")
        features = right[[k.strip() for k in kernel].index("o")]
        return product, 2 * sizes[2] * sizes[1] // features
    if operation.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
        return product, 2 * sizes[2] * math.prod(
            left[i] for i in numbers.lhs_contracting_dimensions
        )
    batch = out[0] if len(out) == 3 else 1
    # (b m k)(b k n)(b m n) = b^3 (m k n)^2
    return product, 2 * batch * math.isqrt(math.prod(sizes) // batch**3)
