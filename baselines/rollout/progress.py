"""How far a rollout is: a bar per workload on a terminal, silence in a pipe."""

from __future__ import annotations

import contextlib
from types import TracebackType

from baselines.policy import Evaluated


class Progress:
    """Shows nothing; what is shown on a terminal is `Bars`. Methods are called by many threads."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def start(self, workload: str, total: int) -> None:
        """A workload's episode begins, with so many evaluations at most."""

    def step(self, workload: str, best: Evaluated | None) -> None:
        """There is one more verdict, and this is the best so far."""

    def note(self, workload: str, text: str) -> None:
        """Something else is done for a workload."""

    def finish(self, workload: str) -> None:
        """A workload's episode is over, perhaps without having begun."""


class Bars(Progress):
    """One bar for the run and one per workload at work; a line for each that is over."""

    def __init__(self, workloads: int, budget: int):
        """Makes the bars on standard error.

        Args:
            workloads: How many there are.
            budget: Evaluations of each, at most.
        """
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
        from rich.progress import Progress as Live

        columns = (
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            "{task.fields[text]}",
        )
        self._live = Live(*columns, console=Console(stderr=True))
        self._all = self._live.add_task("all", total=workloads * budget, text="")
        self._budget, self._tasks, self._texts = budget, {}, {}

    def __enter__(self) -> Bars:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def start(self, workload: str, total: int) -> None:
        """As in `Progress`."""
        self._tasks[workload] = self._live.add_task(workload, total=total, text="")

    def step(self, workload: str, best: Evaluated | None) -> None:
        """As in `Progress`."""
        text = f"best {best.result.speedup:.2f}x" if best else "none right yet"
        self._texts[workload] = text
        self._live.update(self._tasks[workload], advance=1, text=text)
        self._live.update(self._all, advance=1)

    def note(self, workload: str, text: str) -> None:
        """As in `Progress`."""
        self._live.update(self._tasks[workload], text=f"{self._texts.get(workload, '')}; {text}")

    def finish(self, workload: str) -> None:
        """As in `Progress`."""
        task = self._tasks.pop(workload, None)
        if task is None:
            return
        with contextlib.suppress(StopIteration):
            shown = next(t for t in self._live.tasks if t.id == task)
            # What a policy left of its budget will not come.
            self._live.update(self._all, advance=self._budget - shown.completed)
            done = f"{int(shown.completed)} evaluations"
            self._live.console.print(
                f"{workload}: {self._texts.get(workload, 'nothing')}, {done}", highlight=False
            )
        self._live.remove_task(task)
