"""Predicted times of the matrix products that jax's Pallas guide timed on a TPU v5e.

    python scripts/published_v5e.py [--json]

The guide (https://docs.jax.dev/en/latest/pallas/tpu/matmul.html, output of its cells) gives
wall times of `timeit`, each with what Python takes to start a program. That is read off the three
products of 1024, which take a tenth of it, and subtracted. The table is in docs/targets.md.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable

import click
import jax
import jax.numpy as jnp
from jax import export
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from rich.console import Console
from rich.table import Table

from jaxbench_env.evaluator.build import DEVICE_KINDS, build
from jaxbench_env.progress import progress_bar

Blocks = tuple[int, int, int]

#: Milliseconds by blocks (rows, contraction, columns; None is XLA's product) and size.
PUBLISHED: dict[tuple[Blocks | None, int], float] = {
    ((128, 128, 128), 1024): 0.29766598949208854,
    ((128, 128, 128), 4096): 11.771515250438824,
    ((128, 128, 128), 8192): 91.83577066054567,
    ((512, 1024, 1024), 1024): 0.12708659982308746,
    ((512, 1024, 1024), 4096): 0.88908776990138,
    ((512, 1024, 1024), 8192): 6.099433819763363,
    (None, 1024): 0.11943008983507753,
    (None, 4096): 0.8272899803705514,
    (None, 8192): 6.047147869830951,
}
SMALL = 1024


def product(blocks: Blocks) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A blocked product of bfloat16 matrices with a float32 accumulator, as in the guide."""

    def body(x, y, out, total):
        step = pl.program_id(2)

        @pl.when(step == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

        @pl.when(step == pl.num_programs(2) - 1)
        def _():
            out[...] = total[...].astype(out.dtype)

    def multiply(x, y):
        m, k, n = blocks
        (rows, inner), columns = x.shape, y.shape[1]
        return pl.pallas_call(
            body,
            grid=(rows // m, columns // n, inner // k),
            in_specs=[
                pl.BlockSpec((m, k), lambda i, j, s: (i, s)),
                pl.BlockSpec((k, n), lambda i, j, s: (s, j)),
            ],
            out_specs=pl.BlockSpec((m, n), lambda i, j, s: (i, j)),
            out_shape=jax.ShapeDtypeStruct((rows, columns), x.dtype),
            scratch_shapes=[pltpu.VMEM((m, n), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary")
            ),
        )(x, y)

    return multiply


def artefact(function: Callable, size: int, target: str = "v5e", cores: int = 1) -> bytes:
    """A TPU artefact of a function of two square bfloat16 matrices."""
    device = jax.sharding.AbstractDevice(DEVICE_KINDS[target], cores, "tpu")
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((1,), ("x",), auto, abstract_device=device)
    matrix = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    with jax.sharding.use_abstract_mesh(mesh):
        return export.export(jax.jit(function), platforms=["tpu"])(matrix, matrix).serialize()


@functools.cache
def predicted_ms(blocks: Blocks | None, size: int) -> float:
    """Predicted milliseconds.

    Raises:
        AssertionError: If the replay could not follow the program.
    """
    function = jnp.matmul if blocks is None else product(blocks)
    built = build(artefact(function, size), "v5e")
    assert built.prediction is not None and not built.prediction["uncertain"], built
    return built.prediction["ms"]


def start_ms() -> float:
    """What starting a program took in the published times, milliseconds."""
    small = [key for key in PUBLISHED if key[1] == SMALL]
    return statistics.median(PUBLISHED[key] - predicted_ms(*key) for key in small)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(as_json: bool) -> None:
    """Compiles and prices the nine products."""
    with progress_bar(len(PUBLISHED), "products", None) as advance:
        for key in PUBLISHED:
            predicted_ms(*key)
            advance("")
    start, rows = start_ms(), []
    for (blocks, size), published in PUBLISHED.items():
        ms = predicted_ms(blocks, size)
        rows.append(
            {
                "program": "XLA" if blocks is None else f"blocks {'x'.join(map(str, blocks))}",
                "size": size,
                "published_ms": published,
                "published_without_start_ms": published - start,
                "predicted_ms": ms,
                "ratio": ms / (published - start),
            }
        )
    if as_json:
        click.echo(json.dumps({"start_ms": start, "rows": rows}, indent=2))
        return
    table = Table("program", "size", "published ms", "without start", "predicted ms", "ratio")
    for row in rows:
        numbers = [row[name] for name in list(row)[2:]]
        table.add_row(row["program"], str(row["size"]), *(f"{n:.3f}" for n in numbers))
    Console().print(table)
    click.echo(f"Starting a program took {start:.3f} ms.")


if __name__ == "__main__":
    main()
