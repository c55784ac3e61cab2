"""What processes share: verdicts on disk and the evaluation service."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@click.group()
def cache() -> None:
    """Verdicts that are kept on disk."""


@cache.command("info")
@_as_json
def cache_info(as_json: bool) -> None:
    """Say where verdicts are kept, how many there are and what they take."""
    from jaxbench_env.evaluator import cache as verdicts

    info = verdicts.info()
    if as_json:
        _print_json(asdict(info))
    elif not info.limit_bytes:
        click.echo(f"Verdicts are not kept (JAXBENCH_CACHE_BYTES is 0); {info.directory}")
    else:
        click.echo(
            f"{info.verdicts:,} verdicts, {info.bytes / 2**20:.1f} of "
            f"{info.limit_bytes / 2**20:,.0f} MiB (JAXBENCH_CACHE_BYTES), in {info.directory}"
        )


@cache.command("clear")
@_as_json
def cache_clear(as_json: bool) -> None:
    """Remove all verdicts; XLA's compiled baselines stay."""
    from jaxbench_env.evaluator import cache as verdicts

    before = verdicts.clear()
    if as_json:
        _print_json({"removed": before.verdicts, "bytes": before.bytes})
    else:
        click.echo(f"Removed {before.verdicts:,} verdicts, {before.bytes / 2**20:.1f} MiB.")


@click.group()
def service() -> None:
    """The processes that evaluate for all programs of this user."""


@service.command("status")
@_as_json
def service_status(as_json: bool) -> None:
    """Say which services run; other versions and other cache directories have their own."""
    rows = _each("status")
    if as_json:
        _print_json(rows)
    elif not rows:
        click.echo("No evaluation service runs. The first evaluation starts one.")
    for row in [] if as_json else rows:
        click.echo(
            f"{'This' if row['own'] else 'Another'} version's service: process {row['pid']}, "
            f"{row['running']} of {row['workers']} workers busy, {row['waiting']} evaluations "
            f"wait, {row['clients']} programs use it, {row['served']} evaluations in "
            f"{row['uptime_seconds']:.0f} s\n  cache {row['cache']}, log {row['log']}"
        )


@service.command("stop")
@_as_json
def service_stop(as_json: bool) -> None:
    """Stop all services of this user; what they evaluate is lost."""
    rows = _each("stop")
    if as_json:
        _print_json(rows)
    else:
        pids = ", ".join(str(row["pid"]) for row in rows)
        click.echo(f"Stopped process {pids}." if rows else "No evaluation service runs.")


def _each(do: str) -> list[dict[str, Any]]:
    """The answers of all services that run."""
    from jaxbench_env.evaluator.service import address, client

    own, rows = address.own(), []
    for each in address.every():
        answer = client.answers(each, do)
        if answer is not None:
            del answer["state"], answer["blobs"]
            rows.append({"own": each.socket == own.socket, **answer, "log": str(each.log)})
    return rows


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2))
