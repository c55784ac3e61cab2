"""Trace child: runs a kernel text once and hands back artefacts, never a verdict.

Everything that this process says is the kernel author's word: it can fail a kernel, not pass one.
The process holds no seed, reference or expected value. It imports jax and nothing of this project.

Events, in order: ``artefact`` (a file in ``out/``) for each preset and platform, ``race`` for the
simulated run, ``done``; or ``error`` and the end.
"""

from __future__ import annotations

import inspect
import linecache
import math
import os
import sys
import traceback
import types
from types import MappingProxyType

import jax
import jax.extend.core
import ml_dtypes  # noqa: F401  (gives numpy the name bfloat16)
import numpy as np
from jax import export
from jax._src.pallas.core import get_interpret_effects

from . import interpreter
from .simulate import simulate

FILE = "kernel.py"
PALLAS = ("pallas_call", "core_map", "mpmd_map")
NAME = "kernel"  # of every Pallas call in the artefacts
MAX_DETAILS = 20_000
MAX_ARTEFACT_BYTES = 32 << 20


class KernelError(Exception):
    """The kernel text failed: carries the status and what to tell its author."""

    def __init__(self, status: str, message: str, details: str = "", line: int | None = None):
        super().__init__(message)
        self.status, self.message, self.details, self.line = status, message, details, line


# ------------------------------------------------------------------------------------- errors


def _kernel_line(error: BaseException) -> int | None:
    """The last line of the kernel text on an exception's way, through its causes."""
    line, seen = None, set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, SyntaxError) and error.filename == FILE:
            return error.lineno
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == FILE:
                line = frame.lineno
        error = error.__cause__ or error.__context__
    return line


def _details(error: BaseException) -> str:
    """The exception's whole text, with the frames that lie in the kernel text."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == FILE]
    head = ["Traceback (kernel lines only):\n", *traceback.format_list(frames)] if frames else []
    text = "".join(head) + "".join(traceback.format_exception_only(error))
    return text[:MAX_DETAILS]


def _failure(error: BaseException, phase: str, preset: str) -> KernelError:
    """Sorts an exception of the kernel text into a status."""
    name, first = type(error).__name__, (str(error).strip().splitlines() or [""])[0]
    where = f"at preset {preset}"
    if isinstance(error, MemoryError):
        status, what = "out_of_memory", f"{phase} {where} ran out of memory"
    elif phase == "lowering" and isinstance(error, NotImplementedError):
        status, what = "unsupported", f"the TPU compiler does not support an operation {where}"
    elif phase == "lowering":
        status, what = "compile_error", f"the TPU compiler rejects the kernel {where}"
    elif phase == "interpreting":
        status, what = "interpreter_error", f"Pallas interpret mode cannot run the kernel {where}"
    elif isinstance(error, SystemExit):
        status, what = "trace_error", "the file ends the process; it must only define functions"
    else:
        status, what = "trace_error", f"{phase} {where} failed"
    return KernelError(status, f"{what}: {name}: {first}", _details(error), _kernel_line(error))


# --------------------------------------------------------------------------------- one preset


def _load(source: str, config: dict, preset: str):
    """Executes the text with its CONFIG and returns its `workload`."""
    # A module of its own in sys.modules: dataclasses look their module up there.
    module = sys.modules["kernel"] = types.ModuleType("kernel")
    scope = module.__dict__
    scope.update(__file__=FILE, CONFIG=MappingProxyType(config))
    try:
        code = compile(source, FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # null bytes are a ValueError before Python 3.11.4
        line = getattr(error, "lineno", None)
        raise KernelError("syntax_error", f"not Python: {error}", _details(error), line) from None
    except BaseException as error:
        raise _failure(error, "reading the file", preset) from None
    try:
        exec(code, scope)
    except BaseException as error:
        raise _failure(error, "running the file", preset) from None
    if not callable(scope.get("workload")):
        raise KernelError("wrong_signature", "define a function `workload` at the top level")
    return scope["workload"]


def _check_call(function, names: list[str]) -> None:
    """Whether the function can be called with the workload's arguments."""
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        raise KernelError(
            "wrong_signature", f"`workload` must take ({', '.join(names)}) by position: {error}"
        ) from None
    except ValueError:
        pass  # a callable without a signature: calling it will tell


