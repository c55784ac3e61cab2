"""The commands. Exit codes: 0 correct, 1 not correct, 2 usage, 3 the evaluator failed."""

from __future__ import annotations

import codecs
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import click

import workloads
from jaxbench_env.cli import reports, rollouts, shared
from jaxbench_env.evaluator.result import EvalResult, Status

EXIT_NOT_CORRECT, EXIT_EVALUATOR, EXIT_INTERRUPTED = 1, 3, 130
LONG_SECONDS = 30

_SEED = click.IntRange(min=0)
_target = click.option(
    "--target",
    type=click.Choice(list(workloads.TARGETS)),
    default="v6e",
    show_default=True,
    help="The chip.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


class _WorkloadId(click.ParamType):
    """A workload's id, number or upstream name, or the path of a file that defines one."""

    name = "workload"

    def convert(self, value: Any, param: Any, ctx: Any) -> workloads.Workload:
        """Finds the workload."""
        try:
            return workloads.get(value) if isinstance(value, str) else value
        except (workloads.UnknownWorkload, workloads.WorkloadFileError) as error:
            self.fail(str(error), param, ctx)


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2))


class _Main(click.Group):
    """Commands whose unexpected errors and interrupts have exit codes of their own."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command."""
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": True})
        except Exception:
            traceback.print_exc()
            sys.exit(EXIT_EVALUATOR)

    def invoke(self, ctx: click.Context) -> Any:
        """Invokes a command; an interrupt is no verdict."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            sys.exit(EXIT_INTERRUPTED)


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="jaxbench-env", prog_name="jaxbench")
def main() -> None:
    """Evaluate Pallas TPU kernels: compiled, checked and timed without a TPU."""


main.add_command(shared.cache)
main.add_command(shared.service)
main.add_command(rollouts.rollout)
main.add_command(reports.report)


@main.command("list")
@click.option("--family", help="Only workloads of this family.")
@click.option("--sort", default="number", show_default=True, help="Column to sort by.")
@_target
@_as_json
def list_workloads(family: str | None, sort: str, target: str, as_json: bool) -> None:
    """List the workloads: work, traffic, roofline, published and predicted times."""
    from jaxbench_env.cli import listing

    try:
        rows = listing.rows(family, sort, target)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        _print_json(rows)
    else:
        listing.show(rows)


@main.group()
def audit() -> None:
    """Check that verdicts can be trusted."""


@audit.command("workloads")
@click.option("--only", default="", help="Comma-separated ids.")
@click.option("--seed", type=_SEED, default=0, show_default=True, help="Seed of the inputs.")
@click.option(
    "--preset",
    type=click.Choice(["varied", "tiles"]),
    default="varied",
    show_default=True,
    help="Sizes; tiles takes several times as long.",
)
@_as_json
def audit_workloads(only: str, seed: int, preset: str, as_json: bool) -> None:
    """Hold kernels that do less than the whole operator against every workload's inputs.

    None of them may pass; the exit code is 1 if one does.
    """
    from jaxbench_env.cli import audits

    try:
        chosen = [workloads.get(name) for name in filter(None, only.split(","))]
    except (workloads.UnknownWorkload, workloads.WorkloadFileError) as error:
        raise click.UsageError(str(error)) from None
    rows = audits.audit_workloads(chosen or list(workloads.every()), seed, preset)
    if as_json:
        _print_json(rows)
    else:
        audits.show(rows)
    sys.exit(EXIT_NOT_CORRECT if any(row["passing"] for row in rows) else 0)


@audit.command("evaluator")
@click.option(
    "--corpus",
    type=click.Path(path_type=Path),
    default=Path("tests/exploits"),
    show_default=True,
    help="Folder of exploits; a checkout has one.",
)
@click.option("--only", default="", help="Comma-separated names or classes.")
@click.option("--fast", is_flag=True, help="No further than without the audit.")
@_as_json
def audit_evaluator(corpus: Path, only: str, fast: bool, as_json: bool) -> None:
    """Run a corpus of exploits and show which fences stop each.

    An exploit is run with all fences, then without the one that stopped it, and so on. The exit
    code is 1 if one passes, gets another status than its file says, or is stopped by the audit
    alone.
    """
    from jaxbench_env.cli import exploits

    try:
        found = exploits.load(corpus)
    except exploits.CorpusError as error:
        raise click.UsageError(str(error)) from None
    wanted = [name for name in only.split(",") if name]
    for name in wanted:
        if not any(name in (one.name, one.name.split("/")[0]) for one in found):
            raise click.UsageError(f"no exploit or class {name!r} in {corpus}")
    chosen = [e for e in found if not wanted or {e.name, e.name.split("/")[0]} & {*wanted}]
    rows = exploits.audit(chosen, fast)
    if as_json:
        _print_json(rows)
    else:
        exploits.show(rows)
    sys.exit(EXIT_NOT_CORRECT if exploits.failures(rows) else 0)


@main.command()
@click.argument("workload", type=_WorkloadId())
@_target
@_as_json
def show(workload: workloads.Workload, target: str, as_json: bool) -> None:
    """Print the task text of WORKLOAD, an id or a path, as a policy gets it."""
    if as_json:
        _print_json({"id": workload.id, "messages": workload.messages(target)})
    else:
        click.echo(workload.task_text(target))


@main.command()
@click.argument("workload", type=_WorkloadId())
@click.option(
    "--budget",
    type=click.IntRange(min=0),
    default=30_000,
    show_default=True,
    help="Bytes of the text, at most.",
)
@_target
@_as_json
def context(workload: workloads.Workload, budget: int, target: str, as_json: bool) -> None:
    """Print what a policy is told beside the task of WORKLOAD: chip, rules, API and examples.

    As much of it as fits the budget, by relevance for the workload; docs/context.md has the rules.
    """
    from baselines.context import sections, select, text_of

    found = sections(workload, target)
    chosen = select(found, budget)
    text = text_of(chosen)
    if not as_json:
        click.echo(text, nl=False)
        return
    rows = [
        {
            "kind": section.kind,
            "name": section.name,
            "bytes": section.size,
            "relevance": round(section.relevance, 3),
            "used": section in chosen,
        }
        for section in found
    ]
    used = len(text.encode())
    _print_json(
        {"id": workload.id, "budget": budget, "bytes": used, "sections": rows, "text": text}
    )


@main.command("eval")
@click.argument("workload", type=_WorkloadId())
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option("--seed", type=_SEED, help="Seed of the secret inputs; by default from the system.")
@click.option("--allow-library-kernels", is_flag=True, help="Permit imports of finished kernels.")
@click.option(
    "--verify",
    type=click.Choice(["presets", "full"]),
    default="presets",
    show_default=True,
    help="full: compare the numbers at the published size, too (minutes, up to 12 GiB).",
)
@click.option("--no-cache", is_flag=True, help="Evaluate even if the verdict is on disk already.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write kernel and verdict to this file, a page for a browser.",
)
@_target
@_as_json
def evaluate_kernel(
    workload: workloads.Workload,
    kernel: Path,
    seed: int | None,
    allow_library_kernels: bool,
    verify: str,
    no_cache: bool,
    page: Path | None,
    target: str,
    as_json: bool,
) -> None:
    """Evaluate the file KERNEL ("-" for standard input) as an answer to WORKLOAD.

    WORKLOAD is an id, or the path of a Python file that defines CONFIG, create_inputs and workload;
    such a file is run, so give only files that you trust.
    """
    from jaxbench_env import api

    source = _read(kernel)
    _announce(workload, verify)
    result = api.evaluate(
        workload,
        source,
        seed=seed,
        target=target,
        allow_library_kernels=allow_library_kernels,
        verify=verify,
        cache=not no_cache,
    )
    if as_json:
        _print_json(result.to_dict())
    else:
        _show_result(result, source)
    if page is not None:
        from jaxbench_env.report import verdict_page

        try:
            page.write_bytes(verdict_page(workload.id, source, result))
        except OSError as error:
            raise click.UsageError(f"cannot write {page}: {error.strerror}") from None
    sys.exit(_exit_code(result))


def _announce(workload: workloads.Workload, verify: str) -> None:
    """Says on standard error how long checking the numbers will take, if it is long."""
    from jaxbench_env.evaluator.estimate import full_seconds, full_share, numerics_seconds

    if verify == "full":
        share = full_share(workload)
        part = "" if share == 1 else f", of {share:.0%} of the output"
        text = _duration(full_seconds(workload))
        click.echo(f"Checking the numbers at the published size{part} takes {text}.", err=True)

    seconds = numerics_seconds(workload)
    if seconds < LONG_SECONDS:
        return
    hint = "."
    if "v6e" in workload.check_presets:
        hint = " at the full size; declare PRESETS in the workload's file to check smaller ones."
    click.echo(f"Checking the numbers takes {_duration(seconds)}{hint}", err=True)


def _duration(seconds: float) -> str:
    return "about " + (f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min")


def _read(path: Path) -> str:
    """The kernel text; bytes that are not UTF-8 reach the audit as what they are."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    # As Python itself does, a byte order mark is passed over.
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors="surrogateescape")


