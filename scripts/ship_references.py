"""Keeps the speedups of people's kernels where an installed package finds them.

jaxbench_env/report/data/kernels.json is what reports need of docs/kernels.jsonl and
docs/experts.jsonl. The scripts that make these tables call `write`; alone it does the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "jaxbench_env" / "report" / "data" / "kernels.json"


def shipped() -> dict[str, Any]:
    """What is shipped: by table, the compiler's versions and each workload's speedup."""
    return {"ours": _table("kernels"), "experts": _table("experts")}


def write() -> None:
    """Writes the shipped file."""
    SHIPPED.write_text(json.dumps(shipped(), indent=1) + "\n")


def _table(name: str) -> dict[str, Any]:
    rows = [json.loads(line) for line in (ROOT / "docs" / f"{name}.jsonl").read_text().splitlines()]
    found = {}
    for row in rows:
        full = row["full"]
        checked = bool(full and full["passed"])
        gain = full["speedup"] if checked else row["speedup"]
        if gain and name == "experts" and row["ms"]:
            gain = row["xla_ms"] / row["ms"]  # the ratio, as in docs/experts.md
        found[row["id"]] = {"speedup": gain, "flags": row["flags"], "verified": checked}
    return {
        "target": "v6e",
        "versions": rows[0]["versions"] if rows else {},
        "workloads": dict(sorted(found.items())),
    }


if __name__ == "__main__":
    write()
