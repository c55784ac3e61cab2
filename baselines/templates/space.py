"""The tunables of a kernel text as a Gymnasium space."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import MultiDiscrete

from baselines.templates.text import Template, TemplateError, position

MAX_SIZE = 10_000  # members; larger spaces are not enumerated


class TemplateSpace(MultiDiscrete):
    """The tunables of a kernel text as a space, and back to source text.

    A member holds, for each tunable in the order of ``TUNABLES``, the index of a value in its
    domain. `sample` draws from all members, `sample_valid` and `sample_violation` from those that
    hold or break the kernel's own constraints. See `Template` on what is run of the text.

    Attributes:
        template: The text that the space was made of.
        default: The member that is the text itself.
        size: Number of members.

    Args:
        text: A kernel text with ``TUNABLES`` and, maybe, ``constraints``.
        seed: Seed of sampling.

    Raises:
        TemplateError: If the text declares no tunables, or not as it should.
    """

    def __init__(self, text: str, seed: int | np.random.Generator | None = None):
        self.template = Template(text)
        super().__init__([len(domain) for domain in self.domains], seed=seed)
        self.default = self.encode({})
        self.size = math.prod(map(len, self.domains))
        self._broken: dict[tuple[int, ...], tuple[str, ...]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tunables, in the order of a member's entries."""
        return tuple(self.template.domains)

    @property
    def domains(self) -> tuple[tuple[Any, ...], ...]:
        """The values of each tunable."""
        return tuple(self.template.domains.values())

    def values(self, action: Sequence[int]) -> dict[str, Any]:
        """The values of the tunables at a member.

        Raises:
            TemplateError: If it is no member.
        """
        indices = self._indices(action)
        pairs = zip(self.template.domains.items(), indices, strict=True)
        return {name: domain[index] for (name, domain), index in pairs}

    def encode(self, values: Mapping[str, Any]) -> np.ndarray:
        """The member at which the tunables have some values; those left out, their default.

        Raises:
            TemplateError: For a name that is no tunable, or a value outside its domain.
        """
        unknown = [name for name in values if name not in self.template.domains]
        if unknown:
            raise TemplateError(
                f"no tunable {', '.join(map(str, unknown))}; there are {', '.join(self.names)}"
            )
        indices = []
        for name, value in {**self.template.defaults, **values}.items():
            domain = self.template.domains[name]
            index = position(domain, value)
            if index is None:
                raise TemplateError(f"{name} = {value!r} is not in its domain {domain!r}")
            indices.append(index)
        return np.array(indices, dtype=self.dtype)

    def source(self, action: Sequence[int]) -> str:
        """The kernel text at a member: literals of the tunables are replaced, nothing else is.

        Raises:
            TemplateError: If it is no member.
        """
        return self.template.source(self.values(action))

    def action(self, text: str) -> np.ndarray:
        """The member at which a text of this space was made.

        Comments and layout may differ from those of the space's own text.

        Raises:
            TemplateError: If the text is of another kernel, or a value is outside its domain.
        """
        return self.encode(self.template.read(text))

    def violations(self, action: Sequence[int]) -> list[str]:
        """Sentences of ``constraints`` that do not hold at a member; none if it is valid.

        Raises:
            TemplateError: If it is no member, or if ``constraints`` fails.
        """
        indices = self._indices(action)
        if indices not in self._broken:
            self._broken[indices] = self.template.violations(self.values(indices))
        return list(self._broken[indices])

    def actions(self, *, valid: bool | None = None) -> Iterator[np.ndarray]:
        """All members in order, the last tunable fastest.

        Args:
            valid: True for those that hold all constraints, False for those that break one.

        Raises:
            TemplateError: If there are more than `MAX_SIZE`.
        """
        if self.size > MAX_SIZE:
            raise TemplateError(f"the space has {self.size:,} members, more than {MAX_SIZE:,}")
        for indices in itertools.product(*map(range, self.nvec.tolist())):
            if valid is None or valid != bool(self.violations(indices)):
                yield np.array(indices, dtype=self.dtype)

    def sample_valid(self) -> np.ndarray:
        """Draws a member that holds all constraints.

        Raises:
            TemplateError: If there is none.
        """
        return self._sample(valid=True)

    def sample_violation(self) -> np.ndarray:
        """Draws a member that breaks a constraint: what a policy must learn to avoid.

        Raises:
            TemplateError: If there is none.
        """
        return self._sample(valid=False)

    def _sample(self, valid: bool) -> np.ndarray:
        if self.size <= MAX_SIZE:
            found = list(self.actions(valid=valid))
            if found:
                return found[int(self.np_random.integers(len(found)))]
        else:
            for _ in range(MAX_SIZE):
                action = self.sample()
                if valid != bool(self.violations(action)):
                    return action
        kind = "holds all constraints" if valid else "breaks a constraint"
        raise TemplateError(f"no member of the space {kind}")

    def _indices(self, action: Sequence[int]) -> tuple[int, ...]:
        indices = np.asarray(action)
        shaped = indices.shape == self.nvec.shape and np.issubdtype(indices.dtype, np.integer)
        if not shaped or (indices < 0).any() or (indices >= self.nvec).any():
            limits = ", ".join(
                f"{n} below {size}" for n, size in zip(self.names, self.nvec, strict=True)
            )
            raise TemplateError(
                f"a member has one index for each tunable ({limits}), not {action!r}"
            )
        return tuple(indices.tolist())

    def __repr__(self) -> str:
        return f"TemplateSpace({self.template.domains!r})"
