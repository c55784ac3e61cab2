"""docs/reproduced.md: what the lines of docs/reproduced.jsonl say together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean, median
from typing import Any

from baselines.policy import BUDGET
from reproduced.episodes import METHODS

Line = dict[str, Any]

WORKLOADS, SEEDS = 50, 3  # of the whole table

#: Pairs of methods and the figure in which the first should be at least as good.
TARGETS = (
    ("autocomp", "iterative", "speedup"),
    ("iterative", "best_of_n", "speedup"),
    ("iterative_context", "iterative", "correct"),
)
#: Worth knowing, though nothing is expected: these two have the same documents.
BESIDES = (("autocomp", "iterative_context", "speedup"),)

_HEAD = """\
# The four methods without a model: synthetic results

Written by `scripts/reproduce_tables.py --offline` from `reproduced.jsonl`. **Synthetic**: the
template proposer ([proposers.md](proposers.md)) stands in for a model. Its rates of mistakes were
chosen, so the levels say nothing about any model and stand in no table with models. What is tested
is whether the methods differ as they should at an equal number of evaluations. It draws from the
tunables of this package's kernels and never sees their own, tuned values. Every verdict is the
evaluator's; no time was measured on a TPU.

That documents help is built into the proposer's rates. iterative_context and autocomp have them, as
in the published comparison: that both beat iterative shows that policies pass on what they should,
not how much documents are worth. autocomp beside iterative_context has no such advantage.
"""

_TERMS = """\
Speedups are over XLA, floored at 1, and the best of an episode counts. For a workload the median
over seeds is taken, then the median (or geometric mean) over workloads. *Correct*: share of right
samples. *Solved*: share of episodes with a right sample. *Regret*: 1 - speedup / best known
speedup, both floored at 1, where the best known is that of the kernel's own tuned values or, if
higher, of any sample here. *API misuse*: share of samples.
"""


def best(line: Line) -> float:
    """Speedup of an episode's best, at least 1."""
    return max([1.0, *(speedup for _, speedup, *_ in line["samples"] if speedup is not None)])


def groups(lines: Iterable[Line]) -> dict[int, dict[str, list[Line]]]:
    """Lines by budget and workload: those of one protocol, chip and compiler.

    Raises:
        ValueError: If there are several.
    """
    found: dict[int, dict[str, list[Line]]] = {}
    made = set()
    for line in lines:
        made.add(str([line[name] for name in ("protocol", "target", "versions")]))
        found.setdefault(line["budget"], {}).setdefault(line["workload"], []).append(line)
    if len(made) > 1:
        raise ValueError(f"lines of several evaluators in one table: {'; '.join(sorted(made))}")
    return dict(sorted(found.items(), reverse=True))


