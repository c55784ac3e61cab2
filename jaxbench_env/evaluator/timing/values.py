"""Values that scalar registers can hold during a replay, besides plain numbers and booleans.

`UNKNOWN` stands for anything the replay cannot know (vector results, HBM contents, host words).

`Affine` carries a number together with its change per repetition of a loop period. Replaying one
period with affine values proves for how many further periods every comparison, shift and mask
comes out the same way, so that those periods can be skipped without running them (`steady.py`).
Both work through Python's operators, so the generated code does not know about them.
"""

from __future__ import annotations

from collections.abc import Callable

WORD = 0xFFFFFFFF
HALF = 0x80000000


class NotAffine(Exception):
    """A loop period did something whose repetition cannot be proved to be the same."""


class Unknown:
    """A scalar that cannot be known; operations on it are unknown, unless it does not matter."""

    __slots__ = ()

    def _unknown(self, *_: object) -> Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __xor__ = __rxor__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _unknown  # type: ignore[assignment]
    __hash__ = object.__hash__

    def _and(self, other: object) -> object:
        return False if other is False else self

    def _or(self, other: object) -> object:
        return True if other is True else self

    def _truth(self) -> bool:
        # generated code only ever asks "is True" and "is False"
        raise TypeError("an unknown value has no truth")

    __and__ = __rand__ = _and
    __or__ = __ror__ = _or
    __bool__ = _truth


UNKNOWN = Unknown()


class Horizon:
    """The number of further repetitions for which everything seen so far stays the same."""

    UNBOUNDED = 1 << 62

    def __init__(self) -> None:
        """Starts with no limit."""
        self.repetitions = self.UNBOUNDED

    def until(self, value: int, step: int, low: int, high: int) -> None:
        """Requires low <= value + n * step <= high of every repetition n."""
        if step > 0:
            limit = (high - value) // step
        else:
            limit = (value - low) // -step
        self.repetitions = min(self.repetitions, limit)


def _order_test(holds: Callable[[int], bool]) -> Callable[[Affine, object], object]:
    """A comparison operator of `Affine` from the order of the two sides."""

    def compare(self: Affine, other: object) -> object:
        order = self._compare(other)
        return order if order is UNKNOWN else holds(order)

    return compare


