"""The numbers of a report, from records to JSON-ready data."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import reward
from jaxbench_env.report import records, references
from jaxbench_env.report.records import Run
from jaxbench_env.taxonomy import Category, classify

FAST_P = (0, 1, 1.5, 2, 4)
PASS_AT = (1, 4, 16, 64, 144)
#: What a sample came to, in the order of the bars: two ways to be right, then the taxonomy.
OUTCOMES = ("faster", "correct", *(category.value for category in Category))


def outcome(result: Any) -> str:
    """One of `OUTCOMES`: whether a kernel is right and faster than XLA, or what went wrong."""
    category = classify(result)
    if category is not None:
        return category.value
    return "faster" if (result.speedup or 0.0) > 1 else "correct"


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """All numbers of a report.

    Runs that differ in their seed alone are one row: shares and means are averaged over them, a
    workload's speedup is their median (the lower of two), where unsolved is below everything. Runs
    that have their seed in common, too, are parts of one if they share no workload.

    Args:
        runs: The rollouts.

    Returns:
        "facts" (see `records.facts`), "rows" (one for each policy and model), "notes".

    Raises:
        ReportError: If the runs do not belong in one table.
    """
    facts = records.facts(runs)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_identity(run.settings), []).append(run)
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    rows = []
    for label, members in zip(_labels(groups), groups.values(), strict=True):
        members = sorted(members, key=lambda run: (run.settings["seed"], run.name))
        rows.append(_row(label, members))
        short = [_short(run) for run in members]
        notes += [f"{run.name}: {text}" for run, text in zip(members, short, strict=True) if text]
        if len({*rows[-1]["seeds"]}) < len(rows[-1]["seeds"]):
            notes.append(f"{label}: runs of one seed share workloads; they count as of two seeds")
    if len({tuple(sorted(row["speedups"])) for row in rows}) > 1:
        notes.append("The rows are over different workloads: their means do not compare.")
    whole = references.published()["workloads"]
    if facts["kind"] == "model" and any(row["workloads"] != whole for row in rows):
        notes.append(
            f"Published rows are over {whole} workloads, not the same as ours: their means do not "
            "compare."
        )
    return {"facts": facts, "rows": rows, "notes": notes}


def _identity(settings: Mapping[str, Any]) -> str:
    """What runs of one row have in common: all but the seed."""
    proposer = settings["proposer"]
    if proposer is not None:
        proposer = {key: value for key, value in proposer.items() if key != "seed"}
    same = (settings["policy"], settings["constants"], proposer, settings["budget"])
    return json.dumps(same, sort_keys=True)


def _labels(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Policy and writer; where two rows share these, also what they differ in."""
    settings = [members[0].settings for members in groups.values()]
    plain = []
    for one in settings:
        who = records.writer(one["proposer"])
        plain.append(f"{one['policy']}, {who}" if who else one["policy"])
    labels = []
    for label, one in zip(plain, settings, strict=True):
        same = [_flat(s) for s, other in zip(settings, plain, strict=True) if other == label]
        differ = [
            f"{key}={value}"
            for key, value in _flat(one).items()
            if any(other.get(key) != value for other in same)
        ]
        labels.append(f"{label} ({', '.join(differ)})" if differ else label)
    return labels


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    proposer = {k: v for k, v in (settings["proposer"] or {}).items() if k != "seed"}
    return {**proposer, **settings["constants"], "budget": settings["budget"]}


def _short(run: Run) -> str:
    """Says where a run has fewer verdicts than its budget."""
    counts = [len(run.samples.get(name, ())) for name in run.workloads]
    budget = run.settings["budget"]
    short = sum(count < budget for count in counts)
    if not short or run.settings["policy"] == "expert":
        return ""
    return (
        f"{short} of {len(counts)} workloads have fewer than {budget} samples "
        f"({sum(counts):,} in all)"
    )


