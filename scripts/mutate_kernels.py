"""Breaks kernels in ways whose category is known, and keeps what the compiler and evaluator say.

    python scripts/mutate_kernels.py [OPERATOR ...] [--json]

The operators stand in mutations.toml, and each says beforehand what category its mutants are of.
The kernels are the witnesses of the rules, kernels of the baselines, and those of tests. Mutants
that pass anyway are dropped. Writes tests/data/mutants.jsonl, one record a line, which the tests
of `jaxbench_env.taxonomy` hold the classifier against, and the tables of docs/taxonomy.md; with
--tables only those. Without operators all are run: about 15
minutes on two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workloads
from baselines import context, kernels
from baselines.context.rules import witness
from jaxbench_env import EvalResult, Evaluator
from jaxbench_env.progress import progress_bar
from jaxbench_env.taxonomy import classify

ROOT = Path(__file__).resolve().parent.parent
OPERATORS = Path(__file__).with_name("mutations.toml")
RESULTS = ROOT / "tests" / "data" / "mutants.jsonl"
PAGE = ROOT / "docs" / "taxonomy.md"
START, END = "<!-- tables -->\n", "<!-- end of tables -->\n"
WITNESSES = Path(context.__file__).parent / "witnesses"
FIXTURES = ROOT / "tests" / "fixtures" / "workloads"
HONEST = ROOT / "tests" / "honest" / "kernels"

MOST = 4  # kernels for each operator
TRACE_SECONDS = 8  # endless texts are cut short; compilers take their time in any case
MAX_DETAILS = 2000
READ = re.compile(r"(?m)^( +)(x = x_ref\[\.\.\.\].*)$")


@dataclass(frozen=True)
class Kernel:
    """A kernel to break: its name, the workload (id or path) and the text."""

    name: str
    workload: str
    text: str


@dataclass(frozen=True)
class Mutant:
    """A broken kernel: the operator's fields, the kernel, the value used and the text."""

    operator: dict[str, Any]
    kernel: Kernel
    value: str
    text: str


def corpus() -> list[Kernel]:
    """The kernels, small and quick ones first."""
    found = []
    for path in sorted(WITNESSES.glob("*_kernel.py")):
        name = path.stem.removesuffix("_kernel")
        workload = WITNESSES / f"{name.split('_')[0]}.py"
        found.append(Kernel(name, str(workload), witness(name)))
    for path in sorted(FIXTURES.glob("*_kernel.py")):
        name = path.stem.removesuffix("_kernel")
        found.append(Kernel(name, str(FIXTURES / f"{name}.py"), path.read_text()))
    for name in ("rms_norm", "gemm", "mamba2_scan"):
        found.append(Kernel(name, name, kernels.source(name)))
    for path in sorted(HONEST.glob("*.py")):
        text = path.read_text()
        workload = re.search(r"(?m)^# workload: (\w+)", text)
        if workload and workload[1] in ("rms_norm", "gemm") and "# jax:" not in text:
            found.append(Kernel(f"honest/{path.stem}", workload[1], text))
    return found


def mutants(operator: dict[str, Any], among: list[Kernel]) -> list[Mutant]:
    """The mutants of an operator: of each value, as many kernels as it asks for."""
    chosen, found = operator.get("kernels"), []
    if chosen:
        among = [kernel for name in chosen for kernel in among if kernel.name == name]
    for turn, value in enumerate(operator.get("values", [""])):
        texts = [(kernel, _mutated(operator, kernel.text, value)) for kernel in among]
        fitting = [Mutant(operator, kernel, value, text) for kernel, text in texts if text]
        # Each value starts with another kernel, so that few mutants still are of many kernels.
        start = turn % max(len(fitting), 1)
        found += (fitting[start:] + fitting[:start])[: operator.get("most", MOST)]
    return found


def _mutated(operator: dict[str, Any], text: str, value: str) -> str | None:
    """The text with the operator applied, or None where it does not fit."""
    if "insert" in operator:
        line = operator["insert"].replace("VALUE", value)
        place = READ.search(text)
        if not place:
            return None
        text = f"{text[: place.end()]}\n{place[1]}{line}{text[place.end() :]}"
    for pattern, new in operator.get("edits", ()):
        escaped = value.replace("\\", "\\\\")
        text, changed = re.subn(pattern, new.replace("VALUE", escaped), text, count=1)
        if not changed:
            return None
    return text


