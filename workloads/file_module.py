"""The user's Python file, executed: its functions under its CONFIG, and what is wrong with it."""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from workloads.workload import ArraySpec, WorkloadFile

# Files run one at a time: what they print and the global generators are the process's.
_running = threading.RLock()

_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)


class WorkloadFileError(ValueError):
    """A file does not define a workload. The message says what is wrong, where, and what to do."""

    def __init__(self, path: str, problem: str, advice: str, line: int | None = None):
        where = path if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}. {advice}.")


@contextlib.contextmanager
def _own_surroundings() -> Iterator[None]:
    """Runs the user's code where it finds and leaves the process as it should be.

    Prints go to standard error, since standard output may be JSON; the global generators are
    seeded, so that a file that draws from them gives the same arrays in every process.
    """
    with _running, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        random.seed(0)
        np.random.seed(0)
        yield


class FileModule:
    """A workload file executed under the CONFIG of one preset.

    Every preset has an execution of its own, because the functions of a module that are jitted
    would otherwise keep what they have traced under another CONFIG.

    Attributes:
        preset: Name of the preset.
        config: The module's whole CONFIG.
        doc: The module's docstring, or that of its ``workload``.
    """

    def __init__(self, file: WorkloadFile, preset: str, overrides: Mapping[str, Any]):
        """Executes the file and then puts the overrides into its CONFIG.

        Raises:
            WorkloadFileError: If the file does not execute, or does not define what it must.
        """
        self.preset, self._file = preset, file
        self._module = self._execute()
        self.config: dict[str, Any] = self._config()
        self.config.update(overrides)
        for name in ("create_inputs", "workload"):
            if not callable(getattr(self._module, name, None)):
                signature = {"create_inputs": "dtype=jnp.bfloat16", "workload": "*inputs"}[name]
                self.fail(
                    f"it defines no function `{name}`",
                    f"Define `{name}({signature})` at the top level",
                )
        self.doc = inspect.getdoc(self._module) or inspect.getdoc(self._module.workload) or ""
        self._create_arguments = self._accepted()

    @property
    def seeded(self) -> bool:
        """Whether `create_inputs` takes a ``seed`` or a ``key``."""
        return not {"seed", "key"}.isdisjoint(self._create_arguments)

    def declared(self, name: str) -> Any:
        """A module-level name such as ``PRESETS``, or None."""
        return getattr(self._module, name, None)

    def fail(self, problem: str, advice: str, error: BaseException | None = None) -> NoReturn:
        """Raises a `WorkloadFileError`, at the line of the file that an exception came from."""
        line = None
        if isinstance(error, SyntaxError) and error.filename == self._file.path:
            line = error.lineno
        elif error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            line = next((f.lineno for f in frames[::-1] if f.filename == self._file.path), None)
        raise WorkloadFileError(self._file.path, problem, advice, line) from error

    def _execute(self) -> types.ModuleType:
        module = types.ModuleType(f"_workload_{self._file.sha256[:16]}_{self.preset}")
        module.__file__ = self._file.path
        wide = jax.config.jax_enable_x64
        try:
            code = compile(self._file.text, self._file.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            self.fail(f"it is not valid Python: {error}", "Correct it", error)
        sys.modules[module.__name__] = module  # dataclasses look their module up
        try:
            with _own_surroundings():
                exec(code, module.__dict__)
        except (Exception, SystemExit) as error:
            self.fail(
                f"running it raises {_first_line(error)}",
                "It must be one self-contained file that only defines things",
                error,
            )
        if jax.config.jax_enable_x64 != wide:
            jax.config.update("jax_enable_x64", wide)
            self.fail("it switches jax to 64 bits", "TPUs have no float64; use float32 or bfloat16")
        return module

    def _config(self) -> dict[str, Any]:
        config = getattr(self._module, "CONFIG", None)
        if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
            self.fail(
                "it defines no dict `CONFIG` with text as keys",
                "Define `CONFIG = {...}` at the top level with the sizes and constants",
            )
        return config

    def _accepted(self) -> tuple[str, ...]:
        signature = inspect.signature(self._module.create_inputs)
        given = tuple(n for n in ("dtype", "seed", "key") if n in signature.parameters)
        try:
            signature.bind(**dict.fromkeys(given))
        except TypeError as error:
            self.fail(
                f"`create_inputs` cannot be called with ({', '.join(given)}): {error}",
                "It may take `dtype` and one of `seed` and `key`; others need a default",
            )
        return given

    # ------------------------------------------------------------------------------- inputs

    def _create(self, seed: int) -> list[Any]:
        """Calls `create_inputs` and checks what it returns."""
        makers = {
            "dtype": lambda: jnp.bfloat16,
            "seed": lambda: seed,
            "key": lambda: jax.random.PRNGKey(seed),
        }
        with _own_surroundings():
            given = {name: makers[name]() for name in self._create_arguments}
            result = self._module.create_inputs(**given)
        if not isinstance(result, (tuple, list)):
            self.fail(
                f"`create_inputs` returns a {type(result).__name__}", "Return a tuple of arrays"
            )
        self._check_leaves(result)
        return list(result)

    def _check_leaves(self, leaves: Sequence[Any]) -> None:
        """Whether inputs are arrays of types that a TPU has, and then Python ints."""
        numbers = False
        for index, leaf in enumerate(leaves):
            what = f"input {index} of `create_inputs` is"
            if type(leaf) is int:
                numbers = True
                continue
            if not isinstance(leaf, (np.ndarray, jax.Array)):
                self.fail(
                    f"{what} a {type(leaf).__name__}",
                    "Inputs are arrays, then Python ints; put other constants into CONFIG",
                )
            if numbers:
                self.fail(f"{what} an array after a Python int", "Put the ints last")
            dtype = leaf.dtype
            if not isinstance(dtype, np.dtype):
                self.fail(f"{what} an array of {dtype}", "Pass jax.random.key_data(key) instead")
            if dtype in (np.float64, np.complex128, np.complex64):
                self.fail(f"{what} an array of {dtype}", "TPUs have float32 and bfloat16; cast it")
        if not leaves or type(leaves[0]) is int:
            self.fail("`create_inputs` returns no array", "Return a tuple of arrays")

    def describe(self) -> tuple[list[ArraySpec], list[int]]:
        """Shapes and dtypes of the arrays, and the ints after them.

        The arrays are not made, which would start this process's accelerator, unless jax cannot
        trace `create_inputs`.
        """
        numbers: list[int] = []

        def arrays() -> list[Any]:
            leaves = self._create(0)
            numbers[:] = [leaf for leaf in leaves if type(leaf) is int]
            return leaves[: len(leaves) - len(numbers)]

        def attempt() -> tuple[Any, list[bytes]]:
            try:
                # Not `arrays` itself: jax would not call it a second time.
                jaxpr, shapes = jax.make_jaxpr(lambda: arrays(), return_shape=True)()
                return shapes, [str(jaxpr.jaxpr).encode(), *map(_bytes, jaxpr.consts)]
            except WorkloadFileError:
                raise
            except Exception:
                made = arrays()
                narrow = jax.dtypes.canonicalize_dtype
                shapes = [jax.ShapeDtypeStruct(a.shape, narrow(a.dtype)) for a in made]
                return shapes, [*map(_bytes, made)]

        try:
            (shapes, first), (_, again) = attempt(), attempt()
        except WorkloadFileError:
            raise
        except Exception as error:
            self.fail(
                f"`create_inputs` raises {_first_line(error)} at preset {self.preset}",
                f"It is called with ({', '.join(self._create_arguments)})",
                error,
            )
        if first != again:  # other processes must draw the same inputs
            self.fail(
                "`create_inputs` returns other values each time it is called",
                "Seed its generator, or take an argument `seed` or `key` and draw from that",
            )
        return [ArraySpec(tuple(s.shape), str(s.dtype)) for s in shapes], numbers

    def arrays(self, seed: int = 0) -> tuple[np.ndarray, ...]:
        """The arrays that `create_inputs` makes."""
        return tuple(np.asarray(leaf) for leaf in self._create(seed) if type(leaf) is not int)

    # ----------------------------------------------------------------------------- workload

    def names(self, count: int) -> list[str]:
        """Names of the first `count` arguments of `workload`."""
        signature = inspect.signature(self._module.workload)
        try:
            signature.bind(*range(count))
        except TypeError as error:
            self.fail(
                f"`workload{signature}` cannot be called with the {count} inputs that "
                f"`create_inputs` returns: {error}",
                "Return as many inputs as it has arguments",
            )
        names: list[str] = []
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                names += [f"{name}_{i}" for i in range(len(names), count)]
            elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                names.append(name)
        return names[:count]

    def call(self, *inputs: Any) -> Any:
        """Calls `workload`."""
        with _own_surroundings():
            return self._module.workload(*inputs)

    def trace(self, specs: Sequence[ArraySpec], numbers: Sequence[int]) -> tuple[Any, Any]:
        """Traces `workload`: its jaxpr, and its result with shapes in place of arrays."""
        abstract = [jax.ShapeDtypeStruct(s.shape, s.np_dtype) for s in specs]
        where = f"at preset {self.preset}"
        try:
            make = jax.make_jaxpr(lambda *arrays: self.call(*arrays, *numbers), return_shape=True)
            closed, shapes = make(*abstract)
            return closed.jaxpr, shapes
        except _VALUE_ERRORS as error:
            self.fail(
                f"`workload` looks at values while jax traces it {where} ({_first_line(error)})",
                "Shapes and control flow may depend on shapes and CONFIG only; use masks, "
                "jnp.where or lax.cond",
                error,
            )
        except Exception as error:
            self.fail(
                f"`workload` raises {_first_line(error)} {where}",
                "It must run under jax.jit on what create_inputs returns",
                error,
            )


def _bytes(array: Any) -> bytes:
    return np.asarray(array).tobytes()


def _first_line(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first[:300]}"