def _check_output(shapes, expected: tuple[tuple[int, ...], str], preset: str) -> None:
    """Whether the traced result is one array of the expected shape and dtype."""
    leaves = jax.tree.leaves(shapes)
    want = f"{expected[1]}[{','.join(map(str, expected[0]))}]"
    got = ", ".join(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in leaves)
    if not isinstance(shapes, jax.ShapeDtypeStruct):
        raise KernelError(
            "wrong_signature",
            f"`workload` returns a {type(shapes).__name__} of ({got}) at preset {preset}; "
            f"return the one array {want}",
        )
    if tuple(shapes.shape) != expected[0] or str(shapes.dtype) != expected[1]:
        raise KernelError(
            "wrong_signature",
            f"`workload` returns {got} at preset {preset}; it must return {want}",
        )


def _trace(source: str, preset: dict, names: list[str]):
    """Traces the text at one preset. Returns the closed jaxpr."""
    function = _load(source, preset["config"], preset["name"])
    _check_call(function, names)
    specs = [jax.ShapeDtypeStruct(tuple(s), np.dtype(d)) for s, d in preset["args"]]
    try:
        whole = jax.make_jaxpr(lambda *args: function(*args, *preset["statics"]), return_shape=True)
        jaxpr, shapes = whole(*specs)
    except BaseException as error:
        raise _failure(error, "tracing", preset["name"]) from None
    _check_output(shapes, (tuple(preset["output"][0]), preset["output"][1]), preset["name"])
    if not any(True for _ in _pallas_equations(jaxpr.jaxpr)):
        raise KernelError(
            "no_kernel",
            "`workload` calls no Pallas kernel; the work must be done in pl.pallas_call "
            "(or pl.kernel)",
        )
    if any(0 in _grid(equation) for equation in _pallas_equations(jaxpr.jaxpr)):
        raise KernelError(
            "trace_error",
            f"a Pallas call has an empty grid at preset {preset['name']}: a block is larger than "
            "its array; use pl.cdiv, or a block of at most the array's size",
        )
    if "platform_index" in _primitives(jaxpr.jaxpr):
        raise KernelError(
            "hack_suspected",
            "the program does something else on the CPU than on the TPU (lax.platform_dependent); "
            "what is checked must be what is timed",
        )
    return jaxpr, specs


# ------------------------------------------------------------------------- rewriting a jaxpr


def _inner_jaxprs(value):
    """Jaxprs inside one parameter of an equation."""
    if isinstance(value, (jax.extend.core.Jaxpr, jax.extend.core.ClosedJaxpr)):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _inner_jaxprs(item)


