"""Reports on rollouts: numbers, tables, pictures, and a page with every kernel and verdict.

Records come in as plain data (`records.read`); who has a rollout's directory reads it with
`baselines.rollout.records.Run`, as `jaxbench report` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxbench_env.report import plots
from jaxbench_env.report.page import report_page, verdict_page
from jaxbench_env.report.records import ReportError, Run, read
from jaxbench_env.report.summary import summarise
from jaxbench_env.report.tables import markdown, tables, to_csv

__all__ = ["ReportError", "Run", "markdown", "read", "summarise", "verdict_page", "write"]


def write(runs: Sequence[Run], summary: dict[str, Any], folder: Path) -> tuple[list[str], str]:
    """Writes report.md, report.html, a CSV file for each table, and PNG files.

    The same records give the same bytes.

    Args:
        runs: The rollouts.
        summary: As `summarise` makes it of them.
        folder: Where to; made if it is not there.

    Returns:
        Names of the files, and why there are no pictures, or an empty text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images, problem = [], ""
    try:
        images = plots.write(summary, folder)
    except plots.NoPlots as error:
        problem = str(error)
    contents = {"report.md": markdown(summary, images).encode("utf-8", "backslashreplace")}
    for table in tables(summary):
        contents[f"{table.name}.csv"] = to_csv(table).encode("utf-8", "backslashreplace")
    contents["report.html"] = report_page(summary, runs)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return [*contents, *images], problem
