"""Values that scalar registers can hold during a replay, besides plain numbers and booleans.

`UNKNOWN` stands for anything the replay cannot know (vector results, HBM contents, host words).

`Affine` carries a number together with its change per repetition of a loop period. Replaying one
period with affine values proves for how many further periods every comparison, shift and mask
comes out the same way, so that those periods can be skipped without running them (`steady.py`).
Loops in loops are rehearsed at the same time, so a number may grow with several of them.
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


def _order_test(holds: Callable[[int], bool]) -> Callable[[Affine, object], object]:
    """A comparison operator of `Affine` from the order of the two sides."""

    def compare(self: Affine, other: object) -> object:
        order = self._compare(other)
        return order if order is UNKNOWN else holds(order)

    return compare


class Affine:
    """`value + n * step` in repetition n of a loop, summed over the loops that are rehearsed.

    Rehearsals nest, so there may be several loops, each told by its horizon. A range that the whole
    sum must stay in is shared out among the loops in equal parts, which is sound though not tight.

    Args:
        value: The value now, before any repetition.
        steps: Growth per repetition, by the horizon of the loop; none is 0, and there is one.
    """

    __slots__ = ("value", "steps")

    def __init__(self, value: int, steps: dict[Horizon, int]) -> None:
        """Takes the dictionary as it is."""
        self.value, self.steps = value, steps

    @staticmethod
    def make(value: int, steps: dict[Horizon, int]) -> Affine | int:
        """The sum without steps of 0: a plain number if none is left."""
        steps = {horizon: step for horizon, step in steps.items() if step}
        return Affine(value, steps) if steps else value

    def moved(self, horizon: Horizon, repetitions: int) -> Affine | int:
        """The value after repetitions of one loop, which is over then."""
        steps = dict(self.steps)
        step = steps.pop(horizon, 0)
        return Affine.make(self.value + step * repetitions, steps)

    def _within(self, low: int, high: int) -> None:
        """Requires low <= self <= high of all repetitions; it holds now."""
        up = sum(step > 0 for step in self.steps.values())
        down = len(self.steps) - up
        for horizon, step in self.steps.items():
            room = (high - self.value) // up if step > 0 else (self.value - low) // down
            horizon.repetitions = min(horizon.repetitions, room // abs(step))

    def _add(self, other: object) -> object:
        if type(other) is int:
            return Affine(self.value + other, self.steps)
        if not isinstance(other, Affine):
            return _give_up(other)
        steps = dict(self.steps)
        for horizon, step in other.steps.items():
            steps[horizon] = steps.get(horizon, 0) + step
        return Affine.make(self.value + other.value, steps)

    def _subtract(self, other: object) -> object:
        return self._add(-other if type(other) is int or isinstance(other, Affine) else other)

    def _subtract_from(self, other: object) -> object:
        return (-self)._add(other)

    def _multiply(self, other: object) -> object:
        if type(other) is not int:
            return _give_up(other)
        return Affine.make(
            self.value * other, {horizon: step * other for horizon, step in self.steps.items()}
        )

    def _negate(self) -> Affine:
        return Affine(-self.value, {horizon: -step for horizon, step in self.steps.items()})

    def _shift_left(self, other: object) -> object:
        if type(other) is int and 0 <= other < 64:
            return self._multiply(1 << other)
        return _give_up(other)

    def _shift_right(self, other: object) -> object:
        if type(other) is int and 0 <= other < 64:
            return self._divided(1 << other)[0]
        return _give_up(other)

    def _divided(self, divisor: int) -> tuple[Affine | int, Affine | int]:
        """Quotient, rounded down, and remainder; the quotient has the steps that divide evenly."""
        even = {h: step // divisor for h, step in self.steps.items() if step % divisor == 0}
        rest = {h: step for h, step in self.steps.items() if step % divisor}
        quotient, remainder = divmod(self.value, divisor)
        if rest:
            Affine(remainder, rest)._within(0, divisor - 1)
        return Affine.make(quotient, even), Affine.make(remainder, rest)

    def _mask(self, other: object) -> object:
        if type(other) is not int or not other:
            return 0 if type(other) is int else _give_up(other)
        zeros = (other & -other).bit_length() - 1
        if zeros:
            return (self >> zeros & other >> zeros) << zeros
        if other == -1:
            return self
        if other & (other + 1):
            raise NotAffine  # only masks of neighbouring bits keep a sum a sum
        steps = {horizon: step & other for horizon, step in self.steps.items()}
        for horizon, step in steps.items():
            if step > other >> 1:  # the nearer way around
                steps[horizon] = step - other - 1
        result = Affine.make(self.value & other, steps)
        if isinstance(result, Affine):
            result._within(0, other)
        return result

    def _low_zeros(self) -> int:
        """Number of low bits that are 0 in all repetitions."""
        bits = self.value
        for step in self.steps.values():
            bits |= step
        return (bits & -bits).bit_length() - 1

    def _or(self, other: object) -> object:
        """Bits that never meet add up; anything else is refused."""
        if isinstance(other, Affine):
            for high, low in ((self, other), (other, self)):
                limit = (1 << high._low_zeros()) - 1
                if 0 <= low.value <= limit:
                    low._within(0, limit)
                    return high + low
            raise NotAffine
        return self._low_bits(other, lambda value, bits: value | bits)

    def _xor(self, other: object) -> object:
        return self._low_bits(other, lambda value, bits: value ^ bits)

    def _low_bits(self, other: object, operator: Callable[[int, int], int]) -> object:
        """Changes bits below all steps, which no repetition touches."""
        if type(other) is not int:
            return _give_up(other)
        unit = 1 << max(other.bit_length(), 1)
        if other < 0 or any(step % unit for step in self.steps.values()):
            raise NotAffine
        return Affine(operator(self.value, other), self.steps)

    def _compare(self, other: object) -> int | Unknown:
        """-1, 0 or 1 for the order of `self` and `other`, the same in all repetitions allowed."""
        difference = self._subtract(other)
        if difference is UNKNOWN:
            return UNKNOWN
        if not isinstance(difference, Affine):
            return (difference > 0) - (difference < 0)
        far = 1 << 200
        value = difference.value
        difference._within(*((-far, -1) if value < 0 else (1, far) if value > 0 else (0, 0)))
        return (value > 0) - (value < 0)

    __add__ = __radd__ = _add
    __sub__, __rsub__, __neg__ = _subtract, _subtract_from, _negate
    __mul__ = __rmul__ = _multiply
    __lshift__, __rshift__ = _shift_left, _shift_right
    __and__ = __rand__ = _mask
    __or__ = __ror__ = _or
    __xor__ = __rxor__ = _xor
    __lt__ = _order_test(lambda order: order < 0)
    __le__ = _order_test(lambda order: order <= 0)
    __gt__ = _order_test(lambda order: order > 0)
    __ge__ = _order_test(lambda order: order >= 0)
    __eq__ = _order_test(lambda order: order == 0)  # type: ignore[assignment]
    __ne__ = _order_test(lambda order: order != 0)  # type: ignore[assignment]

    def _refuse(self, *_: object) -> object:
        raise NotAffine

    # used as a memory address, a flag number, a truth value or an amount to shift by
    __hash__ = __bool__ = __index__ = _refuse  # type: ignore[assignment]
    __rlshift__ = __rrshift__ = _refuse

    def divide(self, divisor: int, remainder: bool) -> object:
        """Unsigned division by a positive constant."""
        if self.value < 0 or divisor <= 0:
            raise NotAffine  # the unsigned view of it is not a sum any more
        self._within(0, HALF - 1)
        return self._divided(divisor)[remainder]


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
