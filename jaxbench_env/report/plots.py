"""A report's pictures, as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxbench_env.report.charts import COLOURS
from jaxbench_env.report.tables import NAMES, columns_beside, compilers

LINES = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#b35806", "#01665e", "#525252", "#c51b7d")
FILES = ("outcomes.png", "progress.png", "workloads.png")
MISSING = "PNG files were not written: matplotlib is missing (pip install 'jaxbench-env[plots]')"


class NoPlots(ImportError):
    """matplotlib is not installed."""


def write(summary: dict[str, Any], folder: Path) -> list[str]:
    """Writes the pictures.

    Returns:
        Their names.

    Raises:
        NoPlots: If matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NoPlots(MISSING) from None
    note = compilers(summary)
    if summary["facts"]["kind"] == "synthetic":
        note = f"synthetic; {note}"
    makers = (_outcomes, _progress, _workloads)
    for name, make in zip(FILES, makers, strict=True):
        figure = Figure(layout="constrained")
        make(figure, summary)
        for legend in figure.legends:
            legend.set_title(note, prop={"size": 7})
        # Without the version of matplotlib the bytes depend on what they show alone.
        figure.savefig(folder / name, dpi=130, metadata={"Software": None})
    return list(FILES)


def _outcomes(figure: Any, summary: dict[str, Any]) -> None:
    rows = summary["rows"]
    figure.set_size_inches(9, 1.6 + 0.42 * len(rows))
    axes = figure.subplots()
    places = range(len(rows))
    left = [0.0] * len(rows)
    for name, colour in COLOURS.items():
        widths = [100 * row["outcomes"][name] / max(1, row["samples"]) for row in rows]
        if any(widths):
            axes.barh(places, widths, left=left, color=colour, label=NAMES[name], height=0.7)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set(xlim=(0, 100), xlabel="share of samples, %", title="What samples came to")
    axes.set_yticks(places, [row["label"] for row in rows])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)


def _progress(figure: Any, summary: dict[str, Any]) -> None:
    figure.set_size_inches(9, 3.8)
    best, share = figure.subplots(1, 2)
    for index, row in enumerate(summary["rows"]):
        style = {"color": LINES[index % len(LINES)], "linestyle": ("-", "--", ":")[index // 8 % 3]}
        curve = row["progress"]
        steps = range(1, len(curve["solved"]) + 1)
        best.step(steps, curve["median_best"], where="post", label=row["label"], **style)
        share.step(steps, [100 * s for s in curve["solved"]], where="post", **style)
    best.set(title="Best speedup so far, median", xlabel="samples", ylabel="over XLA")
    best.axhline(1, color="#888888", linewidth=0.8)
    best.set_ylim(bottom=0)
    share.set(title="Workloads solved, %", xlabel="samples", ylim=(0, 102))
    for axes in (best, share):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def _workloads(figure: Any, summary: dict[str, Any]) -> None:
    names = list(dict.fromkeys(name for row in summary["rows"] for name in row["speedups"]))
    figure.set_size_inches(9, 2.0 + 0.22 * len(names))
    axes = figure.subplots()
    marks = "osD^vP*X"
    for index, row in enumerate(summary["rows"]):
        style = {"color": LINES[index % len(LINES)], "marker": marks[index % len(marks)]}
        _points(axes, names, row["speedups"], row["label"], alpha=0.85, **style)
    for mark, (heading, of) in zip("|x12", columns_beside(summary)[:3], strict=False):
        values = {name: cell.get("speedup") for name, cell in of.items()}
        _points(axes, names, values, heading, color="#444444", marker=mark)
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [step * 10.0**n for n in range(-3, 4) for step in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(
        ylim=(len(names) - 0.5, -0.5), xlabel="speedup over XLA", title="Best of each workload"
    )
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize=7, frameon=False)


def _points(axes: Any, names: list[str], values: dict[str, Any], label: str, **style: Any) -> None:
    found = [(values[name], y) for y, name in enumerate(names) if values.get(name)]
    axes.scatter([x for x, _ in found], [y for _, y in found], s=28, label=label, **style)