def summaries(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """What each budget's lines say, JSON-ready, the largest budget first."""
    return [_summary(budget, of) for budget, of in groups(lines).items()]


def _summary(budget: int, of: dict[str, list[Line]]) -> dict[str, Any]:
    rows = {workload: _row(lines) for workload, lines in of.items()}
    every = [line for lines in of.values() for line in lines]
    methods = {}
    for method in METHODS:
        mine = [line for line in every if line["method"] == method]
        samples = [sample for line in mine for sample in line["samples"]]
        speedups = [row["speedups"][method] for row in rows.values()]
        regrets = [row["regrets"][method] for row in rows.values()]
        methods[method] = {
            "correct": mean(speedup is not None for _, speedup, *_ in samples),
            "solved": mean(any(s is not None for _, s, *_ in line["samples"]) for line in mine),
            "speedup": median(speedups),
            "geomean": _geomean(speedups),
            "regret": median(regrets),
            "mean_regret": mean(regrets),
            "api_misuse": mean(kind == "api_misuse" for _, _, kind, *_ in samples),
        }
    targets = [
        {
            "better": a,
            "than": b,
            "in": figure,
            "expected": (a, b, figure) in TARGETS,
            "met": methods[a][figure] >= methods[b][figure],
            **_pairs(of, a, b, figure),
        }
        for a, b, figure in (*TARGETS, *BESIDES)
    ]
    return {
        "budget": budget,
        "constants": {
            m: next(li["constants"] for li in every if li["method"] == m) for m in METHODS
        },
        "seeds": sorted({line["seed"] for line in every}),
        "methods": methods,
        "targets": targets,
        "workloads": rows,
        "samples": sum(len(line["samples"]) for line in every),
        **{name: sum(line[name] for line in every) for name in ("texts", "timed", "seconds")},
    }


def _row(lines: Sequence[Line]) -> dict[str, Any]:
    own = max(1.0, lines[0]["own"] or 1.0)
    known = max([own, *map(best, lines)])
    of = {m: [best(line) for line in lines if line["method"] == m] for m in METHODS}
    return {
        "own": lines[0]["own"],
        "best_known": known,
        "speedups": {method: median(found) for method, found in of.items()},
        "regrets": {method: 1 - median(found) / known for method, found in of.items()},
        "correct": {
            m: mean(s[1] is not None for li in lines if li["method"] == m for s in li["samples"])
            for m in METHODS
        },
        "samples": sum(len(line["samples"]) for line in lines),
        **{name: sum(line[name] for line in lines) for name in ("texts", "timed", "seconds")},
    }


def _pairs(of: dict[str, list[Line]], a: str, b: str, figure: str) -> dict[str, int]:
    """How often one method's episode was better than the other's on the same workload and seed."""

    def value(line: Line) -> float:
        if figure == "speedup":
            return best(line)
        return sum(speedup is not None for _, speedup, *_ in line["samples"])

    counts = Counter()
    for lines in of.values():
        found = {(line["method"], line["seed"]): value(line) for line in lines}
        for seed in {line["seed"] for line in lines}:
            difference = found[a, seed] - found[b, seed]
            counts["wins" if difference > 0 else "losses" if difference < 0 else "ties"] += 1
    return {name: counts[name] for name in ("wins", "ties", "losses")}


def _geomean(values: Sequence[float]) -> float:
    return math.exp(mean(map(math.log, values)))


def tables(found: Sequence[dict[str, Any]]) -> str:
    """The tables of all budgets, as Markdown."""
    return "\n".join(_table(summary) for summary in found) or "Nothing is finished yet."


def _table(summary: dict[str, Any]) -> str:
    count, seeds = len(summary["workloads"]), len(summary["seeds"])
    title = f"## Budget {summary['budget']}: {count} of {WORKLOADS} workloads, {seeds} seeds"
    lines = [f"{title} (synthetic)", ""]
    if summary["budget"] != BUDGET:
        lines += [
            f"The published budget is {BUDGET}. With less there are fewer chains, members and "
            f"children, so that the last turn is reached ({_smaller(summary['constants'])}).",
            "",
        ]
    lines += [
        "| method | correct | solved | median speedup | geomean | median regret | mean regret "
        "| API misuse |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, row in summary["methods"].items():
        lines.append(
            f"| {method} | {row['correct']:.1%} | {row['solved']:.0%} | {row['speedup']:.2f} "
            f"| {row['geomean']:.2f} | {row['regret']:.0%} | {row['mean_regret']:.0%} "
            f"| {row['api_misuse']:.0%} |"
        )
    lines += [
        "",
        "| | holds | better, equal, worse by workload and seed |",
        "|---|---|---|",
    ]
    words = {"speedup": "median speedup", "correct": "correct samples"}
    for target in summary["targets"]:
        expected = f"{target['better']} at least {target['than']} in {words[target['in']]}"
        expected = f"expected: {expected}" if target["expected"] else f"besides: {expected}"
        met = "yes" if target["met"] else "**no**" if target["expected"] else "no"
        counts = f"{target['wins']}, {target['ties']}, {target['losses']}"
        lines.append(f"| {expected} | {met} | {counts} |")
    lines += [
        "",
        "| workload | own values | best known | " + " | ".join(METHODS) + " | texts | seconds |",
        "|---|---|---|" + "---|" * (len(METHODS) + 2),
    ]
    for workload, row in summary["workloads"].items():
        own = f"{row['own']:.2f}" if row["own"] else "fail"
        cells = " | ".join(f"{row['speedups'][m]:.2f} ({row['correct'][m]:.0%})" for m in METHODS)
        lines.append(
            f"| {workload} | {own} | {row['best_known']:.2f} | {cells} "
            f"| {row['texts']} | {row['seconds']:.0f} |"
        )
    samples = next(iter(summary["workloads"].values()))["samples"]
    lines += [
        "",
        "Under a method: median speedup over seeds (correct samples). Texts: distinct kernels "
        f"among the {samples} samples of a workload; seconds: wall time of the "
        "evaluation of those that were not evaluated before, for another run.",
        "",
    ]
    return "\n".join(lines)


def _smaller(constants: dict[str, dict[str, Any]]) -> str:
    chains = constants["iterative"]["chain_count"]
    beam, plans, codes = (constants["autocomp"][name] for name in ("beam", "plans", "codes"))
    return (
        f"chains: {chains} of 18; beam: {beam} of 3; plans for each member: {plans} of 3; "
        f"codes: {codes} of 2"
    )


def _cost(found: Sequence[dict[str, Any]]) -> str:
    """What the table took, and what all of it would take at the published budget."""
    lines = ["## What it took", ""]
    took: dict[str, list[float]] = {}  # by workload: seconds and evaluated texts at all budgets
    for summary in found:
        samples, texts, timed = summary["samples"], summary["texts"], summary["timed"]
        each = summary["seconds"] / max(1, timed)
        lines.append(
            f"- Budget {summary['budget']}: {samples:,} samples were {texts:,} distinct kernels "
            f"({texts / samples:.0%}). {timed:,} of them had no verdict yet and took "
            f"{summary['seconds']:,.0f} s, {each:.1f} s each."
        )
        for workload, row in summary["workloads"].items():
            sums = took.setdefault(workload, [0.0, 0])
            took[workload] = [sums[0] + row["seconds"], sums[1] + row["timed"]]
    done = next((s["workloads"] for s in found if s["budget"] == BUDGET), {})
    each = [seconds / timed for seconds, timed in took.values() if timed]
    if done and each:
        texts = mean(row["texts"] for row in done.values())
        hours = WORKLOADS * texts * mean(each) / 3600
        samples = WORKLOADS * SEEDS * len(METHODS) * BUDGET
        lines.append(
            f"- All of it at budget {BUDGET} ({samples:,} samples): {hours:.0f} hours, one "
            f"evaluation at a time, if every workload has as many distinct kernels as "
            f"{', '.join(done)} ({texts:.0f}) and one takes what it took here, on average over "
            f"{len(each)} workloads ({mean(each):.1f} s, of which {min(each):.1f} to "
            f"{max(each):.1f} s by workload)."
        )
    lines += [
        "",
        "A text that fails in the trace takes a fraction of a second. What must be compiled, "
        "priced and checked takes from some seconds to a minute, on a busy machine more. A compile "
        "that does not end in three minutes, or needs more than 9 GB, is a failed sample.",
    ]
    return "\n".join(lines) + "\n"


def written(lines: Sequence[Line]) -> str:
    """The page."""
    found = summaries(lines)
    if not found:
        return f"{_HEAD}\nNothing is finished yet.\n"
    made = lines[0]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    made = f"TPU {made['target']}, protocol {made['protocol']}, {versions}.\n"
    return "\n".join([_HEAD, _TERMS, made, tables(found), _cost(found)])
