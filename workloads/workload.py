"""The type of a workload: one JAX computation that is to be made fast."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

PRESETS = ("v6e", "tiles", "varied")
DRAWS = ("nominal", "shifted", "structured")
MAX_STEERING_BYTES = 1 << 30  # of inputs that are drawn only to get at some of them


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array, dtype by its numpy name (``"bfloat16"``, ``"int32"``)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def np_dtype(self) -> np.dtype:
        """The dtype as numpy sees it (bfloat16 comes from ml_dtypes)."""
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of the array without padding."""
        return math.prod(self.shape) * self.np_dtype.itemsize

    def __str__(self) -> str:
        """For example ``bfloat16[8192,8192]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Preset:
    """One choice of sizes.

    Attributes:
        name: ``"v6e"`` (the published size: compiled and timed), ``"tiles"`` (tiled axes are
            multiples of 1024, outer axes small: numerics) or ``"varied"`` (3 x 2^k: numerics).
        args: Argument name -> spec, in the order of the reference's arguments.
        config: The scalars that a kernel may read as ``CONFIG``, read-only.
    """

    name: str
    args: Mapping[str, ArraySpec]
    config: Mapping[str, int | float]

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return sum(spec.nbytes for spec in self.args.values())


@dataclass(frozen=True)
class Tolerance:
    """How far a bfloat16 result may lie from the float32 reference.

    An element passes if ``|out - ref| <= rel * (rms(ref) + |ref|)``. The whole output passes if
    its relative RMS error is at most ``max(xla_factor * e, floor)``, where ``e`` is the error that
    the reference makes when XLA runs it in the workload's own dtypes on the same inputs.
    """

    rel: float = 2e-2
    xla_factor: float = 4.0
    floor: float = 2e-3


@dataclass(frozen=True)
class WorkloadFile:
    """The Python file that a workload of the user's own comes from, as it was when it was read.

    Attributes:
        path: Absolute path.
        text: The whole file.
    """

    path: str
    text: str

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of the text, hexadecimal: two workloads are the same if it is."""
        return hashlib.sha256(self.text.encode()).hexdigest()


