"""CPU seconds of the replay of compiled programs, beside the seconds of their compile.

    python scripts/bench_replay.py DUMPS... [--markdown | --json]

Each of DUMPS is a folder that libtpu dumped into, or a folder of such folders at any depth. Where a
`meta.json` with `compile_s` lies beside a dump, the replay is shown as a share of that compile.
Nothing here is a test, because times on shared machines are noisy. The targets: under 2 s for any
program, and under a tenth of the compile in the median. `docs/bench_replay.md` holds a table.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from jaxbench_env.evaluator.timing import TimingError, bundles, predict
from jaxbench_env.progress import progress_bar

LISTINGS = "*-final_bundles.txt"
COLUMNS = ("program", "MB", "compile s", "parse s", "rest s", "total s", "share", "steps", "ms")
MAX_TEXT_BYTES = 1 << 30


def dumps_under(folder: Path) -> list[Path]:
    """Folders under `folder`, or itself, that hold the listings of a top-level program."""
    return sorted({path.parent for path in folder.rglob(f"*-TLP-{LISTINGS}")})


def compile_seconds(dump: Path) -> float | None:
    """Seconds of the compile that made a dump, where they were written down."""
    for place in (dump, dump.parent):
        if (place / "meta.json").is_file():
            return json.loads((place / "meta.json").read_text()).get("compile_s")
    return None


def bench(dump: Path) -> dict:
    """Times one dump; seconds are CPU seconds of this process."""
    name = dump.parent.name if dump.name == "dump" else dump.name
    texts = [path.read_bytes().decode("utf-8", "replace") for path in dump.glob(LISTINGS)]
    started = time.process_time()
    for text in texts:
        bundles.parse(text)
    parse = time.process_time() - started
    record = {
        "program": name,
        "bytes": sum(map(len, texts)),
        "compile_s": compile_seconds(dump),
        "parse_s": parse,
    }
    started = time.process_time()
    try:
        prediction = predict(dump, max_text_bytes=MAX_TEXT_BYTES)
    except TimingError as error:
        return {**record, "error": str(error)}
    total = time.process_time() - started
    return {
        **record,
        "total_s": total,
        "share": total / record["compile_s"] if record["compile_s"] else None,
        "steps": int(prediction.counters["replay_steps"]),
        "ms": prediction.ms,
        "uncertain": prediction.uncertain,
    }


def cells(row: dict) -> list[str]:
    """Texts for `COLUMNS`."""
    start = [row["program"], f"{row['bytes'] / 1e6:.1f}", number(row["compile_s"], ".1f")]
    if "error" in row:
        return [*start, f"{row['parse_s']:.2f}", row["error"], *[""] * 4]
    return [
        *start,
        f"{row['parse_s']:.2f}",
        f"{max(row['total_s'] - row['parse_s'], 0):.2f}",
        f"{row['total_s']:.2f}",
        number(row["share"], ".3f"),
        str(row["steps"]),
        f"{row['ms']:.3f}" + (" (bound)" if row["uncertain"] else ""),
    ]


def number(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def summary(rows: list[dict]) -> str:
    """The two numbers that have a target."""
    done = [row for row in rows if "total_s" in row]
    if not done:
        return "no program could be replayed"
    slowest = max(done, key=lambda row: row["total_s"])
    shares = [row["share"] for row in done if row["share"] is not None]
    text = f"{len(done)} programs; slowest {slowest['program']}, {slowest['total_s']:.2f} s"
    return text + (f"; median share {statistics.median(shares):.3f}" if shares else "")


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def main(folders: tuple[Path, ...], as_json: bool, markdown: bool) -> None:
    """Measure the replay of dumped programs."""
    dumps = [dump for folder in folders for dump in dumps_under(folder)]
    if not dumps:
        raise click.ClickException(
            f"no listing of a top-level program (*-TLP-{LISTINGS}) under {folders[0]}; dumps are "
            "written by compiling with LIBTPU_INIT_ARGS=--xla_jf_dump_to=..., see "
            "jaxbench_env.evaluator.timing"
        )
    rows = []
    with progress_bar(len(dumps), "replaying") as advance:
        for dump in dumps:
            rows.append(bench(dump))
            advance(f" {rows[-1]['program']}")
    if as_json:
        print(json.dumps(rows, indent=2))
    elif markdown:
        print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
        for row in rows:
            print(f"| {' | '.join(cells(row))} |")
        print(f"\n{summary(rows)}")
    else:
        table = Table(*COLUMNS, title="Replay, CPU seconds")
        for row in rows:
            table.add_row(*cells(row))
        console = Console(width=None if Console().is_terminal else 160)
        console.print(table)
        console.print(summary(rows))


if __name__ == "__main__":
    main()
