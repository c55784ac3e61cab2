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


@contextlib.contextmanager
def progress_steps(
    description: str, show: bool | None = None
) -> Iterator[Callable[[str, int, int], None] | None]:
    """Shows a progress bar on standard error for work whose steps are not known beforehand.

    Args:
        description: What is being done.
        show: As in `progress_bar`.

    Yields:
        A function of (text beside the bar, steps done, steps in all), or None if there is no bar.
        The bar appears with its first call.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(description, total=None)

    def watch(text: str, done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total, description=f"{description}: {text}")

    try:
        yield watch
    finally:
        bar.stop()