def _exit_code(result: EvalResult) -> int:
    if result.status is Status.EVALUATOR_ERROR:
        return EXIT_EVALUATOR
    return 0 if result.correct else EXIT_NOT_CORRECT


def _show_result(result: EvalResult, source: str) -> None:
    from jaxbench_env.feedback import feedback

    click.echo(feedback(result, source))
    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.durations.items())
    click.echo(f"\nTook {stages}.")


@main.command()
@click.argument("workload", type=_WorkloadId())
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@click.option("--baseline", is_flag=True, help="Trace XLA's program instead of a kernel.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default="trace.json.gz",
    show_default=True,
    help="File to write; gzipped if it ends in .gz.",
)
@click.option(
    "--iterations",
    type=click.IntRange(min=1, max=10_000),
    default=8,
    show_default=True,
    help="Iterations of each loop to show before exact repetition becomes one slice.",
)
@click.option("--allow-library-kernels", is_flag=True, help="Permit imports of finished kernels.")
@_target
@_as_json
def trace(
    workload: workloads.Workload,
    kernel: Path | None,
    baseline: bool,
    output: Path,
    iterations: int,
    allow_library_kernels: bool,
    target: str,
    as_json: bool,
) -> None:
    """Write the predicted timeline of KERNEL ("-" for standard input) at WORKLOAD's full size.

    The file is for ui.perfetto.dev or chrome://tracing: programs, loop iterations, basic blocks,
    waits, slots filled and transfers. The kernel's numbers are not checked.
    """
    from jaxbench_env.cli.traces import NoTrace
    from jaxbench_env.cli.traces import trace as write

    if baseline == (kernel is not None):
        raise click.UsageError("give either the file of a kernel or --baseline")
    source = None if kernel is None else _read(kernel)
    try:
        written = write(workload, source, output, iterations, allow_library_kernels, target)
    except OSError as error:
        raise click.UsageError(f"cannot write {output}: {error.strerror}") from None
    except NoTrace as error:
        if as_json:
            _print_json({"workload": workload.id, "error": str(error)})
        else:
            click.echo(f"No timeline: {error}", err=True)
        sys.exit(EXIT_EVALUATOR if error.ours else EXIT_NOT_CORRECT)
    if as_json:
        _print_json(written)
        return
    bound = ", a bound" if written["uncertain"] else ""
    click.echo(
        f"{written['predicted_ms']:.3f} ms predicted{bound}; the timeline is in {output} "
        f"({written['bytes'] / 1e3:,.0f} kB). Open it at https://ui.perfetto.dev."
    )


