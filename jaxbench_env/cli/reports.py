"""The command that reports on rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxbench_env.progress import progress_bar

if TYPE_CHECKING:
    from jaxbench_env.report import Run


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for report.md, report.html, CSV and PNG files [default: Markdown is printed].",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def report(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Report on RUNS, directories of `jaxbench rollout`, which may still be growing.

    Correctness, solved workloads, speedups, fast_p, pass@k, kinds of mistakes and progress over
    samples, beside the published figures. Runs that differ in their seed alone are one row.
    Records of different protocols, compilers, targets or time sources are refused, and so are
    synthetic rows beside a model's.
    """
    from jaxbench_env.report import ReportError, markdown, summarise, write

    try:
        with progress_bar(len(runs), "reading") as advance:
            found = []
            for folder in dict.fromkeys(path.resolve() for path in runs):
                found.append(_read(folder, _name(folder, runs)))
                advance("")
        summary = summarise(found)
    except ReportError as error:
        raise click.UsageError(str(error)) from None
    for note in summary["notes"]:
        click.echo(note, err=True)
    if out is not None:
        try:
            files, problem = write(found, summary, out)
        except OSError as error:
            raise click.UsageError(f"cannot write {out}: {error.strerror}") from None
        if problem:
            click.echo(problem, err=True)
        if not as_json:
            click.echo("\n".join(str(out / name) for name in files))
    elif not as_json:
        click.echo(markdown(summary), nl=False)
    if as_json:
        click.echo(json.dumps(summary, indent=2))


def _name(folder: Path, runs: tuple[Path, ...]) -> str:
    """A run's directory; with those above it where two have one name."""
    folders = {path.resolve() for path in runs}
    same = [other for other in folders if other.name == folder.name]
    return folder.name if len(same) == 1 else str(folder)


def _read(folder: Path, name: str) -> Run:
    """Reads a rollout's directory.

    Raises:
        ReportError: If it holds no rollout, or one that cannot be read.
    """
    from baselines.rollout import records
    from jaxbench_env.report import ReportError, read

    run = records.Run(folder)
    try:
        lines: dict[str, Any] = {kind: list(run.lines(kind)) for kind in records.FILES}
        return read(
            name,
            run.settings,
            lines["candidates"],
            lines["finals"],
            lines["calls"],
            run.source,
            [
                f"{kind}.jsonl ends in an unfinished line, which was passed over"
                for kind in records.FILES
                if _torn(folder / f"{kind}.jsonl")
            ],
        )
    except records.RecordsError as error:
        raise ReportError(str(error)) from None
    except OSError as error:
        raise ReportError(f"cannot read {folder}: {error.strerror}") from None


def _torn(path: Path) -> bool:
    data = path.read_bytes()[-1:] if path.exists() else b""
    return data not in (b"", b"\n")