def _pallas_equations(jaxpr):
    """All Pallas calls of a jaxpr, also of nested ones."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in PALLAS:
            yield equation
            continue
        for value in equation.params.values():
            for inner in _inner_jaxprs(value):
                yield from _pallas_equations(getattr(inner, "jaxpr", inner))


def _primitives(jaxpr) -> set[str]:
    """Names of all primitives outside Pallas kernels."""
    names = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        if equation.primitive.name not in PALLAS:
            for value in equation.params.values():
                for inner in _inner_jaxprs(value):
                    names |= _primitives(getattr(inner, "jaxpr", inner))
    return names


def _rewrite(jaxpr, change, effects):
    """Applies `change(params) -> params` to every Pallas call, also in nested jaxprs.

    The calls and all that lies around them have `effects` then.
    """

    def value(v):
        if isinstance(v, jax.extend.core.ClosedJaxpr):
            return v.replace(jaxpr=_rewrite(v.jaxpr, change, effects))
        if isinstance(v, jax.extend.core.Jaxpr):
            return _rewrite(v, change, effects)
        if type(v) in (tuple, list):
            return type(v)(value(item) for item in v)
        return v

    equations, found = [], set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in PALLAS:
            params, added = change(dict(equation.params)), set(effects)
        else:
            params = {k: value(v) for k, v in equation.params.items()}
            inner = [j for v in params.values() for j in _inner_jaxprs(v)]
            added = {effect for j in inner for effect in j.effects if effect in effects}
        found |= added
        equations.append(equation.replace(params=params, effects=equation.effects | added))
    return jaxpr.replace(eqns=equations, effects=jaxpr.effects | found)


def _with_interpret(closed, interpret):
    """The same computation with another interpret mode and neutral names, as a function."""
    effects = get_interpret_effects(interpret)

    def change(params):
        # A name of the author's choice would be that of a file among the compiler's dumps.
        name = {"name": NAME} if "name" in params else {}
        return {**params, **name, "interpret": interpret}

    jaxpr = _rewrite(closed.jaxpr, change, effects)
    flat = jax.extend.core.jaxpr_as_fun(closed.replace(jaxpr=jaxpr))

    def kernel(*args):  # the name under which the compiler dumps the program
        return flat(*args)[0]

    return kernel


def _export(closed, specs, interpret, platform: str) -> bytes:
    exported = export.export(jax.jit(_with_interpret(closed, interpret)), platforms=[platform])
    blob = exported(*specs).serialize()
    if len(blob) > MAX_ARTEFACT_BYTES:
        raise KernelError(
            "hack_suspected",
            f"the traced program takes {len(blob):,} bytes: it holds large constants; compute "
            "them from the inputs or with iota inside the program",
        )
    return blob


def _grid(equation) -> tuple[int, ...]:
    """The grid of a Pallas call; dynamic bounds count as 1."""
    mapping = equation.params.get("grid_mapping")
    return tuple(g if isinstance(g, int) else 1 for g in mapping.grid) if mapping else ()


def _grid_steps(closed) -> int:
    """Grid steps of all Pallas calls, loops around them not counted."""
    return sum(math.prod(_grid(equation)) for equation in _pallas_equations(closed.jaxpr))


# ------------------------------------------------------------------------------ simulated run


def _simulate(closed, inputs, max_steps: int) -> dict:
    """Runs the kernel in TPU-interpret mode: poisoned memory, bounds checks, race detection."""
    steps = _grid_steps(closed)
    if steps > max_steps:
        return {"outcome": "skipped", "reason": f"{steps} grid steps, more than {max_steps}"}
    result, found = simulate(lambda params: jax.jit(_with_interpret(closed, params)), inputs)
    if "error" in found:
        found["reason"] = _details(found.pop("error"))
    if result is not None:
        _write("simulated", result.tobytes())
    return {name: text[:MAX_DETAILS] for name, text in found.items() if text or name != "hint"}


# ---------------------------------------------------------------------------------------- main


def _write(name: str, data: bytes) -> None:
    with open(name, "xb") as file:
        file.write(data)


def _artefacts(job: dict, tell):
    """Traces every preset; returns the traced programs by preset."""
    source, names, traced = job["source"], job["arguments"], {}
    for preset in job["presets"]:
        name = preset["name"]
        try:
            closed, specs = _trace(source, preset, names)
        except KernelError as error:
            if not preset["optional"] or error.status in ("no_kernel", "out_of_memory"):
                raise
            tell(event="specialised", preset=name, message=error.message)
            continue
        try:
            blob = _export(closed, specs, False, "tpu")
        except KernelError:
            raise
        except BaseException as error:
            if not preset["optional"]:
                raise _failure(error, "lowering", name) from None
        else:
            _write(f"{name}.tpu", blob)
            tell(event="artefact", preset=name, platform="tpu", grid_steps=_grid_steps(closed))
        if preset["check"]:
            try:
                blob = _export(closed, specs, True, "cpu")
            except KernelError:
                raise
            except BaseException as error:
                raise _failure(error, "interpreting", name) from None
            _write(f"{name}.cpu", blob)
            tell(event="artefact", preset=name, platform="cpu", grid_steps=_grid_steps(closed))
        traced[name] = closed
    return traced


def main(job: dict, box: str, tell) -> None:
    """Traces `job["source"]` at every preset, exports it, and simulates it on public inputs."""
    interpreter.mend()
    source = job["source"]
    linecache.cache[FILE] = (len(source), None, source.splitlines(True), FILE)
    device = jax.sharding.AbstractDevice(job["device_kind"], job["cores"], "tpu")
    # Auto: explicit axes would make shardings part of every type.
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((1,), ("x",), auto, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        try:
            traced = _artefacts(job, tell)
        except KernelError as error:
            tell(
                event="error",
                status=error.status,
                message=error.message[:MAX_DETAILS],
                details=error.details,
                line=error.line,
            )
            return
        tell(event="traced")
        # The smallest preset that traced is enough to see how the kernel uses its memory.
        name = next((n for n in job["simulate"] if n in traced), None)
        if name is not None:
            preset = next(p for p in job["presets"] if p["name"] == name)
            inputs = [
                np.fromfile(os.path.join(box, "in", f"{name}.{i}"), np.dtype(dtype)).reshape(shape)
                for i, (shape, dtype) in enumerate(preset["args"])
            ]
            tell(event="race", preset=name, **_simulate(traced[name], inputs, job["max_steps"]))
    tell(event="done")
