"""The command that runs policies on workloads."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

import workloads

EXIT_PROPOSER, EXIT_FAULT, EXIT_INTERRUPTED = 1, 3, 130

_positive = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option("--policy", "policy_name", required=True, help="Name of the policy.")
@click.option(
    "--set",
    "constants",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a constant of the policy; may be repeated.",
)
@click.option("--workloads", "names", default="all", show_default=True, help="Ids, with commas.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Directory of the records."
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=144,
    show_default=True,
    help="Evaluations per workload.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the policy's choices, and of the template proposer's.",
)
@click.option(
    "--target",
    type=click.Choice(list(workloads.TARGETS)),
    default="v6e",
    show_default=True,
    help="The chip.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Evaluations at once [default: cores]")
@click.option(
    "--evaluator",
    "source",
    type=click.Choice(["predicted", "recorded"]),
    default="predicted",
    show_default=True,
    help="recorded: verdicts from the tables that ship; other texts end the run.",
)
@click.option("--proposer", type=click.Choice(["openai", "template", "replay"]), help="The writer.")
@click.option("--model", help="openai: name of the model.")
@click.option("--base-url", help="openai: the endpoint [default: $OPENAI_BASE_URL].")
@click.option("--price-in", type=click.FloatRange(min=0), help="openai: price of 1e6 input tokens.")
@click.option(
    "--price-out", type=click.FloatRange(min=0), help="openai: price of 1e6 output tokens."
)
@click.option("--concurrency", type=click.IntRange(min=1), default=8, help="openai: calls at once.")
@click.option("--rpm", type=click.IntRange(min=1), help="openai: calls a minute.")
@click.option("--tpm", type=click.IntRange(min=1), help="openai: tokens a minute.")
@click.option("--timeout", type=_positive, default=600.0, help="openai: seconds without a sign.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="openai: tokens of an answer.")
@click.option("--extra", default="{}", help="openai: more fields of the request, as JSON.")
@click.option(
    "--replay-of",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="replay: directory of the recorded run.",
)
@click.option("--max-seconds", type=_positive, help="End after so long; the same command goes on.")
@click.option("--max-evaluations", type=click.IntRange(min=1), help="End after so many verdicts.")
@click.option("--max-cost", type=_positive, help="End when the answers have cost so much.")
@click.option(
    "--verify-best/--no-verify-best",
    default=True,
    show_default=True,
    help="Check the numbers of each workload's best at the published size (minutes each).",
)
@click.option("--dry-run", is_flag=True, help="Show the first prompts and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def rollout(
    policy_name: str,
    constants: tuple[str, ...],
    names: str,
    out: Path | None,
    budget: int,
    seed: int,
    target: str,
    workers: int | None,
    source: str,
    proposer: str | None,
    max_seconds: float | None,
    max_evaluations: int | None,
    max_cost: float | None,
    verify_best: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a policy on workloads and record everything in a directory.

    The same command resumes a run that was killed, interrupted (Ctrl-C) or ended by a limit. Exit
    codes: 0 at the end of all policies or at a limit, 1 if the proposer failed, 3 if anything else
    did, 130 after an interrupt.
    """
    from baselines import policies
    from baselines.proposers import ProposerError
    from baselines.rollout import setup
    from baselines.rollout.engine import Rollout
    from baselines.rollout.outcome import Limits, summarise
    from baselines.rollout.progress import Bars, Progress
    from baselines.rollout.records import Records, RecordsError
    from jaxbench_env.evaluator.service.client import SharedEvaluator

    try:
        chosen = setup.chosen_workloads(names)
        make = setup.chosen_policy(policy_name, constants)
        if dry_run:
            _show_prompts(make, chosen, budget, seed, target, as_json)
            return
        if out is None:
            raise ValueError("--out is missing: a run needs a directory for its records")
        if proposer is None and policies()[policy_name].needs_proposer:
            raise ValueError(f"{policy_name} needs --proposer openai, template or replay")
        if max_cost is not None and None in (options["price_in"], options["price_out"]):
            raise ValueError("--max-cost needs --price-in and --price-out")
        writer = _proposer(proposer, seed, options)
        if source == "recorded":
            from baselines import records as tables

            evaluator = tables.evaluator(target)
        else:
            evaluator = SharedEvaluator(target=target)
        settings = setup.settings(make, chosen, writer, evaluator, source, budget, seed)
        records = Records(out, settings)
    except (
        workloads.UnknownWorkload,
        workloads.WorkloadFileError,
        ProposerError,
        RecordsError,
        ValueError,
        OSError,
    ) as error:
        raise click.UsageError(str(error)) from None
    for note in records.notes:
        click.echo(f"{out}: {note}", err=True)
    run = Rollout(
        records=records,
        policy=make,
        workloads=chosen,
        evaluator=evaluator,
        proposer=writer,
        budget=budget,
        seed=seed,
        workers=workers or os.cpu_count() or 1,
        limits=Limits(max_seconds, max_evaluations, max_cost),
        verify_best=verify_best and source == "predicted",
        progress=Bars(len(chosen), budget) if sys.stderr.isatty() else Progress(),
    )
    try:
        outcomes = run.run()
    finally:
        records.close()
    summary = summarise(run, outcomes)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        _show(summary)
    sys.exit(_exit_code(run))


