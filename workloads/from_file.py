"""Workloads of the user's own: a Python file with the published suite's interface.

The file defines, at its top level:

- ``CONFIG``: a dict with sizes and constants. A kernel sees its numbers and text.
- ``create_inputs(dtype=jnp.bfloat16)``: a tuple of arrays; Python ints may follow them, and become
  static arguments. If it also takes a ``seed`` (int) or a ``key`` (jax.random.PRNGKey), it is
  called anew for every draw of secret inputs; else its arrays are drawn anew as `redraw` says.
- ``workload(*inputs)``: the reference in plain JAX. It returns one floating array.

It may also define ``PRESETS = {"tiles": {...}, "varied": {...}}``, changes to CONFIG that give the
sizes at which the numbers are checked (else they are checked at the file's own size), and
``TOLERANCE = {"rel": 0.02, "xla_factor": 4, "floor": 0.002}``, any of them (see
`workloads.Tolerance`). Without ``TOLERANCE``, a ``CONFIG["rtol"]`` above the default widens `rel`;
``CONFIG["atol"]`` is not used, because an absolute tolerance passes an all-zero result where the
values are small.

CONFIG changes after the file has run: what depends on a size belongs inside the functions. The file
stands alone: what it imports is not part of what identifies it.

Flops are counted in the traced reference (`jaxprs.flops`), and all of them count as useful. Least
traffic is every input read and the output written once, also where the reference reads only a part.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads import jaxprs
from workloads.file_module import FileModule, WorkloadFileError
from workloads.hardware import chip
from workloads.redraw import redraw
from workloads.workload import PRESETS, ArraySpec, Preset, Tolerance, Workload, WorkloadFile

MAX_CHARACTERS = 40_000  # the whole file stands in the task text
# Inputs up to this size are kept as the file makes them.
SMALL_BYTES = 64 << 20

_loaded: dict[WorkloadFile, Workload] = {}
_loading = threading.RLock()


def load(path: str | os.PathLike[str]) -> Workload:
    """Makes a workload of a Python file. The file is run: load only files that you trust.

    Args:
        path: The file; see this module for what it defines. The workload's id is
            ``CONFIG["name"]`` if that is an identifier, else it is made of the file's name.

    Returns:
        The workload; the same one for as long as the file stays as it is.

    Raises:
        WorkloadFileError: If the file does not define a workload.
    """
    path = os.path.abspath(os.path.expanduser(path))
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except OSError as error:
        raise WorkloadFileError(
            path, f"it cannot be read: {error.strerror}", "Give the path of a Python file"
        ) from None
    except UnicodeDecodeError:
        raise WorkloadFileError(path, "it is not text in UTF-8", "Give a Python file") from None
    return load_text(WorkloadFile(path, text))


def load_text(file: WorkloadFile) -> Workload:
    """As `load`, of a file that has been read already.

    Raises:
        WorkloadFileError: As `load`.
    """
    with _loading:
        if file not in _loaded:
            _loaded[file] = _make(file)
        return _loaded[file]


@dataclass(frozen=True)
class _Traced:
    """The workload at one preset: sizes as a kernel sees them, and what jax says about it."""

    module: FileModule
    sizes: Mapping[str, Any]
    names: tuple[str, ...]
    args: Mapping[str, ArraySpec]
    statics: tuple[str, ...]
    jaxpr: Any

    def call(self, *arrays: Any) -> Any:
        """The reference."""
        return self.module.call(*arrays, *(self.sizes[name] for name in self.statics))

    @functools.cached_property
    def flops(self) -> int:
        """Operations of the reference as written."""
        return jaxprs.flops(self.jaxpr)

    @functools.cached_property
    def kept(self) -> tuple[np.ndarray, ...]:
        """The arrays of a file that takes no seed, if they are small."""
        return self.module.arrays()

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return sum(spec.nbytes for spec in self.args.values())

    def draw(self, rng: np.random.Generator, draw: str) -> dict[str, np.ndarray]:
        """Secret inputs by name."""
        if self.module.seeded:
            arrays = self.module.arrays(int(rng.integers(1 << 31)))
        else:
            given = self.kept if self.nbytes <= SMALL_BYTES else self.module.arrays()
            arrays = redraw(given, rng, draw)
        return dict(zip(self.args, arrays, strict=True))


def _make(file: WorkloadFile) -> Workload:
    if len(file.text) > MAX_CHARACTERS:
        problem = f"it has {len(file.text):,} characters and at most {MAX_CHARACTERS:,} are allowed"
        raise WorkloadFileError(file.path, problem, "Leave only the reference in it")
    first = FileModule(file, "v6e", {})
    overrides = _presets(first)
    modules = {name: FileModule(file, name, new) for name, new in overrides.items()}
    traced = {name: _trace(module) for name, module in {"v6e": first, **modules}.items()}
    own = traced["v6e"]
    for other in traced.values():
        if (other.names, other.statics) != (own.names, own.statics):
            first.fail(
                f"`create_inputs` returns other inputs at preset {other.module.preset}",
                "A preset may change shapes and values, not the number of inputs",
            )
    by_sizes = {_key(t.sizes): t for t in traced.values()}

    def reference(CONFIG, *arrays):
        return by_sizes[_key(CONFIG)].call(*arrays)

    def flops(sizes: Mapping[str, Any]) -> int:
        return by_sizes[_key(sizes)].flops

    def generate(rng: np.random.Generator, preset: Preset, draw: str) -> dict[str, np.ndarray]:
        return traced[preset.name].draw(rng, draw)

    model = first.config.get("model")
    return Workload(
        id=_id(first.config.get("name"), file.path),
        number="",
        upstream_name=os.path.basename(file.path),
        family="file",
        model=model if isinstance(model, str) else "",
        summary=first.doc.split("\n\n")[0] or "What the reference below computes.",
        reference=reference,
        shapes=lambda sizes: by_sizes[_key(sizes)].args,
        sizes={name: t.sizes for name, t in traced.items()},
        generate=generate,
        flops=flops,
        flops_useful=flops,
        static_arguments=own.statics,
        tolerance=_tolerance(first),
        check_presets=tuple(modules) or ("v6e",),
        file=file,
        version=int(file.sha256[:12], 16),
    )


def _presets(module: FileModule) -> dict[str, dict[str, Any]]:
    presets = module.declared("PRESETS")
    if presets is None:
        return {}
    known = " and ".join(PRESETS[1:])
    if not isinstance(presets, dict) or not set(presets) <= set(PRESETS[1:]):
        module.fail("PRESETS is not a dict of check presets", f"They are named {known}")
    if presets and "tiles" not in presets:
        module.fail("PRESETS lacks 'tiles'", "A kernel need not run at 'varied'; declare both")
    for name, overrides in presets.items():
        if not isinstance(overrides, dict) or _plain(overrides) != overrides:
            module.fail(
                f"PRESETS[{name!r}] is not a dict of numbers and text",
                "Map keys of CONFIG to new values",
            )
        unknown = set(overrides) - set(module.config)
        if unknown:
            module.fail(
                f"PRESETS[{name!r}] changes {', '.join(sorted(unknown))}, which CONFIG does not "
                "have",
                "Map keys of CONFIG to new values",
            )
    return {name: presets[name] for name in PRESETS[1:] if name in presets}


def _trace(module: FileModule) -> _Traced:
    """Looks at inputs and result at one preset, and refuses what cannot be evaluated."""
    specs, numbers = module.describe()
    names = module.names(len(specs) + len(numbers))
    statics = dict(zip(names[len(specs) :], numbers, strict=True))
    for name, value in statics.items():
        if module.config.get(name, value) != value:
            module.fail(
                f"the int input `{name}` is {value} and CONFIG[{name!r}] is {module.config[name]}",
                "Give them the same value, or one of them another name",
            )
    jaxpr, out = module.trace(specs, numbers)
    total = sum(spec.nbytes for spec in specs) + _require_output(module, jaxpr, out)
    limit = chip().hbm_bytes
    if total > limit:
        module.fail(
            f"inputs and output take {total / 1e9:.1f} GB at preset {module.preset} and the chip "
            f"has {limit / 1e9:.1f} GB of HBM",
            "Make the sizes in CONFIG smaller",
        )
    return _Traced(
        module=module,
        sizes={**_plain(module.config), **statics},
        names=tuple(names),
        args=dict(zip(names, specs, strict=False)),
        statics=tuple(statics),
        jaxpr=jaxpr,
    )


def _require_output(module: FileModule, jaxpr: Any, out: Any) -> int:
    """Bytes of the result, if it is one floating array made from the inputs in plain JAX."""
    leaves = jax.tree.leaves(out)
    if not isinstance(out, jax.ShapeDtypeStruct):
        kind = type(out).__name__
        module.fail(
            f"`workload` returns a {kind} of {len(leaves)} arrays",
            "Only one array is supported: return the array itself, or join several into one",
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        module.fail(
            f"`workload` returns an array of {out.dtype}, not a floating one",
            "Numbers are compared within a tolerance: return floats (bfloat16 or float32)",
        )
    if {equation.primitive.name for equation in jaxprs.walk(jaxpr)} & {"pallas_call", "core_map"}:
        module.fail(
            "`workload` calls Pallas",
            "The workload's file is the reference, in plain JAX; kernels are what is evaluated",
        )
    if not jaxprs.depends(jaxpr):
        module.fail(
            "the result of `workload` does not depend on the values of its inputs",
            "Compute it from the inputs",
        )
    return out.size * out.dtype.itemsize


def _tolerance(module: FileModule) -> Tolerance:
    given = module.declared("TOLERANCE")
    names = [field.name for field in fields(Tolerance)]
    if given is None:
        rtol = module.config.get("rtol")
        wide = isinstance(rtol, float) and Tolerance.rel < rtol < 1
        return Tolerance(rel=rtol) if wide else Tolerance()
    if not isinstance(given, dict) or not set(given) <= set(names):
        module.fail("TOLERANCE is not a dict", f"Its keys are {', '.join(names)}")
    if not all(isinstance(value, (int, float)) and value > 0 for value in given.values()):
        module.fail("TOLERANCE has values that are not positive numbers", "Correct them")
    return Tolerance(**given)


def _id(name: Any, path: str) -> str:
    """``CONFIG["name"]`` if it is an identifier, else one made of the file's name."""
    if isinstance(name, str) and name.isidentifier() and name.isascii():
        return name
    stem = os.path.splitext(os.path.basename(path))[0]
    slug = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return slug if slug[:1].isalpha() else f"workload_{slug}".rstrip("_")


def _plain(value: Any) -> Any:
    """What JSON can carry of a configuration: that is what kernels see of it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        items = {key: _plain(item) for key, item in value.items() if isinstance(key, str)}
        return {key: item for key, item in items.items() if item is not _OPAQUE}
    if isinstance(value, (list, tuple)):
        plain = [_plain(item) for item in value]
        return _OPAQUE if _OPAQUE in plain else plain
    return _OPAQUE


_OPAQUE = object()


def _key(sizes: Mapping[str, Any]) -> str:
    return json.dumps(dict(sizes), sort_keys=True)
