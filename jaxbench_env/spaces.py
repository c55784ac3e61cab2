"""The space of texts: any string up to a length, whatever its characters."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Tuple
from gymnasium.spaces.utils import (
    flatten,
    flatten_space,
    is_space_dtype_shape_equiv,
    unflatten,
)
from gymnasium.vector.utils import (
    batch_differing_spaces,
    concatenate,
    create_empty_array,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

MAX_LENGTH = 200_000
SAMPLE_LENGTH = 256

_PREFIX = 4
# Any code point, lone surrogates included, takes at most four bytes.
_BYTES_PER_CHARACTER = 4


class SourceText(Space[str]):
    """Every string of at most `max_length` code points.

    Unlike `gymnasium.spaces.Text` it has no alphabet: a language model writes what it likes. Null
    bytes, lone surrogates and other text that no compiler takes are members too; an environment
    answers them with a failed attempt, not with an exception.

    Args:
        max_length: Most code points of a member, at least 0.
        examples: Texts from which `sample` draws. Without them it draws printable ASCII, at most
            `SAMPLE_LENGTH` characters. They do not change what is a member.
        seed: Seed of `sample`.

    Raises:
        ValueError: For a negative length, or for examples that are none or not members.

    Example:
        >>> space = SourceText(max_length=10)
        >>> "x = 1" in space, "x" * 11 in space
        (True, False)
    """

    def __init__(
        self,
        max_length: int = MAX_LENGTH,
        *,
        examples: Sequence[str] | None = None,
        seed: int | np.random.Generator | None = None,
    ):
        if max_length < 0:
            raise ValueError(f"max_length is a number of characters, 0 or more, not {max_length}")
        self.max_length = int(max_length)
        self.examples = None if examples is None else tuple(examples)
        if self.examples is not None:
            if not self.examples:
                raise ValueError("examples has no texts; leave it out to sample printable text")
            for number, text in enumerate(self.examples):
                if text not in self:
                    raise ValueError(
                        f"example {number} is no string of at most {max_length} characters"
                    )
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: as an array of numbers a text means nothing to anybody."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draws one of the examples, or printable ASCII text if there are none.

        Args:
            mask: Which examples may be drawn: int8 array of zeros and ones, one per example.
            probability: With which probability: float64 array of sum 1, one per example.

        Raises:
            ValueError: If both are given, if one is given and there are no examples, or if its
                shape, dtype or values do not fit.
        """
        weights = self._weights(mask, probability)
        if self.examples is not None:
            return self.examples[int(self.np_random.choice(len(self.examples), p=weights))]
        length = self.np_random.integers(0, min(self.max_length, SAMPLE_LENGTH) + 1)
        codes = self.np_random.integers(ord(" "), ord("~") + 1, length)
        return "".join(map(chr, codes))

    def _weights(self, mask: Any | None, probability: Any | None) -> np.ndarray | None:
        if mask is not None and probability is not None:
            raise ValueError("only one of `mask` and `probability` can be given, not both")
        given, dtype = (mask, np.int8) if mask is not None else (probability, np.float64)
        if given is None:
            return None
        if self.examples is None:
            raise ValueError("a mask chooses among examples, and this space has none")
        shape = (len(self.examples),)
        if not isinstance(given, np.ndarray) or given.dtype != dtype or given.shape != shape:
            raise ValueError(f"a mask is an array of {np.dtype(dtype)} with shape {shape}")
        if mask is not None:
            if not np.isin(given, (0, 1)).all() or not given.any():
                raise ValueError("a mask has zeros and ones, and at least one one")
            return given / given.sum()
        if (given < 0).any() or not np.isclose(given.sum(), 1):
            raise ValueError("probabilities are 0 or more and have the sum 1")
        return given

    def contains(self, x: Any) -> bool:
        """Whether it is a string and not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """The texts as they are; `json.dumps` escapes lone surrogates by default."""
        return list(sample_n)

    def from_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """The texts as they are."""
        return list(sample_n)

    def __repr__(self) -> str:
        return f"SourceText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceText) and self.max_length == other.max_length


class SharedTexts(Sequence[str]):
    """The texts of `n` environments, read from shared memory whenever they are asked for.

    `AsyncVectorEnv` reads its shared memory once, when it is made, and relies on arrays that
    follow what the workers write. A tuple of strings would show the first observation for ever;
    this sequence does not. `copy.deepcopy`, which the vector environment applies to what it
    returns (unless told ``copy=False``), makes an ordinary tuple of it.
    """

    def __init__(self, memory: Any, n: int):
        self._slots = _slots(memory).reshape(n, -1)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        slot = self._slots[index]
        length = int(slot[:_PREFIX].view(np.uint32)[0])
        return slot[_PREFIX : _PREFIX + length].tobytes().decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))


def _slots(memory: Any) -> np.ndarray:
    return np.frombuffer(memory.get_obj(), dtype=np.uint8)


def _slot_size(space: SourceText) -> int:
    """Bytes for one text: its length as uint32, then UTF-8. A multiple of four."""
    return _PREFIX + _BYTES_PER_CHARACTER * space.max_length


# What follows teaches Gymnasium's vector environments the space. There is deliberately no
# registration for `iterate`: Gymnasium iterates a Tuple of spaces that it knows no `iterate` for
# item by item, which is what a batch of texts needs, and would go through characters otherwise.
# `batch_space` needs none either: its rule for spaces in general gives a Tuple of n copies.


@create_shared_memory.register(SourceText)
def _create_shared_memory(space: SourceText, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("B", n * _slot_size(space))


@read_from_shared_memory.register(SourceText)
def _read_from_shared_memory(space: SourceText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, n)


@write_to_shared_memory.register(SourceText)
def _write_to_shared_memory(space: SourceText, index: int, value: str, shared_memory: Any) -> None:
    if value not in space:
        raise ValueError(
            f"an observation holds a text that is no member of {space}: "
            f"{type(value).__name__} of length {len(value)}"
        )
    size = _slot_size(space)
    slot = _slots(shared_memory)[index * size : (index + 1) * size]
    encoded = value.encode("utf-8", "surrogatepass")
    slot[_PREFIX : _PREFIX + len(encoded)] = np.frombuffer(encoded, np.uint8)
    slot[:_PREFIX].view(np.uint32)[0] = len(encoded)


@create_empty_array.register(SourceText)
def _create_empty_array(space: SourceText, n: int = 1, fn: Any = np.zeros) -> tuple[str, ...]:
    return ("",) * n


@concatenate.register(SourceText)
def _concatenate(space: SourceText, items: Iterable[str], out: Any) -> tuple[str, ...]:
    return tuple(items)


@batch_differing_spaces.register(SourceText)
def _batch_differing_spaces(spaces: Sequence[SourceText]) -> Tuple:
    return Tuple([copy.deepcopy(space) for space in spaces])


@is_space_dtype_shape_equiv.register(SourceText)
def _is_space_dtype_shape_equiv(space_1: SourceText, space_2: Any) -> bool:
    return space_1 == space_2


@flatten_space.register(SourceText)
def _flatten_space(space: SourceText) -> SourceText:
    return space


@flatten.register(SourceText)
def _flatten(space: SourceText, x: str) -> str:
    return x


@unflatten.register(SourceText)
def _unflatten(space: SourceText, x: str) -> str:
    return x
