"""A page's charts, as HTML and SVG."""

from __future__ import annotations

import html
import math
from typing import Any

from jaxbench_env.report.tables import NAMES

#: Colours of the outcomes: two greens for what is right, then the mistakes.
COLOURS = {
    "faster": "#1b7837",
    "correct": "#7fbf7b",
    "api_misuse": "#b2182b",
    "layout": "#ef8a62",
    "vmem": "#fdbf6f",
    "unsupported": "#762a83",
    "tracing": "#9970ab",
    "numerics": "#2166ac",
    "race": "#67a9cf",
    "timeout": "#8c6d31",
    "cheat": "#252525",
    "other": "#969696",
}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 460, 230, 44, 34


def outcomes(summary: dict[str, Any]) -> str:
    """A stacked bar for each row. The table beside it has the numbers."""
    used = [n for n in COLOURS if any(row["outcomes"][n] for row in summary["rows"])]
    key = "".join(
        f'<li><span class=swatch style="background:{COLOURS[n]}"></span>'
        f"{html.escape(NAMES[n])}</li>"
        for n in used
    )
    bars = []
    for row in summary["rows"]:
        total = max(1, row["samples"])
        shares = [(name, row["outcomes"][name] / total) for name in used]
        parts = "".join(
            f'<span style="flex-grow:{share:.5f};background:{COLOURS[name]}" '
            f'title="{html.escape(NAMES[name])}: {share:.1%}"></span>'
            for name, share in shares
            if share
        )
        said = ", ".join(f"{NAMES[name]} {share:.1%}" for name, share in shares if share)
        label = html.escape(row["label"])
        bars.append(
            f"<div class=barline><span>{label}</span>"
            f'<span class=bar role=img aria-label="{label}: {html.escape(said)}">'
            f"{parts}</span></div>"
        )
    return f"<ul class=key>{key}</ul>{''.join(bars)}"


def progress(summary: dict[str, Any]) -> str:
    """Two charts over samples: the best so far, and the share of workloads solved."""
    rows = summary["rows"]
    key = "".join(
        f'<li><span class="swatch s{index % 8}"></span>{html.escape(row["label"])}</li>'
        for index, row in enumerate(rows)
    )
    best = [row["progress"]["median_best"] for row in rows]
    share = [[100 * s for s in row["progress"]["solved"]] for row in rows]
    top = max(2.0, *(max(curve) for curve in best))
    return (
        f"<ul class=key>{key}</ul><div class=charts>"
        + _chart("Best speedup so far, median over workloads", best, 0.0, top, "x")
        + _chart("Workloads solved, %", share, 0.0, 100.0, "")
        + "</div>"
    )


def _chart(title: str, curves: list[list[float]], low: float, high: float, unit: str) -> str:
    length = max(map(len, curves))
    wide, tall = _WIDTH - _LEFT - 10, _HEIGHT - _BOTTOM - 10

    def x(sample: float) -> float:
        return _LEFT + wide * (sample - 1) / max(1, length - 1)

    def y(value: float) -> float:
        return 10 + tall * (1 - (value - low) / (high - low))

    parts = []
    for n in range(5):
        value = low + (high - low) * n / 4
        parts.append(
            f"<line class=grid x1={_LEFT} x2={_WIDTH - 10} "
            f'y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text x={_LEFT - 6} y="{y(value) + 4:.1f}" text-anchor=end>{value:.3g}{unit}</text>'
        )
    step = max(1, math.ceil(length / 6))
    for sample in sorted({1, *range(step, length + 1, step)}):
        parts.append(
            f'<text x="{x(sample):.1f}" y={_HEIGHT - 16} text-anchor=middle>{sample}</text>'
        )
    for index, curve in enumerate(curves):
        points = [f"{x(1):.1f},{y(curve[0]):.1f}"]
        for sample, value in enumerate(curve[1:], 2):
            points.append(f"{x(sample):.1f},{y(curve[sample - 2]):.1f}")
            points.append(f"{x(sample):.1f},{y(value):.1f}")
        parts.append(f'<polyline class="l{index % 8}" points="{" ".join(points)}"/>')
    parts.append(f"<text x={_WIDTH // 2} y={_HEIGHT - 2} text-anchor=middle>samples</text>")
    title = html.escape(title)
    return (
        f"<figure><figcaption>{title}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img aria-label="{title}; the table below has '
        f'the numbers">{"".join(parts)}</svg></figure>'
    )
