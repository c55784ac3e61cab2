"""A report, or one verdict, as one HTML file that needs nothing else.

Tables and charts are plain HTML. Kernels and verdicts are packed by workload (JSON, gzip, base64)
and unpacked by the browser when they are looked at, so that thousands of them fit a page. Texts of
policies reach the page only inside these packs, and the script puts them there as text.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jaxbench_env.evaluator.cache import source_hash
from jaxbench_env.evaluator.result import EvalResult
from jaxbench_env.feedback import feedback
from jaxbench_env.report import charts
from jaxbench_env.report.records import Run, Sample, writer
from jaxbench_env.report.summary import OUTCOMES, outcome
from jaxbench_env.report.tables import NAMES, Table, sentence, tables

#: Nothing but what stands in the page is ever loaded or run.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
_SHORT = 16  # digits of a hash in the page
#: Parts of a verdict that the page shows otherwise, or not.
_LEFT_OUT = ("message", "details", "durations", "correct", "compiled", "status", "speedup")


def report_page(summary: dict[str, Any], runs: Sequence[Run]) -> bytes:
    """A report with all kernels and verdicts.

    Args:
        summary: As `summarise` makes it.
        runs: The rollouts that it is of.
    """
    parts = [f"<p>{html.escape(sentence(summary['facts']))}</p>"]
    if summary["notes"]:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in summary["notes"])
        parts.append(f"<ul class=notes>{items}</ul>")
    for table in tables(summary):
        parts.append(f"<section><h2>{html.escape(table.title)}</h2>")
        parts.append(f"<p>{html.escape(table.caption)}</p>")
        if table.name == "outcomes":
            parts.append(charts.outcomes(summary))
        if table.name == "progress":
            parts.append(charts.progress(summary))
        parts.append(_table(table, summary, runs) + "</section>")
    return _page("Report", "\n".join(parts), runs)


def verdict_page(workload: str, source: str, result: EvalResult) -> bytes:
    """One verdict with its kernel.

    Args:
        workload: Id of the workload.
        source: The kernel text.
        result: The verdict on it.
    """
    settings = {"policy": "", "proposer": None, "seed": None, "workloads": [workload]}
    sample = Sample(0, source_hash(source), result)
    run = Run("", settings, {workload: [sample]}, {}, lambda digest: source)
    return _page(f"{workload}: {result.status.value}", "", [run])


def _page(title: str, body: str, runs: Sequence[Run]) -> bytes:
    data = files(__package__) / "data"
    index, packs = _packed(runs)
    blocks = "\n".join(
        f'<script type="application/octet-stream" id="{name}">{pack}</script>'
        for name, pack in [("index", index), *packs]
    )
    text = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<style>{(data / "page.css").read_text("utf-8")}</style>
</head>
<body>
<main>
<h1>{html.escape(title)}</h1>
{body}
<section id="browser">
<h2 id="kernels">Kernels and verdicts</h2>
<p id="problem" role="alert"></p>
<noscript>
<p>Kernels are packed inside this page; a browser with JavaScript unpacks them.</p>
</noscript>
<form id="choice" hidden>
<label>Workload <select id="workload"></select></label>
<label>Run <select id="run"></select></label>
<label>Outcome <select id="outcome"></select></label>
<label>Order <select id="order"><option value="sample">sample</option>
<option value="speedup">speedup</option></select></label>
</form>
<div id="split" hidden>
<div id="list" tabindex="0" role="region" aria-label="Samples"></div>
<article id="detail" aria-live="polite"></article>
</div>
</section>
</main>
{blocks}
<script>{(data / "page.js").read_text("utf-8")}</script>
</body>
</html>
"""
    return text.encode("utf-8", "backslashreplace")


def _table(table: Table, summary: dict[str, Any], runs: Sequence[Run]) -> str:
    head = "".join(f"<th scope=col>{html.escape(column)}</th>" for column in table.columns)
    lines = []
    for row in table.rows:
        cells = [f"<th scope=row>{html.escape(row[0].text)}</th>"]
        for cell in row[1:]:
            text = html.escape(cell.text)
            if cell.row is not None and cell.value is not None:
                target = _best(summary["rows"][cell.row], row[0].text, cell.value, runs)
                text = f'<a href="{target}">{text}</a>' if target else text
            lost = cell.row is not None and cell.value is not None and cell.value <= 1
            cells.append(f"<td{' class=slow' if lost else ''}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class=wide tabindex=0 role=region aria-label="{html.escape(table.title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _best(row: dict[str, Any], workload: str, speedup: float, runs: Sequence[Run]) -> str:
    """Where the kernel of a table's speedup stands in the page."""
    for number, run in enumerate(runs):
        best = run.best(workload) if run.name in row["runs"] else None
        if best is not None and best.speedup == speedup:
            return f"#/{quote(workload, safe='')}/{number}/{best.sample.sample}"
    return ""


def _packed(runs: Sequence[Run]) -> tuple[str, list[tuple[str, str]]]:
    """The index of all samples, and the packs of the workloads."""
    names = list(dict.fromkeys(name for run in runs for name in run.workloads))
    index: dict[str, Any] = {
        "outcomes": [[name, NAMES[name], charts.COLOURS[name]] for name in OUTCOMES],
        "runs": [_title(run, runs) for run in runs],
        "workloads": [],
    }
    packs = []
    for name in names:
        sources: dict[str, str] = {}
        lines, details = [], {}
        for number, run in enumerate(runs):
            for one in run.samples.get(name, ()):
                digest = one.source_sha256[:_SHORT]
                if digest not in sources:
                    sources[digest] = run.source(one.source_sha256)
                final = run.finals.get((name, one.source_sha256))
                lines.append(
                    [
                        number,
                        one.sample,
                        OUTCOMES.index(outcome(one.result)),
                        one.result.status.value,
                        _rounded(run.speedup(name, one)),
                        digest,
                        one.parent and one.parent[:_SHORT],
                        _place(one),
                    ]
                )
                details[f"{number}/{one.sample}"] = _detail(one, sources[digest], final)
        if lines:
            block = f"pack{len(packs)}"
            index["workloads"].append({"id": name, "pack": block, "samples": lines})
            packs.append((block, _pack({"sources": sources, "samples": details})))
    return _pack(index), packs


def _title(run: Run, runs: Sequence[Run]) -> str:
    """What a run is called: by what it is, and by its name where that is not enough."""

    def short(one: Run) -> str:
        who = writer(one.settings["proposer"])
        parts = [one.settings["policy"], who, f"seed {one.settings['seed']}"]
        return ", ".join(part for part in parts if part)

    several = sum(short(other) == short(run) for other in runs) > 1
    return f"{short(run)}, {run.name}" if several else short(run)


def _place(one: Sample) -> str:
    return ", ".join(f"{key} {value}" for key, value in one.place.items())


def _detail(one: Sample, source: str, final: EvalResult | None) -> dict[str, Any]:
    record = {k: v for k, v in one.result.to_dict().items() if k not in _LEFT_OUT}
    detail = {
        "feedback": feedback(one.result, source),
        "plan": one.plan,
        "tokens": one.tokens if any(one.tokens) else None,
        "result": _rounded(record),
        "final": None,
    }
    if final is not None:
        checks = [dataclasses.asdict(c) for c in final.numerics if c.preset == "v6e"]
        detail["final"] = _rounded(
            {"status": final.status.value, "message": final.message, "numerics": checks}
        )
    return detail


def _rounded(value: Any) -> Any:
    """Numbers to six digits: a page is for reading."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def _pack(data: Any) -> str:
    # JavaScript knows no NaN.
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
