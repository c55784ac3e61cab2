"""Records of rollouts as reports see them, and which of them may stand in one table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxbench_env.evaluator.result import EvalResult

#: Fields of run.json without which a directory is not a rollout's (docs/records.md).
SETTINGS = ("policy", "constants", "proposer", "budget", "seed", "workloads", "evaluator")
#: Correct candidates of a workload that a rollout checks at the published size, at most.
FINALISTS = 3


class ReportError(ValueError):
    """Records cannot be read, or do not belong in one report."""


@dataclass(frozen=True)
class Sample:
    """One candidate and its verdict.

    Attributes:
        sample: Its number in the episode, from 0.
        source_sha256: Hash of its text.
        result: The verdict at the check presets.
        parent: Hash of the candidate that it was made from, or None.
        plan: What was to be changed, in words.
        place: Where it stands in the search.
        tokens: Input and output tokens of the calls that led to it.
    """

    sample: int
    source_sha256: str
    result: EvalResult
    parent: str | None = None
    plan: str = ""
    place: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Best:
    """The fastest correct candidate of a workload.

    Attributes:
        sample: The candidate.
        speedup: Over XLA, by the most thorough verdict there is.
        verified: Whether its numbers were compared at the published size.
    """

    sample: Sample
    speedup: float
    verified: bool


@dataclass(frozen=True)
class Run:
    """One rollout.

    Attributes:
        name: What it is called in messages: its directory.
        settings: Its run.json.
        samples: By workload, in the order of their numbers.
        finals: Verdicts at the published size by workload and hash of the text.
        source: Gives a kernel text by its hash.
        usage: "calls", "input_tokens", "output_tokens" and "cost" of all answers; a cost of None
            is unknown.
        notes: What was passed over when it was read.
    """

    name: str
    settings: Mapping[str, Any]
    samples: Mapping[str, Sequence[Sample]]
    finals: Mapping[tuple[str, str], EvalResult]
    source: Callable[[str], str]
    usage: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def workloads(self) -> list[str]:
        """Ids of what it was asked to run on."""
        return list(self.settings["workloads"])

    @property
    def results(self) -> Iterable[EvalResult]:
        """All verdicts."""
        for samples in self.samples.values():
            yield from (one.result for one in samples)
        yield from self.finals.values()

    def speedup(self, workload: str, one: Sample) -> float | None:
        """What a candidate is worth: None if it is wrong, at the published size too."""
        final = self.finals.get((workload, one.source_sha256), one.result)
        return final.speedup if one.result.correct and final.correct else None

    def best(self, workload: str) -> Best | None:
        """The best of a workload; None where nothing is right.

        A rollout gives a workload up whose `FINALISTS` fastest are wrong at the published size, and
        so does this.
        """
        ordered = [s for s in self.samples.get(workload, ()) if s.result.correct]
        ordered.sort(key=lambda one: (-(one.result.speedup or 0.0), one.sample))
        failed: set[str] = set()
        for one in ordered:
            if self.speedup(workload, one) is None:
                failed.add(one.source_sha256)
            elif len(failed) >= FINALISTS:
                return None
            else:
                checked = (workload, one.source_sha256) in self.finals
                return Best(one, self.speedup(workload, one), checked)
        return None


def read(
    name: str,
    settings: Mapping[str, Any],
    candidates: Iterable[Mapping[str, Any]],
    finals: Iterable[Mapping[str, Any]],
    calls: Iterable[Mapping[str, Any]],
    source: Callable[[str], str],
    notes: Sequence[str] = (),
) -> Run:
    """Makes a run of what its files hold (docs/records.md).

    Args:
        name: What to call it.
        settings: run.json.
        candidates: Lines of candidates.jsonl.
        finals: Lines of finals.jsonl.
        calls: Lines of calls.jsonl.
        source: Gives a kernel text by its hash.
        notes: What was passed over.

    Raises:
        ReportError: If a field is missing or not what it should be.
    """
    missing = [key for key in SETTINGS if key not in settings]
    if missing:
        raise ReportError(f"{name}: run.json lacks {', '.join(missing)}: it is not a rollout's")
    samples: dict[str, dict[int, Sample]] = {}
    try:
        for line in candidates:
            of = samples.setdefault(line["workload"], {})
            of[line["sample"]] = Sample(
                line["sample"],
                line["source_sha256"],
                EvalResult.from_dict(line["result"]),
                line["parent"],
                line["plan"],
                line["place"],
                (line["input_tokens"], line["output_tokens"]),
            )
        checked = {
            (line["workload"], line["source_sha256"]): EvalResult.from_dict(line["result"])
            for line in finals
        }
        answers = list(calls)
        usage = {
            "calls": len(answers),
            "input_tokens": sum(line["input_tokens"] for line in answers),
            "output_tokens": sum(line["output_tokens"] for line in answers),
            "cost": _sum([line["cost"] for line in answers]),
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{name}: a record is not as docs/records.md says: {error!r}") from None
    unknown = samples.keys() - {*settings["workloads"]}
    if unknown:
        raise ReportError(f"{name}: verdicts on {', '.join(sorted(unknown))}, not in run.json")
    ordered = {w: [of[n] for n in sorted(of)] for w, of in sorted(samples.items())}
    return Run(name, settings, ordered, checked, source, usage, tuple(notes))


def _sum(costs: list[float | None]) -> float | None:
    return None if not costs or None in costs else sum(costs)


def joined(runs: Sequence[Run]) -> list[Run]:
    """Runs of one seed that have no workload in common as one; what they cost is left out.

    Args:
        runs: Alike but for seed and workloads.
    """
    found: list[Run] = []
    for run in runs:
        for at, other in enumerate(found):
            same = other.settings["seed"] == run.settings["seed"]
            if same and not {*other.workloads} & {*run.workloads}:
                both = {**other.settings, "workloads": [*other.workloads, *run.workloads]}
                found[at] = dataclasses.replace(
                    other,
                    settings=both,
                    samples={**other.samples, **run.samples},
                    finals={**other.finals, **run.finals},
                    usage={},
                )
                break
        else:
            found.append(run)
    return found


def writer(proposer: Mapping[str, Any] | None) -> str:
    """Name of who wrote a run's texts: a model's, or the proposer's."""
    if proposer is None:
        return ""
    if proposer.get("proposer") == "replay" and isinstance(proposer.get("of"), Mapping):
        return f"{writer(proposer['of'])} (replayed)"
    return str(proposer.get("model") or proposer.get("proposer"))