Shapes = Callable[[Mapping[str, int]], Mapping[str, ArraySpec]]
Generate = Callable[[np.random.Generator, Preset, str], Mapping[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Workload:
    """One workload: of the suite, or of the user's own. Equal only to itself; hashable.

    Attributes:
        id: Name in ``gym.make("JAXBench/<id>")``.
        number: Number in the published tables, for example ``"16p"``.
        upstream_name: Name in the published suite.
        family: Module of this package that defines it.
        model: Model from which the operator comes.
        summary: What it computes, in a sentence or two, for the task text.
        reference: ``reference(CONFIG, *arrays)`` in plain JAX. Shapes come from the arrays;
            ``CONFIG`` holds only the preset's scalars.
        shapes: Sizes -> argument specs, in argument order.
        sizes: Preset name -> named sizes (``{"M": 8192, ...}``).
        constants: Scalars that are the same at every preset (epsilon and the like).
        published_names: Key in the published suite's ``CONFIG`` -> key of ours, or a number.
        generate: Input generator ``(rng, preset, draw) -> {name: array}`` in numpy. Draws are
            ``"nominal"``, ``"shifted"`` and ``"structured"``; none of them may let a kernel pass
            that ignores part of the operator.
        generate_steering: Like `generate`, for those arguments alone that the control flow of a
            kernel may depend on (lengths, page tables, group sizes), where the others are large.
            Distributed as in `generate`, not equal to it.
        flops: Operations of the reference as written, multiply and add counted as two.
        flops_useful: Operations of the best known algorithm.
        static_arguments: Keys of the configuration that a kernel gets as Python numbers after
            the arrays, because the published function has them as arguments.
        published_reference: The published form, where the default one repairs an operator whose
            published form does not depend on its inputs. Reached by ``variant="published"``.
        variant: ``"published"`` where the published form stands in for a repaired one.
        tolerance: When a result counts as correct.
        check_presets: Presets at which the numbers are checked. At ``"varied"`` a kernel need
            not trace.
        partly_read: Arguments of which the values of others decide what is needed, so that a
            kernel may leave parts of them unread.
        file: Where it comes from, if it is not one of the suite.
        version: Raised whenever inputs, sizes, reference or tolerance change: part of every
            cache key.
    """

    id: str
    number: str
    upstream_name: str
    family: str
    model: str
    summary: str
    reference: Callable[..., Any]
    shapes: Shapes
    sizes: Mapping[str, Mapping[str, int]]
    generate: Generate
    flops: Callable[[Mapping[str, int]], int]
    flops_useful: Callable[[Mapping[str, int]], int]
    generate_steering: Generate | None = None
    constants: Mapping[str, float] = field(default_factory=dict)
    published_names: Mapping[str, str | int | float] = field(default_factory=dict)
    static_arguments: tuple[str, ...] = ()
    published_reference: Callable[..., Any] | None = None
    variant: str = "default"
    tolerance: Tolerance = Tolerance()
    check_presets: tuple[str, ...] = PRESETS[1:]
    partly_read: tuple[str, ...] = ()
    file: WorkloadFile | None = None
    version: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which it can be found: id, published name with its number, number."""
        published = (f"{self.number}_{self.upstream_name}", self.number) if self.number else ()
        return (self.id, *published)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of all arguments of ``workload``, arrays first."""
        return (*self.presets["v6e"].args, *self.static_arguments)

    @functools.cached_property
    def presets(self) -> Mapping[str, Preset]:
        """The presets by name, ``v6e`` first."""
        return MappingProxyType({name: self._preset(name) for name in self.sizes})

    def _preset(self, name: str) -> Preset:
        sizes = self.sizes[name]
        config: dict[str, int | float] = {**sizes, **self.constants}
        for key, value in self.published_names.items():
            config[key] = config[value] if isinstance(value, str) else value
        return Preset(name, MappingProxyType(dict(self.shapes(sizes))), MappingProxyType(config))

    def inputs(self, preset: str, draw: str, seed: int) -> tuple[np.ndarray, ...]:
        """Draws the inputs of one preset, as numpy arrays in argument order.

        Raises:
            KeyError: For an unknown preset.
            ValueError: For an unknown draw, or if the generator breaks its own specification.
        """
        if draw not in DRAWS:
            raise ValueError(f"unknown draw {draw!r}; draws are {', '.join(DRAWS)}")
        chosen = self.presets[preset]
        arrays = self.generate(np.random.default_rng(seed), chosen, draw)
        return tuple(self._checked(name, arrays[name], chosen) for name in chosen.args)

    def steering_inputs(
        self, preset: str, names: Sequence[str], draw: str, seed: int
    ) -> tuple[np.ndarray, ...]:
        """Draws some of the inputs, without the others where these are large.

        They are distributed as those of `inputs`, and not equal to them.

        Raises:
            KeyError: For an unknown preset or name.
            ValueError: If they cannot be drawn without inputs of more than `MAX_STEERING_BYTES`.
        """
        chosen, rng = self.presets[preset], np.random.default_rng(seed)
        arrays: Mapping[str, np.ndarray] = {}
        if self.generate_steering is not None:
            arrays = self.generate_steering(rng, chosen, draw)
        if not set(names) <= arrays.keys():
            if chosen.nbytes > MAX_STEERING_BYTES:
                raise ValueError(f"{', '.join(names)} cannot be drawn without the other inputs")
            arrays = self.generate(rng, chosen, draw)
        return tuple(self._checked(name, arrays[name], chosen) for name in names)

    def _checked(self, name: str, array: np.ndarray, preset: Preset) -> np.ndarray:
        spec = preset.args[name]
        array = np.asarray(array).astype(spec.np_dtype, copy=False)
        if array.shape != spec.shape:
            raise ValueError(f"{self.id}: {name} has shape {array.shape}, not {spec.shape}")
        return array

    def output(self, preset: str) -> ArraySpec:
        """Shape and dtype of the result, from an abstract evaluation of the reference."""
        return self._outputs[preset]

    @functools.cached_property
    def _outputs(self) -> Mapping[str, ArraySpec]:
        import jax

        found = {}
        for name, preset in self.presets.items():
            args = [jax.ShapeDtypeStruct(s.shape, s.np_dtype) for s in preset.args.values()]
            out = jax.eval_shape(functools.partial(self.reference, preset.config), *args)
            found[name] = ArraySpec(tuple(out.shape), str(out.dtype))
        return found

    def min_hbm_bytes(self, preset: str = "v6e") -> int:
        """Least HBM traffic: every input read once and the output written once."""
        return self.presets[preset].nbytes + self.output(preset).nbytes

    def sure_share(self, argument: str) -> float:
        """The share of an input that every kernel must read, whatever the inputs' values are.

        0 where values decide what is needed, where the input does not matter by the operator's
        mathematics, and for a workload from a file, of which nothing is known. A half where the
        operator is causal along both axes of a square of scores.
        """
        from workloads.data import structure

        facts = structure(self.id)
        unneeded = facts.ineffective.get(argument) == "nothing"
        if self.file is not None or unneeded or argument in self.partly_read:
            return 0.0
        return 0.5 if len(facts.causal.get(argument, ())) > 1 else 1.0

    def sure_input_bytes(self, preset: str = "v6e") -> float:
        """Bytes of input that every kernel must read; see `sure_share`."""
        args = self.presets[preset].args
        return sum(self.sure_share(name) * spec.nbytes for name, spec in args.items())

    def roofline_ms(self, target: str = "v6e") -> float:
        """Least time at the published size: useful flops and least HBM traffic, milliseconds."""
        from workloads.hardware import chip

        return chip(target).roofline_ms(self.flops_useful(self.sizes["v6e"]), self.min_hbm_bytes())

    def reference_source(self) -> str:
        """The reference as text; of a workload from a file the whole file."""
        return self.file.text if self.file else inspect.getsource(self.reference)

    def task_text(self, target: str = "v6e") -> str:
        """The task as a policy reads it: contract, shapes, reference and hardware."""
        from workloads.task import task_text

        return task_text(self, target)

    def messages(self, target: str = "v6e") -> list[dict[str, str]]:
        """The task as chat messages, each a dict with the keys ``role`` and ``content``."""
        from workloads.task import messages

        return messages(self, target)