class Affine:
    """`value + n * step` in repetition n; `step` is never 0."""

    __slots__ = ("value", "step", "horizon")

    def __init__(self, value: int, step: int, horizon: Horizon) -> None:
        """Makes a value with a step that is not 0."""
        self.value, self.step, self.horizon = value, step, horizon

    def _make(self, value: int, step: int) -> Affine | int:
        return Affine(value, step, self.horizon) if step else value

    def _add(self, other: object) -> object:
        if isinstance(other, Affine):
            return self._make(self.value + other.value, self.step + other.step)
        return self._make(self.value + other, self.step) if type(other) is int else _give_up(other)

    def _subtract(self, other: object) -> object:
        if isinstance(other, Affine):
            return self._make(self.value - other.value, self.step - other.step)
        return self._make(self.value - other, self.step) if type(other) is int else _give_up(other)

    def _subtract_from(self, other: object) -> object:
        return self._make(other - self.value, -self.step) if type(other) is int else _give_up(other)

    def _multiply(self, other: object) -> object:
        if type(other) is int:
            return self._make(self.value * other, self.step * other)
        return _give_up(other)

    def _shift_left(self, other: object) -> object:
        if type(other) is int and 0 <= other < 64:
            return self._make(self.value << other, self.step << other)
        return _give_up(other)

    def _shift_right(self, other: object) -> object:
        if type(other) is not int or not 0 <= other < 64:
            return _give_up(other)
        if self.step & ((1 << other) - 1) == 0:
            return self._make(self.value >> other, self.step >> other)
        quotient = self.value >> other
        low = quotient << other
        self.horizon.until(self.value, self.step, low, low + (1 << other) - 1)
        return quotient

    def _mask(self, other: object) -> object:
        if type(other) is not int or other < 0 or other & (other + 1):
            return _give_up(other)  # only masks of low bits keep a sum a sum
        step = self.step & other
        if step == 0:
            return self.value & other
        if step > other >> 1:
            step -= other + 1
        low = self.value & other
        self.horizon.until(low, step, 0, other)
        return self._make(low, step)

    def _compare(self, other: object) -> int | Unknown:
        """-1, 0 or 1 for the order of `self` and `other`, the same in all repetitions allowed."""
        if isinstance(other, Affine):
            value, step = self.value - other.value, self.step - other.step
        elif type(other) is int:
            value, step = self.value - other, self.step
        else:
            return _give_up(other)
        far = 1 << 200
        if value < 0:
            if step > 0:
                self.horizon.until(value, step, -far, -1)
            return -1
        if value > 0:
            if step < 0:
                self.horizon.until(value, step, 1, far)
            return 1
        if step:
            self.horizon.repetitions = 0
        return 0

    __add__ = __radd__ = _add
    __sub__, __rsub__ = _subtract, _subtract_from
    __mul__ = __rmul__ = _multiply
    __lshift__, __rshift__ = _shift_left, _shift_right
    __and__ = __rand__ = _mask
    __lt__ = _order_test(lambda order: order < 0)
    __le__ = _order_test(lambda order: order <= 0)
    __gt__ = _order_test(lambda order: order > 0)
    __ge__ = _order_test(lambda order: order >= 0)
    __eq__ = _order_test(lambda order: order == 0)  # type: ignore[assignment]
    __ne__ = _order_test(lambda order: order != 0)  # type: ignore[assignment]

    def _refuse(self, *_: object) -> object:
        raise NotAffine

    # used as a memory address, a flag number or a truth value, or combined bit by bit
    __hash__ = __bool__ = __index__ = _refuse  # type: ignore[assignment]
    __or__ = __ror__ = __xor__ = __rxor__ = __rlshift__ = __rrshift__ = _refuse

    def divide(self, divisor: int, remainder: bool) -> object:
        """Unsigned division by a positive constant."""
        if self.value < 0 or divisor <= 0:
            raise NotAffine  # the unsigned view of it is not a sum any more
        self.horizon.until(self.value, self.step, 0, HALF - 1)
        if self.step % divisor == 0:
            if remainder:
                return self.value % divisor
            return self._make(self.value // divisor, self.step // divisor)
        quotient = self.value // divisor
        low = quotient * divisor
        self.horizon.until(self.value, self.step, low, low + divisor - 1)
        return self._make(self.value - low, self.step) if remainder else quotient


def _give_up(other: object) -> Unknown:
    if other is UNKNOWN:
        return UNKNOWN
    raise NotAffine


def divide(left: object, right: object, remainder: bool, signed: bool) -> object:
    """The scalar divider, for operands that are not negative; otherwise unknown."""
    if isinstance(left, Affine) and type(right) is int:
        return left.divide(right, remainder)
    if isinstance(left, Affine) or isinstance(right, Affine):
        raise NotAffine
    if type(left) is not int or type(right) is not int:
        return UNKNOWN
    if not signed:
        left, right = left & WORD, right & WORD
    if right <= 0 or left < 0:
        return UNKNOWN
    return left % right if remainder else left // right


def shift(value: object, amount: object, op: str) -> object:
    """A shift by an amount that is not a constant of the program."""
    if amount is UNKNOWN or value is UNKNOWN:
        return UNKNOWN
    if type(amount) is not int:
        raise NotAffine
    if not 0 <= amount < 32:
        return -1 if op == "sshra" and value < 0 else 0
    if op == "sshll":
        return ((value << amount) + HALF & WORD) - HALF
    return value >> amount if op == "sshra" else (value & WORD) >> amount