def kind(settings: Mapping[str, Any]) -> str:
    """What a run's rows are: ``"model"``, ``"synthetic"``, or ``"people"`` for finished kernels.

    Texts sampled from templates are synthetic, whoever proposes them.
    """
    proposer = settings["proposer"]
    while isinstance(proposer, Mapping) and proposer.get("proposer") == "replay":
        proposer = proposer.get("of")
    if proposer is None:
        return "people" if settings["policy"] == "expert" else "synthetic"
    return "synthetic" if proposer.get("proposer") == "template" else "model"


def facts(runs: Sequence[Run]) -> dict[str, Any]:
    """What all verdicts of a report share: target, protocol, versions, times, evaluator.

    Raises:
        ReportError: If they differ, if there are none, or if synthetic rows would stand beside a
            model's.
    """
    seen: dict[str, dict[str, list[str]]] = {}

    def note(what: str, value: Any, run: Run) -> None:
        names = seen.setdefault(what, {}).setdefault(json.dumps(value, sort_keys=True), [])
        if run.name not in names:
            names.append(run.name)

    for run in runs:
        note("evaluators", run.settings["evaluator"], run)
        for result in run.results:
            origin = result.provenance
            note("protocols", origin.protocol, run)
            note("targets", origin.target, run)
            note("versions", origin.versions, run)
            if result.times.candidate_ms is not None:
                note("time sources", result.times.source, run)
            note(f"versions of workload {origin.workload}", origin.workload_version, run)
    if "protocols" not in seen:
        raise ReportError(f"no verdicts yet in {', '.join(run.name for run in runs) or 'no run'}")
    for what, values in seen.items():
        if len(values) > 1:
            raise ReportError(
                f"records of different {what} do not belong in one table: "
                + "; ".join(f"{value} in {', '.join(names)}" for value, names in values.items())
                + ". Report them apart"
            )
    kinds = {kind(run.settings): run.name for run in runs}
    if {"model", "synthetic"} <= kinds.keys():
        raise ReportError(
            f"{kinds['synthetic']} is synthetic (its texts come from templates) and "
            f"{kinds['model']} is a model's: they do not belong in one table. Report them apart"
        )
    value = {what: json.loads(next(iter(values))) for what, values in seen.items()}
    return {
        "target": value["targets"],
        "protocol": value["protocols"],
        "versions": value["versions"],
        "times": value.get("time sources", "predicted"),
        "evaluator": value["evaluators"],
        "kind": next((k for k in ("model", "synthetic") if k in kinds), "people"),
    }
