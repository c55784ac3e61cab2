"""Verdicts from tables: evaluation in microseconds, for training and tests.

A table is a file ``<workload>.jsonl.gz`` of JSON lines. The first is its header: format, workload
and its version, protocol, target, versions of the compiler, and XLA's baseline. Every other line is
one verdict: ``kernel``, the canonical hash of the text (`canonical.canonical_hash`); ``values``,
the tunables that made the text, for people; ``result``, what an observation, the feedback and a
reward need of the verdict. Numbers have six digits, and compiler messages are cut.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jaxbench_env.canonical import canonical_hash
from jaxbench_env.evaluator.baseline import Baseline
from jaxbench_env.evaluator.cache import source_hash
from jaxbench_env.evaluator.evaluator import PROTOCOL
from jaxbench_env.evaluator.judge.pool import Watch
from jaxbench_env.evaluator.result import EvalResult, Provenance
from jaxbench_env.evaluator.stop import Stop
from workloads import Workload, chip

FORMAT = 1
MAX_TEXT = 1500  # characters of a message or of details
_DIGITS = 6


class RecordError(LookupError):
    """A table is missing, or does not hold what was asked of it."""

    def __str__(self) -> str:
        """The message."""
        return self.args[0]


class MissingRecord(RecordError):
    """There is no recorded verdict for a text."""


class StaleRecords(RecordError):
    """A table was made by another protocol, for another target, workload or format."""


@dataclass(frozen=True)
class RecordedEvaluator:
    """Answers as an `Evaluator` does, from tables. A text that was not recorded is an error.

    What is recorded is a verdict as it was made, with the seed and the compiler of that time, which
    need not be installed. Nothing is compiled and nothing is run.

    Attributes:
        folder: The folder with the tables.
        target: The chip that they must be for.
    """

    folder: Path
    target: str = "v6e"

    def __post_init__(self) -> None:
        """Checks the target."""
        chip(self.target)
        object.__setattr__(self, "folder", Path(self.folder))

    def baseline(self, workload: Workload) -> Baseline:
        """XLA's program for the reference, as recorded.

        Raises:
            RecordError: If there is no table, or a stale one.
        """
        return self._table(workload).baseline

    def evaluate(
        self,
        workload: Workload,
        source: str,
        *,
        seed: int | None = None,
        watch: Watch | None = None,
        stop: Stop | None = None,
    ) -> EvalResult:
        """The recorded verdict on a kernel text.

        Args:
            workload: What the text claims to compute.
            source: The text. Comments, docstrings and layout may differ from the recorded one.
            seed: Changes nothing: the verdict has the seed that it was made with.
            watch: Hears nothing.
            stop: Stops nothing.

        Raises:
            MissingRecord: If the text was not recorded.
            RecordError: If there is no table, or a stale one.
        """
        table = self._table(workload)
        result = table.result(canonical_hash(source))
        if result is None:
            raise MissingRecord(
                f"no recorded verdict for this text of {workload.id}: none of the "
                f"{len(table)} verdicts in {table.path} is of it. Evaluate it with "
                "jaxbench_env.Evaluator, or record it with `jaxbench tune` and "
                "scripts/tune_all.py"
            )
        made_of = source_hash(source)
        return replace(result, provenance=replace(result.provenance, source_sha256=made_of))

    def knows(self, workload: Workload, source: str) -> bool:
        """Whether there is a verdict on a text.

        Raises:
            RecordError: If there is no table, or a stale one.
        """
        return self._table(workload).result(canonical_hash(source)) is not None

    def _table(self, workload: Workload) -> Table:
        return _current(self.folder / f"{workload.id}.jsonl.gz", workload, self.target)


class Table:
    """The verdicts of one workload.

    Attributes:
        path: The file that they come from.
        header: Its first line.
        rows: The verdicts' lines by the canonical hash of their text.
        baseline: XLA's program for the reference.
    """

    def __init__(self, path: Path, header: dict[str, Any], rows: dict[str, dict[str, Any]]):
        self.path, self.header, self.rows = path, header, rows
        self.baseline = Baseline.from_dict(header["baseline"])
        self._results: dict[str, EvalResult] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def result(self, kernel: str) -> EvalResult | None:
        """The verdict on the text with a canonical hash, or None."""
        if kernel not in self._results:
            row = self.rows.get(kernel)
            if row is None:
                return None
            self._results[kernel] = expand(row["result"], self.header)
        return self._results[kernel]


def read(path: Path) -> Table:
    """Reads a table.

    Raises:
        RecordError: If there is none, or if it cannot be read.
    """
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        header, *rows = map(json.loads, lines)
        if header.get("format") != FORMAT:
            raise StaleRecords(f"{path} has format {header.get('format')}, not {FORMAT}")
        return Table(path, header, {row["kernel"]: row for row in rows})
    except FileNotFoundError:
        known = sorted(file.name.split(".")[0] for file in path.parent.glob("*.jsonl.gz"))
        raise RecordError(
            f"there are no recorded verdicts at {path}; "
            f"{path.parent} has some of {', '.join(known) or 'no workload'}"
        ) from None
    except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordError(f"{path} is no table of verdicts: {error!r}") from error


def write(path: Path, header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a table, in an order that does not depend on that of the rows.

    Args:
        path: Where to.
        header: As `header` makes it.
        rows: Lines with ``kernel``, ``values`` and ``result``, in any order.
    """
    ordered = sorted(rows, key=lambda row: row["kernel"])
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (header, *ordered))
    # No time and no name in the file's head.
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def header(workload: Workload, baseline: Baseline, made: Provenance) -> dict[str, Any]:
    """The first line of a table.

    Args:
        workload: Whose table.
        baseline: XLA's program, by the compiler of the verdicts.
        made: Provenance of one of the verdicts.
    """
    return {
        "format": FORMAT,
        "workload": workload.id,
        "workload_version": made.workload_version,
        "protocol": made.protocol,
        "target": made.target,
        "versions": dict(made.versions),
        "baseline": {k: v for k, v in asdict(baseline).items() if k != "counters"},
    }