@main.command()
@click.argument("workload", type=_WorkloadId())
@click.option(
    "--file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Kernel text with TUNABLES; by default the kernel of the baselines. Only files that you "
    "trust: their constraints() is run.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Points to look at.",
)
@click.option(
    "--method",
    type=click.Choice(["random", "hill", "optuna", "grid"]),
    default="hill",
    show_default=True,
    help="How to choose the next point; optuna is an extra package.",
)
@click.option("--seed", type=_SEED, default=0, show_default=True, help="Seed of the search.")
@click.option("--violations", is_flag=True, help="Evaluate points that break the constraints, too.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Add every verdict to this file of JSON lines; the same command again goes on from it.",
)
@click.option("--write", is_flag=True, help="Put the best values into the file of --file.")
@click.option("--allow-library-kernels", is_flag=True, help="Permit imports of finished kernels.")
@_target
@_as_json
def tune(workload: workloads.Workload, file: Path | None, write: bool, **options: Any) -> None:
    """Search the tunables of WORKLOAD's kernel for the fastest.

    Points with a verdict, in the file of --out or in the tables that ship, are not evaluated again.
    The exit code is 1 if no kernel is right.
    """
    from jaxbench_env.cli.tune import run

    if write and file is None:
        raise click.UsageError("--write needs --file, the file to write the best values to")
    sys.exit(0 if run(workload, file, write=write, **options) else EXIT_NOT_CORRECT)


@main.command()
@_as_json
def demo(as_json: bool) -> None:
    """Step three attempts at mamba2_scan: an API mistake, a wrong kernel, a right one."""
    from jaxbench_env.cli.demo import run

    sys.exit(run(as_json))


@main.command()
@_target
@_as_json
def doctor(target: str, as_json: bool) -> None:
    """Report versions, compiler, active fences and cores, by really using them."""
    from jaxbench_env.cli.doctor import report

    sys.exit(report(as_json, target))
