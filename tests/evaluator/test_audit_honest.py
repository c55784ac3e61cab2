"""Texts that a person would write, none of which may be turned away."""

import ast
import importlib
import textwrap
import types
import warnings
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbench_env.evaluator.audit import Finding, audit, names, removed_names
from jaxbench_env.evaluator.audit.parse import parse

HEAD = """\
from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

"""

HONEST = {
    "tiled matmul with an accumulator": '''
    def kernel(a_ref, b_ref, o_ref, acc_ref, *, steps):
        """Multiplies one pair of blocks."""

        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == steps - 1)
        def _store():
            o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    @functools.partial(jax.jit, static_argnames=("bm", "bn", "bk"))
    def matmul(a, b, *, bm=512, bn=1024, bk=512):
        (m, k), (_, n) = a.shape, b.shape
        return pl.pallas_call(
            functools.partial(kernel, steps=k // bk),
            grid=(m // bm, n // bn, k // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, s: (i, s)),
                pl.BlockSpec((bk, bn), lambda i, j, s: (s, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, s: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"),
                vmem_limit_bytes=100 * 1024 * 1024,
            ),
            cost_estimate=pl.CostEstimate(
                flops=2 * m * n * k, bytes_accessed=2 * (m * k + k * n + m * n), transcendentals=0
            ),
            name=f"matmul_{bm}x{bn}x{bk}",
        )(a, b)

    def workload(A, B):
        return matmul(A, B)
    ''',
    "manual DMA with two buffers": """
    def kernel(x_hbm, o_hbm, buffer, sems, *, rows):
        def copy(slot, i):
            return pltpu.make_async_copy(
                x_hbm.at[pl.ds(i * rows, rows)], buffer.at[slot], sems.at[slot]
            )

        copy(0, 0).start()

        def body(i, _):
            slot = lax.rem(i, 2)

            @pl.when(i + 1 < pl.num_programs(0))
            def _():
                copy(1 - slot, i + 1).start()

            copy(slot, i).wait()
            buffer[slot] = buffer[slot] * 2
            target = o_hbm.at[pl.ds(i * rows, rows)]
            out = pltpu.make_async_copy(buffer.at[slot], target, sems.at[2])
            out.start()
            out.wait()
            return _

        lax.fori_loop(0, 4, body, None)

    def workload(x):
        return pl.pallas_call(
            functools.partial(kernel, rows=x.shape[0] // 4),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pltpu.MemorySpace.HBM),
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[
                pltpu.VMEM((2, x.shape[0] // 4, x.shape[1]), x.dtype),
                pltpu.SemaphoreType.DMA((3,)),
            ],
        )(x)
    """,
    "emit_pipeline": """
    def workload(x, y):
        def outer(x_hbm, y_hbm, o_hbm):
            def inner(x_vmem, y_vmem, o_vmem):
                o_vmem[...] = x_vmem[...] + y_vmem[...]

            spec = pl.BlockSpec((256, 512), lambda i, j: (i, j))
            pltpu.emit_pipeline(
                inner, grid=(4, 4), in_specs=[spec, spec], out_specs=[spec],
                dimension_semantics=(pltpu.PARALLEL, pltpu.ARBITRARY),
            )(x_hbm, y_hbm, o_hbm)

        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            outer, in_specs=[anywhere] * 2, out_specs=anywhere,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        )(x, y)
    """,
    "scalar prefetch": """
    def kernel(lengths_ref, x_ref, o_ref):
        i = pl.program_id(0)
        rows = lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        o_ref[...] = jnp.where(rows < lengths_ref[i], x_ref[...], 0)

    def workload(x, lengths):
        grid_spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(x.shape[0] // 128,),
            in_specs=[pl.BlockSpec((128, 128), lambda i, lengths: (lengths[i] // 128, 0))],
            out_specs=pl.BlockSpec((128, 128), lambda i, lengths: (i, 0)),
        )
        return pl.pallas_call(kernel, grid_spec=grid_spec, out_shape=x)(lengths, x)
    """,
    "dataclasses": """
    import dataclasses
    from dataclasses import dataclass, field

    @dataclass(frozen=True)
    class Tiling:
        bm: int = 256
        bn: int = 256
        order: tuple[int, ...] = field(default=(0, 1))

        def __post_init__(self):
            assert self.bm % 8 == 0, f"bm={self.bm!r} is no multiple of 8"

        @property
        def area(self) -> int:
            return self.bm * self.bn

    class Params:
        def __init__(self, tiling, **rest):
            super().__init__()
            self.tiling, self._rest = tiling, dict(rest)

        def __call__(self, x):
            return x * self._rest.get("factor", 1)

    def workload(x):
        params = Params(dataclasses.replace(Tiling(), bm=128), factor=2)
        params.name = "changed"
        return params(x)
    """,
    "named tuples and enums": """
    import enum
    import typing
    from collections import namedtuple
    from typing import Any, NamedTuple

    Point = namedtuple("Point", "x y")

    class Mode(enum.Enum):
        FAST = enum.auto()

    class Block(NamedTuple):
        size: int
        extra: Any = None

    if typing.TYPE_CHECKING:
        from collections.abc import Callable

    def workload(x: jax.Array, f: Callable | None = None) -> jax.Array:
        block = Block(8)._replace(size=16)
        return x * block.size if Mode.FAST is Mode.FAST else x
    """,
    "cond and switch": """
    def workload(x, flag):
        y = lax.cond(flag[0] > 0, lambda v: v * 2, lambda v: v, x)
        return lax.switch(0, [lambda v: v, jnp.negative], y)
    """,
    "library math in a kernel": """
    def kernel(x_ref, o_ref):
        x = x_ref[...].astype(jnp.float32)
        y = jax.nn.gelu(x, approximate=False) + jax.nn.softmax(x, axis=-1)
        y = jnp.where(x > 0, y, jax.scipy.special.erf(x)) * lax.rsqrt(jnp.float32(2))
        o_ref[...] = jax.nn.silu(y).astype(jnp.bfloat16)

    def workload(x):
        spec = pl.BlockSpec((256, x.shape[1]), lambda i: (i, 0), pipeline_mode=pl.Buffered(2))
        return pl.pallas_call(
            kernel, grid=(pl.cdiv(x.shape[0], 256),), in_specs=[spec], out_specs=spec, out_shape=x
        )(x)
    """,
    "pl.kernel on a mesh": """
    def workload(x):
        mesh = pltpu.create_tensorcore_mesh("core")

        @functools.partial(pl.kernel, out_shape=x, mesh=mesh)
        def run(x_hbm, o_hbm):
            pl.run_scoped(
                lambda sem: pltpu.async_copy(x_hbm, o_hbm, sem).wait(), pltpu.SemaphoreType.DMA
            )

        return run(x)
    """,
    "core_map": """
    def workload(x):
        mesh = pltpu.create_tensorcore_mesh("core", num_cores=1)

        def inner(refs):
            x_ref, y_ref = refs

            @pl.core_map(mesh)
            def _():
                pltpu.sync_copy(x_ref, y_ref)

        _, y = pl.run_state(inner)((x, jnp.empty_like(x)))
        return y
    """,
    "aliased output": """
    def kernel(x_ref, y_ref, o_ref):
        del y_ref
        o_ref[...] = x_ref[...]

    def workload(x, y):
        return pl.pallas_call(
            kernel, out_shape=jax.ShapeDtypeStruct.from_array(y)
            if False else jax.ShapeDtypeStruct(y.shape, y.dtype), input_output_aliases={1: 0},
        )(x, y)
    """,
    "wrapped helper": """
    def logged(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            return f(*args, **kwargs)

        return inner

    @functools.lru_cache(maxsize=None)
    def block(n):
        return next(b for b in (512, 256, 128) if n % b == 0)

    @logged
    def workload(x):
        return x[: block(x.shape[0])]
    """,
    "local names of builtins": """
    def kernel(input, output, *, id=0):
        for dir in range(2):
            output[dir] = input[dir] + id

    def workload(input):
        vars = [input for input in (input,)]
        return vars[0]
    """,
    "CONFIG": """
    BLOCK = 256
    EPS = CONFIG["eps"]
    HEADS = CONFIG.get("H", 1)

    def workload(x, scale):
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * scale * HEADS
    """,
    "numpy tables and maths": """
    import itertools
    import math
    import operator
    from functools import reduce

    import numpy as np

    TABLE = np.tril(np.ones((128, 128), np.float32)) * math.sqrt(2)
    SIZE = reduce(operator.mul, (1, 2, 3))
    PAIRS = [*itertools.product(range(2), repeat=2)]

    def workload(x):
        return x @ jnp.asarray(TABLE, dtype=x.dtype) / float(np.finfo(np.float32).eps > 0)
    """,
    "custom gradient": """
    @jax.custom_vjp
    def f(x):
        return x

    def forward(x):
        return x, None

    def backward(_, g):
        return (g,)

    f.defvjp(forward, backward)

    def workload(x):
        with jax.named_scope("workload"), jax.default_matmul_precision("highest"):
            return jax.vmap(f)(x)
    """,
    "format of a literal and printing": """
    def workload(x):
        name = "{}x{:>4d}".format(*x.shape) + "%s" % x.dtype
        print("tracing", name)
        return x

    if __name__ == "__main__":
        print(workload(jnp.ones((8, 128))))
    """,
    "errors and matching": """
    def workload(x):
        match x.shape:
            case (rows, columns) if rows > columns:
                return x
            case [*_]:
                pass
        try:
            assert x.ndim == 2
        except AssertionError as error:
            raise ValueError(f"two axes wanted: {x.shape=}") from error
        if not isinstance(x, jax.Array) or type(x) is int:
            raise NotImplementedError
        return x
    """,
    "aliases of modules": """
    np = jnp
    dot = jnp.dot
    nn = jax.nn

    def workload(x):
        lin = jnp.linalg
        return nn.relu(dot(x, x)) + np.zeros(()) + lin.norm(x)
    """,
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_text_passes(name):
    text = HEAD + textwrap.dedent(HONEST[name])
    ast.parse(text)
    assert audit(text) is None


def test_every_kernel_of_ours_passes():
    folder = resources.files("baselines.kernels")
    for file in folder.iterdir():
        if file.name.endswith(".py") and file.name != "__init__.py":
            assert audit(file.read_text("utf-8")) is None, file.name


@settings(deadline=None)
@given(st.text() | st.text(alphabet="()[]{}'\"\\\n \t#:,.=-+fx0_@\0\ud800lambda"))
def test_any_text_gets_a_verdict(text):
    found = audit(text)
    assert found is None or isinstance(found, Finding)
    assert isinstance(removed_names(text), list)


snippets = st.sampled_from(
    [
        "import jax as a",
        "b = a",
        "a = b.numpy",
        "global a, b",
        "def f(a, b=a, *c, **d): return a.b",
        "class a(b, c=d): e = f",
        "with a as b.c: pass",
        "for a in b: a.c = d",
        "[a for a in b if a.c for c in a]",
        "match a:\n    case b.c(d=e) | {'x': _, **f}: pass",
        "try: a\nexcept b as c: del c.d",
        "lambda a=b, *c: (a := c).d",
        "from jax import numpy as b, lax",
        "a[b].c += f'{d.e!r:{f}}'",
        "def workload(x): return x",
        "async def a(b: c) -> d:\n    nonlocal_ = [e async for e in f]",
        "import jax.numpy",
    ]
)


@settings(deadline=None)
@given(st.lists(snippets, max_size=8).map("\n".join))
def test_any_program_gets_a_verdict(text):
    assert audit(text) is None or audit(text).message


@settings(deadline=None)
@given(st.text(alphabet="ab()[]{}'\"\\\n#.+-:, f", max_size=60))
def test_what_the_parser_takes_we_take(text):
    """The scan for depth must never refuse what is not deep, nor change what is parsed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = ast.dump(ast.parse(text))
        except SyntaxError:
            expected = None
    try:
        got = ast.dump(parse(text))
    except SyntaxError:
        got = None
    assert got == expected


@pytest.mark.parametrize(
    "text",
    [
        "x = (" + "1, " * 20_000 + ")",
        "x = [\n" + "    [1.5, -2.5],\n" * 5_000 + "]",
        "x = 1\n" * 20_000,
        "x = " + " + ".join(["y"] * 300),
        "x = {\n" + "    'a': -1,\n" * 5_000 + "}",
    ],
)
def test_long_is_not_deep(text):
    parse(text)


def test_numeric_modules_lead_to_no_other_module():
    """Members of the open-ended modules must not be modules outside the table."""
    for path, rule in names.MODULES.items():
        if not isinstance(rule, names.AllBut):
            continue
        module = importlib.import_module(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            members = {name: getattr(module, name, None) for name in dir(module)}
        for name, member in members.items():
            if isinstance(member, types.ModuleType) and rule.allows(name):
                assert member.__name__.startswith("jax.") and "_src" not in member.__name__


def test_listed_members_exist():
    """A misspelt name in the closed lists would be refused for ever."""
    for path, rule in names.MODULES.items():
        if isinstance(rule, names.Only):
            module = importlib.import_module(path)
            missing = [name for name in rule.names if not hasattr(module, name)]
            assert not missing, path


USES_REMOVED = """
import jax.experimental.pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.tpu import TPUMemorySpace as Space

params = pltpu.TPUCompilerParams(dimension_semantics=("parallel",))

def kernel(x_ref, o_ref):
    pl.store(o_ref, (slice(None),), pltpu.repeat(pl.load(x_ref, (slice(None),)), 2, 1))

def workload(x):
    return pl.pallas_call(kernel, in_specs=[pl.BlockSpec(memory_space=pltpu.ANY)])(x)
"""


def test_removed_names_are_hinted_at_and_not_rejected():
    assert audit(USES_REMOVED) is None
    hints = removed_names(USES_REMOVED)
    assert [hint.split()[0] for hint in hints] == [
        "pl.load",
        "pl.store",
        "pltpu.ANY",
        "pltpu.TPUCompilerParams",
        "pltpu.TPUMemorySpace",
        "pltpu.repeat",
    ]
    assert any("use pltpu.CompilerParams" in hint for hint in hints)
    assert any("use pl.ANY" in hint for hint in hints)


def test_names_that_exist_get_no_hint():
    text = "from jax.experimental.pallas import tpu as pltpu\nx = pltpu.CompilerParams, pltpu.VMEM"
    assert removed_names(text) == []
    assert removed_names("x.TPUCompilerParams, pl.load") == []
    assert removed_names("not python") == []


@pytest.mark.parametrize("path", [p for p in names.REMOVED if "TPU" in p or p.endswith(".ANY")])
def test_replacements_of_removed_names_exist(path):
    short = names.REMOVED[path].split("(")[0].split()[0]
    module = names.PALLAS_TPU if short.startswith("pltpu.") else names.PALLAS
    assert hasattr(importlib.import_module(module), short.split(".")[1])
    assert not hasattr(importlib.import_module(names.PALLAS_TPU), path.rpartition(".")[2])