def record(mutant: Mutant) -> dict[str, Any]:
    """Evaluates a mutant; the record to keep."""
    evaluator = Evaluator(trace_seconds=TRACE_SECONDS)
    result = evaluator.evaluate(workloads.get(mutant.kernel.workload), mutant.text, seed=1)
    return {
        "operator": mutant.operator["name"],
        "value": mutant.value,
        "kernel": mutant.kernel.name,
        "category": mutant.operator["category"],
        "batch": mutant.operator.get("batch", 1),
        "sha256": hashlib.sha256(mutant.text.encode()).hexdigest()[:16],
        "correct": result.correct,
        "status": result.status.value,
        "failed_in": result.failed_in,
        "message": result.message[:MAX_DETAILS],
        "details": result.details[:MAX_DETAILS],
        "jax": result.provenance.versions["jax"],
    }


def tables(records: list[dict[str, Any]]) -> str:
    """What the classifier says of the mutants, in Markdown."""
    fields = ("status", "failed_in", "message", "details")
    said = [classify(EvalResult.from_dict({k: r[k] for k in fields})).value for r in records]
    pairs = list(zip(records, said, strict=True))
    lines = ["| batch | operators | messages | right |", "|---|---|---|---|"]
    for batch in sorted({r["batch"] for r in records}):
        of = [(r, s) for r, s in pairs if r["batch"] == batch]
        right = sum(r["category"] == s for r, s in of) / len(of)
        operators = len({r["operator"] for r, _ in of})
        lines.append(f"| {batch} | {operators} | {len(of)} | {right:.1%} |")
    meant = list(dict.fromkeys(r["category"] for r in records))
    columns = [*meant, *sorted({*said} - {*meant})]
    lines += ["", f"| meant | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for category in meant:
        counts = Counter(s for r, s in pairs if r["category"] == category)
        cells = " | ".join(str(counts[column] or "") for column in columns)
        lines.append(f"| {category} | {cells} |")
    return "\n".join(lines) + "\n"


def write_tables() -> None:
    """Writes the tables of the kept records into their page."""
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + tables(records) + END + rest.partition(END)[2])


def main() -> int:
    """Makes and evaluates mutants; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="operators to run; all by default")
    parser.add_argument("--batch", type=int, help="only operators of this batch")
    parser.add_argument("--tables", action="store_true", help="only write the tables anew")
    parser.add_argument("--json", action="store_true", help="print the records as JSON lines")
    options = parser.parse_args()
    if options.tables:
        write_tables()
        return 0
    operators = tomllib.loads(OPERATORS.read_text())["operator"]
    known = {operator["name"] for operator in operators}
    for name in options.names:
        if name not in known:
            parser.error(f"no operator {name!r}; {OPERATORS.name} has {', '.join(sorted(known))}")
    among = corpus()
    chosen = [o for o in operators if not options.names or o["name"] in options.names]
    chosen = [o for o in chosen if options.batch in (None, o.get("batch", 1))]
    names = {operator["name"] for operator in chosen}
    made = [mutant for operator in chosen for mutant in mutants(operator, among)]
    with ThreadPoolExecutor(2) as threads, progress_bar(len(made), "mutants") as advance:

        def evaluate(mutant: Mutant) -> dict[str, Any]:
            found = record(mutant)
            advance(f", {found['operator']}")
            return found

        records = list(threads.map(evaluate, made))
    failed = [{k: v for k, v in r.items() if k != "correct"} for r in records if not r["correct"]]
    kept = RESULTS.read_text().splitlines() if RESULTS.exists() and names < known else []
    others = [r for r in map(json.loads, kept) if r["operator"] in known - names]
    order = {operator["name"]: i for i, operator in enumerate(operators)}
    written = sorted(others + failed, key=lambda r: order.get(r["operator"], -1))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(json.dumps(r) + "\n" for r in written))
    write_tables()
    if options.json:
        print("\n".join(json.dumps(r) for r in failed))
        return 0
    passed = Counter(r["operator"] for r in records if r["correct"])
    print(
        f"{len(failed)} mutants fail, {sum(passed.values())} pass and were dropped: {dict(passed)}"
    )
    print(f"{len(written)} records in {RESULTS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