def shrink(result: EvalResult) -> dict[str, Any]:
    """What a table keeps of a verdict: `expand` makes a result of it again."""
    record = result.to_dict(durations=False)
    provenance = record.pop("provenance")
    del record["correct"], record["compiled"], record["shown"]
    for name in ("message", "details"):
        record[name] = _cut(record[name])
    return _compact({**record, "seed": provenance["seed"]})


def expand(record: Mapping[str, Any], head: Mapping[str, Any]) -> EvalResult:
    """The verdict that `shrink` made a record of, as precise as the record is."""
    fields = {name: value for name, value in record.items() if name != "seed"}
    fields["provenance"] = {
        **{k: head[k] for k in ("protocol", "workload", "workload_version", "target", "versions")},
        "seed": record.get("seed"),
    }
    if "loop" in fields:  # what is empty was left out
        fields["loop"] = {"lines": (), **fields["loop"]}
    return EvalResult.from_dict(fields)


@functools.lru_cache(maxsize=1024)
def _current(path: Path, workload: Workload, target: str) -> Table:
    """A table that is what the evaluator of today would make."""
    table = read(path)
    found = {k: table.header[k] for k in ("workload", "workload_version", "protocol", "target")}
    wanted = {
        "workload": workload.id,
        "workload_version": workload.version,
        "protocol": PROTOCOL,
        "target": target,
    }
    for name, value in wanted.items():
        if found[name] != value:
            raise StaleRecords(
                f"the verdicts in {path} are of {name} {found[name]!r}, and {value!r} is asked "
                "for; record them again with scripts/tune_all.py"
            )
    return table


def _cut(text: str) -> str:
    """A text with its middle left out if it is long: causes are named at either end."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"


def _compact(value: Any) -> Any:
    """A record without what is empty, with numbers of six digits."""
    if isinstance(value, dict):
        items = {name: _compact(item) for name, item in value.items()}
        return {name: item for name, item in items.items() if item not in (None, "", [], {}, ())}
    if isinstance(value, (list, tuple)):
        return [_compact(item) for item in value]
    if isinstance(value, float):
        rounded = float(f"{value:.{_DIGITS}g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return value