def _proposer(kind: str | None, seed: int, options: dict[str, Any]) -> Any:
    """Makes the proposer; None if none is wanted.

    Raises:
        ValueError: If an option is missing or malformed.
    """
    if kind is None:
        return None
    if kind == "template":
        from baselines.proposers.template import TemplateProposer

        return TemplateProposer(seed)
    if kind == "replay":
        from baselines.proposers.replay import Replay

        if options["replay_of"] is None:
            raise ValueError("--proposer replay needs --replay-of, the directory of a run")
        return Replay(options["replay_of"])
    from baselines.proposers.openai import OpenAIProposer

    if not options["model"]:
        raise ValueError("--proposer openai needs --model")
    try:
        extra = json.loads(options["extra"])
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise ValueError(f"--extra is a JSON object, not {options['extra']!r}")
    return OpenAIProposer(
        model=options["model"],
        base_url=options["base_url"],
        price_in=options["price_in"],
        price_out=options["price_out"],
        concurrency=options["concurrency"],
        requests_per_minute=options["rpm"],
        tokens_per_minute=options["tpm"],
        timeout=options["timeout"],
        max_tokens=options["max_tokens"],
        extra=extra,
    )


def _show_prompts(
    make: Any, chosen: list[workloads.Workload], budget: int, seed: int, target: str, as_json: bool
) -> None:
    from baselines.rollout.dry import first_prompts

    found = [
        (workload.id, request)
        for workload in chosen
        for request in first_prompts(make, workload, budget, seed, target)
    ]
    if as_json:
        rows = [
            {"workload": name, "label": r.label, "kind": r.kind, "messages": r.messages}
            for name, r in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for name, request in found:
        click.echo(f"===== {name}: {request.label} ({request.kind})")
        for message in request.messages:
            click.echo(f"----- {message['role']}\n{message['content']}\n")
    if not found:
        click.echo("This policy asks for nothing.")


def _show(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("workload", "verdicts", "right", "best", "published size")
    for row in summary["workloads"]:
        best = row["best_speedup"]
        table.add_row(
            row["workload"],
            str(row["evaluations"]),
            str(row["correct"]),
            f"{best:.2f}x" if best else "",
            row["verified"] or row["note"][:60],
        )
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    cost = f", cost {summary['cost']:.2f}" if summary["cost"] else ""
    click.echo(
        f"{summary['evaluations']:,} verdicts, {summary['correct']:,} right; "
        f"{summary['solved']} of {len(summary['workloads'])} workloads solved, geometric mean "
        f"(floor 1) {summary['geomean_floor_1']:.2f}x; {summary['calls']:,} calls, "
        f"{summary['input_tokens']:,} + {summary['output_tokens']:,} tokens{cost}"
    )
    if summary["ended"] != "done":
        why = f": {summary['error']}" if summary["error"] else ""
        click.echo(
            f"Not done ({summary['ended']}{why}). The same command resumes the run in "
            f"{summary['out']}; a limit that was reached must be raised."
        )


def _exit_code(run: Any) -> int:
    from baselines.proposers import ProposerError
    from baselines.rollout.records import RecordsError
    from jaxbench_env.recorded import RecordError

    if run.ended == "interrupted":
        return EXIT_INTERRUPTED
    if run.error is not None:
        if isinstance(run.error, ProposerError):
            return EXIT_PROPOSER
        # What these say is for people, and the summary has said it.
        if not isinstance(run.error, (RecordError, RecordsError, OSError)):
            import traceback

            traceback.print_exception(run.error)
        return EXIT_FAULT
    return 0