def _row(label: str, members: Sequence[Run]) -> dict[str, Any]:
    runs = records.joined(members)
    first = runs[0].settings
    each = [_numbers(run) for run in runs]
    outcomes: Counter[str] = sum((Counter(one["outcomes"]) for one in each), Counter())
    samples = sum(one["samples"] for one in each)
    geomeans = [one["geomean"] for one in each]
    costs = [run.usage.get("cost") for run in members]
    names = list(dict.fromkeys(name for run in runs for name in run.workloads))
    return {
        "label": label,
        "policy": first["policy"],
        "writer": records.writer(first["proposer"]),
        "kind": records.kind(first),
        "constants": first["constants"],
        "budget": first["budget"],
        "seeds": [run.settings["seed"] for run in runs],
        "runs": [run.name for run in members],
        "workloads": len(names),
        "samples": samples,
        **{
            key: _average([one[key] for one in each])
            for key in ("per_sample_correctness", "solved", "geomean", "mean")
        },
        "geomean_range": [min(geomeans), max(geomeans)],
        "fast_p": {str(p): _average([one["fast_p"][p] for one in each]) for p in FAST_P},
        "pass_at_k": {
            str(k): _average([one["pass_at_k"][k] for one in each])
            for k in PASS_AT
            if all(k in one["pass_at_k"] for one in each)
        },
        "outcomes": {name: outcomes[name] for name in OUTCOMES},
        "api_misuse": outcomes["api_misuse"] / samples if samples else None,
        "verified": _average([one["verified"] for one in each]),
        "input_tokens": sum(run.usage.get("input_tokens", 0) for run in members),
        "output_tokens": sum(run.usage.get("output_tokens", 0) for run in members),
        "cost": None if None in costs else sum(costs),
        "speedups": {
            name: _median([_best(run, name) for run in runs if name in run.workloads])
            for name in names
        },
        "progress": _progress(runs),
    }


def _numbers(run: Run) -> dict[str, Any]:
    best = [run.best(name) for name in run.workloads]
    speedups = [one.speedup if one else None for one in best]
    lists = [run.samples.get(name, ()) for name in run.workloads]
    counts = [(sum(one.result.correct for one in of), len(of)) for of in lists]
    samples = sum(count for _, count in counts)
    least = min((count for _, count in counts if count), default=0)
    return {
        "samples": samples,
        "per_sample_correctness": reward.per_sample_correctness(counts) if samples else None,
        "solved": reward.solved(speedups),
        "geomean": reward.geomean(speedups),
        "mean": reward.mean(speedups),
        "fast_p": {p: reward.fast_p(speedups, p) for p in FAST_P},
        # A workload for which nothing was proposed is failed by any number of samples.
        "pass_at_k": {
            k: _average([reward.pass_at_k(n, c, k) if n else 0.0 for c, n in counts])
            for k in PASS_AT
            if k <= least
        },
        "outcomes": Counter(outcome(one.result) for of in lists for one in of),
        "verified": sum(one is not None and one.verified for one in best),
    }


def _best(run: Run, workload: str) -> float | None:
    best = run.best(workload)
    return best.speedup if best else None


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    middle = statistics.median_low([value or 0.0 for value in values])
    return middle or None


def _progress(runs: Sequence[Run]) -> dict[str, list[float]]:
    """After each sample: median of the best speedups so far, 0 if unsolved, and share solved."""
    curves = []
    for run in runs:
        for name in run.workloads:
            right = run.best(name) is not None
            by_number = {
                one.sample: run.speedup(name, one) if right else None
                for one in run.samples.get(name, ())
            }
            length = max(by_number, default=-1) + 1
            curves.append(reward.best_so_far([by_number.get(n) for n in range(length)]) or [None])
    length = max(map(len, curves))
    columns = [[curve[min(n, len(curve) - 1)] for curve in curves] for n in range(length)]
    return {
        "median_best": [statistics.median(v or 0.0 for v in of) for of in columns],
        "solved": [sum(v is not None for v in of) / len(of) for of in columns],
    }
