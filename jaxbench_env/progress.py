"""Progress on a terminal, silence in a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(
    total: int, description: str, show: bool | None = None
) -> Iterator[Callable[[str], None]]:
    """Shows a progress bar on standard error.

    Args:
        total: Number of steps.
        description: What is being done.
        show: Whether to show it; by default if standard error is a terminal.

    Yields:
        A function to call after each step, with the text to show beside the bar.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda text: bar.update(task, advance=1, description=f"{description}{text}")
