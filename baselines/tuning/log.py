"""Verdicts of a search in a file of JSON lines, so that a stopped search goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines import records
from jaxbench_env import EvalResult, recorded
from jaxbench_env.evaluator.build import installed_versions
from jaxbench_env.evaluator.cache import UNSETTLED
from jaxbench_env.evaluator.evaluator import PROTOCOL
from workloads import Workload

_log = logging.getLogger("jaxbench_env")


@dataclass(frozen=True)
class Log:
    """A file of verdicts, one a line, that is only ever added to.

    A line has ``workload``, ``kernel`` (`canonical_hash`), ``values`` and ``result`` as in
    `jaxbench_env.recorded`, and what else must be equal for a verdict to be that of today:
    ``protocol``, ``workload_version``, ``target``, ``versions``.

    Attributes:
        path: The file; it need not exist.
    """

    path: Path

    def rows(self) -> list[dict[str, Any]]:
        """The lines; what is no JSON object (a line cut by a kill) is left out, with a note."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                rows.append(row)
            else:
                _log.warning("%s, line %d is no JSON object and is left out", self.path, number)
        return rows

    def current(self, workload: Workload, target: str) -> list[dict[str, Any]]:
        """The lines of a workload that the evaluator and the compiler of today would make."""
        wanted = _made(workload, target)
        return [row for row in self.rows() if {name: row.get(name) for name in wanted} == wanted]

    def results(self, workload: Workload, target: str) -> dict[str, EvalResult]:
        """Verdicts on a workload by the kernel's hash: those that would be the same today.

        Verdicts that a busy machine may have caused are left out, so that they are made again.
        """
        return {
            row["kernel"]: recorded.expand(row["result"], row)
            for row in self.current(workload, target)
            if row["result"]["status"] not in UNSETTLED
        }

    def append(self, kernel: str, values: Mapping[str, Any], result: EvalResult) -> None:
        """Adds a verdict.

        Raises:
            OSError: If it cannot be written.
        """
        made = result.provenance
        row = {
            "workload": made.workload,
            "protocol": made.protocol,
            "workload_version": made.workload_version,
            "target": made.target,
            "versions": dict(made.versions),
            "kernel": kernel,
            "values": dict(values),
            "result": recorded.shrink(result),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+") as file:
            length = file.seek(0, 2)
            file.seek(max(0, length - 1))
            if file.read(1) not in (b"", b"\n"):
                file.write(b"\n")  # after a line that was cut
            file.write(json.dumps(row).encode() + b"\n")


def shipped(workload: Workload, target: str) -> dict[str, EvalResult]:
    """Verdicts of the table that ships, if the compiler that is installed made it.

    As in a log, those that a busy machine may have caused are left out.
    """
    try:
        table = recorded.read(records.path(workload.id))
    except recorded.RecordError:
        return {}
    wanted = _made(workload, target)
    if {name: table.header[name] for name in wanted} != wanted:
        return {}
    found = {kernel: table.result(kernel) for kernel in table.rows}
    return {kernel: result for kernel, result in found.items() if result.status not in UNSETTLED}


def _made(workload: Workload, target: str) -> dict[str, Any]:
    return {
        "workload": workload.id,
        "protocol": PROTOCOL,
        "workload_version": workload.version,
        "target": target,
        "versions": installed_versions().as_dict(),
    }
