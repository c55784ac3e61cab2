"""Compiles and prices over 200 variants of seven kernels; results and plots in docs/variants/.

    python scripts/study_variants.py run [--only matmul,softmax]   compile and price what is missing
    python scripts/study_variants.py reprice                       price the kept dumps again
    python scripts/study_variants.py static                        against libtpu's static profile
    python scripts/study_variants.py plot                          PNGs and tables

A killed run continues where it stopped. Dumps are kept in the cache directory.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import click

from jaxbench_env.progress import progress_bar
from variants import plots, static
from variants import run as variants
from variants.space import SPACE

FOLDER = Path(__file__).parents[1] / "docs" / "variants"


def _chosen(only: str) -> list[tuple[str, dict]]:
    names = [name for name in only.split(",") if name] or list(SPACE)
    unknown = sorted(set(names) - SPACE.keys())
    if unknown:
        raise click.BadParameter(f"no kernel {', '.join(unknown)}; there are {', '.join(SPACE)}")
    return [(name, parameters) for name in names for parameters in SPACE[name]]


def _stale(record: dict) -> bool:
    return record["text"] != variants.text_hash(record["kernel"])


def _summary(results: variants.Results, as_json: bool) -> None:
    statuses: dict[str, dict[str, int]] = {}
    for record in results.records.values():
        counts = statuses.setdefault(record["kernel"], {})
        counts[record["status"]] = counts.get(record["status"], 0) + 1
    if as_json:
        click.echo(json.dumps(statuses))
        return
    for kernel, counts in sorted(statuses.items()):
        click.echo(f"{kernel}: " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))


@click.group()
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Results go here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def main(context: click.Context, folder: Path, as_json: bool) -> None:
    """Study predicted times among variants of one kernel."""
    context.obj = (folder, as_json)


@main.command("run")
@click.option("--only", default="", help="Comma-separated kernels.")
@click.pass_obj
def run_command(obj: tuple[Path, bool], only: str) -> None:
    """Compile and price the variants that have no result for today's kernel text."""
    folder, as_json = obj
    results = variants.Results(folder / "results.jsonl")
    todo = []
    for kernel, parameters in _chosen(only):
        record = results.get(kernel, parameters)
        if record is None or _stale(record):
            todo.append((kernel, parameters))
    with progress_bar(len(todo), "compiling") as advance:
        for kernel, parameters in todo:
            archive = variants.dump_path(kernel, parameters)
            record = {"kernel": kernel, "parameters": parameters}
            record["text"] = variants.text_hash(kernel)
            record |= variants.compile_variant(kernel, parameters, keep=archive)
            if record["status"] == "compiled":
                record |= variants.price(kernel, parameters)
            results.append({**record, "made_with": variants.provenance()})
            advance(f", {kernel} {' '.join(map(str, parameters.values()))}")
    results.rewrite()
    _summary(results, as_json)


@main.command("reprice")
@click.option("--only", default="", help="Comma-separated kernels.")
@click.pass_obj
def reprice_command(obj: tuple[Path, bool], only: str) -> None:
    """Price the kept dumps with today's predictor."""
    folder, as_json = obj
    results = variants.Results(folder / "results.jsonl")
    chosen = [
        one
        for one in _chosen(only)
        if (record := results.get(*one)) is not None and record["status"] == "compiled"
    ]
    with progress_bar(len(chosen), "pricing") as advance:
        for kernel, parameters in chosen:
            record = results.get(kernel, parameters)
            record |= variants.price(kernel, parameters)
            record["made_with"] = variants.provenance()
            advance(f", {kernel}")
    results.rewrite()
    _summary(results, as_json)


@main.command("static")
@click.option("--only", default="", help="Comma-separated kernels.")
@click.pass_obj
def static_command(obj: tuple[Path, bool], only: str) -> None:
    """Compare the replay with libtpu's static profile, one variant of each kernel in turn."""
    folder, as_json = obj
    compared = variants.Results(folder / "static.jsonl")
    names = {kernel for kernel, _ in _chosen(only)}
    ranks = {kernel: itertools.count() for kernel in SPACE}
    todo = [one for one in static.wanted() if one[0] in names]
    todo.sort(key=lambda one: next(ranks[one[0]]))
    todo = [one for one in todo if (known := compared.get(*one)) is None or _stale(known)]
    with progress_bar(len(todo), "profiling") as advance:
        for kernel, parameters in todo:
            record = {"kernel": kernel, "parameters": parameters}
            record["text"] = variants.text_hash(kernel)
            record |= static.compare(kernel, parameters)
            compared.append({**record, "made_with": variants.provenance()})
            advance(f", {kernel} {' '.join(map(str, parameters.values()))}")
    compared.rewrite()
    _summary(compared, as_json)


@main.command("plot")
@click.option("--only", default="", help="Comma-separated kernels.")
@click.pass_obj
def plot_command(obj: tuple[Path, bool], only: str) -> None:
    """Draw one PNG a kernel, and write the tables."""
    folder, as_json = obj
    results = variants.Results(folder / "results.jsonl")
    names = dict.fromkeys(kernel for kernel, _ in _chosen(only))
    paths = []
    with progress_bar(len(names), "drawing") as advance:
        for kernel in names:
            paths.append(str(plots.draw(kernel, results, folder)))
            advance(f", {kernel}")
    tables = folder / "tables.md"
    compared = variants.Results(folder / "static.jsonl")
    tables.write_text(plots.tables(results, compared))
    click.echo(json.dumps([*paths, str(tables)]) if as_json else f"wrote {folder}")


if __name__ == "__main__":
    main()
