"""Predicted times over blocks, with what they consist of."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from variants.run import Results

PARTS = (
    ("issue_ms", "issue: bundles", "#4c72b0"),
    ("transfer_ms", "waits for HBM's bandwidth", "#dd8452"),
    ("latency_ms", "exposed DMA latency", "#c44e52"),
)


@dataclass(frozen=True)
class Panel:
    """One set of axes: all variants with the `fixed` parameters, over one or two others.

    Attributes:
        title: What is varied.
        over: Parameters along the axis; the first one also where several change together.
        group: Parameter that sets bars side by side, or "".
        fixed: Parameters that all bars share; a function of the parameters gives one that depends
            on others.
        same: Parameters that equal the first of `over`.
    """

    title: str
    over: tuple[str, ...]
    group: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)
    same: tuple[str, ...] = ()


_MATMUL = {"m": 512, "n": 512, "k": 512, "buffers": 2, "order": "mnk", "depth": 4096}
_EPILOGUE = {"m": 512, "n": 512, "buffers": 2, "order": "mn"}
_FLASH = {"q": 1024, "k_major": 1024, "k": 512, "causal": True}
_SCAN = {"heads": 16, "span": 512, "buffers": 2, "group": 2, "ahead": 2}
_GROUPED = {"m": 512, "n": 1024, "k": 512, "buffers": 2, "order": "gmnk"}


def _but(base: dict, *names: str, **changed: Any) -> dict:
    return {key: value for key, value in (base | changed).items() if key not in names}


PANELS: dict[str, tuple[Panel, ...]] = {
    "matmul": (
        Panel("m = n = k", ("m",), "buffers", _but(_MATMUL, "m", "n", "k", "buffers"), ("n", "k")),
        Panel("m (n = k = 512)", ("m",), "buffers", _but(_MATMUL, "m", "buffers")),
        Panel("n (m = k = 512)", ("n",), "buffers", _but(_MATMUL, "n", "buffers")),
        Panel("k (m = n = 512)", ("k",), "buffers", _but(_MATMUL, "k", "buffers")),
        Panel("contracted size (blocks 512)", ("depth",), "", _but(_MATMUL, "depth")),
        Panel("grid order", ("m", "n"), "order", _but(_MATMUL, "m", "n", "order")),
    ),
    "epilogue": (
        Panel("m = n", ("m",), "buffers", _but(_EPILOGUE, "m", "n", "buffers"), ("n",)),
        Panel("m (n = 512)", ("m",), "", _but(_EPILOGUE, "m")),
        Panel("n (m = 512)", ("n",), "", _but(_EPILOGUE, "n")),
        Panel("grid order", ("m", "n"), "order", _but(_EPILOGUE, "m", "n", "order")),
    ),
    "rms_norm": (
        Panel("rows a block", ("rows",), "buffers", {"total": 16384}),
        Panel("rows in all (256 a block)", ("total",), "", {"rows": 256, "buffers": 2}),
    ),
    "softmax": (Panel("rows a block", ("rows",), "buffers"),),
    "flash_attention": (
        Panel("q = k_major = k", ("q",), "", {"causal": True}, ("k_major", "k")),
        Panel("q (k_major 1024, k 512)", ("q",), "", _but(_FLASH, "q")),
        Panel(
            "k_major, k at most 512 (q 1024)",
            ("k_major",),
            "",
            {"q": 1024, "causal": True, "k": lambda p: min(p["k_major"], 512)},
        ),
        Panel(
            "k (k_major 2048)",
            ("k",),
            "q",
            {"k_major": 2048, "causal": True, "q": lambda p: 512 if p["q"] == 512 else 2048},
        ),
        Panel("q = k_major, k at most 512, not causal", ("q",), "", {"causal": False}),
    ),
    "chunked_scan": (
        Panel("positions a step", ("span",), "buffers", _but(_SCAN, "span", "buffers")),
        Panel("heads a step", ("heads",), "", _but(_SCAN, "heads")),
        Panel("groups started ahead", ("ahead",), "", _but(_SCAN, "ahead")),
        Panel("heads that share a product", ("group",), "", _but(_SCAN, "group")),
    ),
    "grouped_matmul": (
        Panel(
            "n = k, m at most 1024",
            ("n",),
            "buffers",
            {"order": "gmnk", "m": lambda p: min(p["n"], 1024)},
            ("k",),
        ),
        Panel("k (m 512, n 1024)", ("k",), "buffers", _but(_GROUPED, "k", "buffers")),
        Panel("pipeline order (m 256, k 2048)", ("n",), "order", {"m": 256, "n": 1024, "k": 2048}),
    ),
}


def _wanted(panel: Panel, parameters: dict[str, Any]) -> bool:
    for name, value in panel.fixed.items():
        if parameters[name] != (value(parameters) if callable(value) else value):
            return False
    return all(parameters[name] == parameters[panel.over[0]] for name in panel.same)


def select(panel: Panel, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The panel's variants, in the order in which they are drawn."""
    found = [r for r in records if r["status"] == "compiled" and _wanted(panel, r["parameters"])]
    if panel.group == "order":  # only where there is something to compare
        points = collections.Counter(tuple(r["parameters"][n] for n in panel.over) for r in found)
        found = [r for r in found if points[tuple(r["parameters"][n] for n in panel.over)] > 1]
    names = [*panel.over, *filter(None, [panel.group])]
    return sorted(found, key=lambda record: [record["parameters"][name] for name in names])


def draw(kernel: str, results: Results, folder: Path) -> Path:
    """Draws one kernel's panels and returns the PNG's path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = [one for one in results.records.values() if one["kernel"] == kernel]
    panels = PANELS[kernel]
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(max(5 * columns, 7), 3.6 * rows),
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for panel, axis in zip(panels, axes.flat, strict=False):
        _bars(axis, panel, select(panel, records))
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=5 if columns > 1 else 3, fontsize=8
    )
    figure.suptitle(f"{kernel}: predicted milliseconds on a v6e")
    path = folder / f"{kernel}.png"
    figure.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(figure)
    return path


def _bars(axis, panel: Panel, records: list[dict[str, Any]]) -> None:
    groups = sorted({one["parameters"].get(panel.group, "") for one in records}, key=str)
    points = list(dict.fromkeys(tuple(r["parameters"][n] for n in panel.over) for r in records))
    width = 0.84 / max(len(groups), 1)
    times = [record["ms"] for record in records] or [1]
    cut = max(times) > 8 * min(times)  # the slowest would hide the others
    top = 5 * min(times) if cut else max(times)
    for record in records:
        parameters = record["parameters"]
        at = points.index(tuple(parameters[name] for name in panel.over))
        place = groups.index(parameters.get(panel.group, ""))
        x, bottom = at + (place - (len(groups) - 1) / 2) * width, 0.0
        first = record is records[0]
        for key, label, colour in PARTS:
            axis.bar(
                x,
                record[key],
                width * 0.92,
                bottom=bottom,
                color=colour,
                label=label if first else None,
            )
            bottom += record[key]
        for key, style, label in (
            ("bandwidth_ms", "-", "its HBM bytes at the model's bandwidth"),
            ("roofline_ms", ":", "roofline"),
        ):
            axis.hlines(
                record[key],
                x - width / 2,
                x + width / 2,
                colors="black",
                linestyles=style,
                label=label if first else None,
            )
        text = f"{panel.group[:1]}{parameters[panel.group]}" if panel.group else ""
        if panel.group == "order":
            text = parameters["order"]
        if cut and bottom > top:
            text, bottom = f"{text} {record['ms']:.1f}", top
        axis.text(x, bottom, text, ha="center", va="bottom", fontsize=6)
    labels = [" x ".join(map(str, point)) for point in points]
    axis.set_xticks(range(len(points)), labels, fontsize=8)
    axis.set_title(panel.title, fontsize=10)
    axis.set_ylabel("ms")
    if cut:
        axis.set_ylim(0, top * 1.06)
        axis.set_title(f"{panel.title}, cut", fontsize=10)


def tables(results: Results, compared: Results) -> str:
    """Every variant's parts, and the replay against libtpu's static profile, as Markdown."""
    lines = [
        "# Predicted times of the variants",
        "",
        "Written by `scripts/study_variants.py plot`; what stands out is explained in "
        "[variants.md](../variants.md). Milliseconds; time = issue + transfer + latency + launch.",
    ]
    kernels = dict.fromkeys(one["kernel"] for one in results.records.values())
    for kernel in kernels:
        records = [one for one in results.records.values() if one["kernel"] == kernel]
        names = list(records[0]["parameters"])
        head = [*names, "time", "issue", "transfer", "latency", "HBM bytes", "roofline", "VMEM MiB"]
        lines += ["", f"## {kernel}", "", _row(head), _row(["---"] * len(head))]
        for one in records:
            cells = [one["parameters"][name] for name in names]
            if one["status"] == "compiled":
                keys = ("ms", "issue_ms", "transfer_ms", "latency_ms", "bandwidth_ms")
                cells += [f"{one[key]:.4f}" for key in (*keys, "roofline_ms")]
                cells.append(f"{(one['vmem_used'] or 0) / 2**20:.1f}")
            else:
                cells.append(one["status"])
            lines.append(_row(cells))
    return "\n".join([*lines, *_static_table(compared)]) + "\n"


def _static_table(compared: Results) -> list[str]:
    lines = [
        "",
        "## Against libtpu's static profile",
        "",
        "Cycles of the kernel's own program over small arrays. *replay* is priced with libtpu's "
        "view of a transfer: 547 cycles and 776 bytes a cycle, no queue. *issue* leaves waits out.",
        "",
        _row(["kernel", "parameters", "static", "replay", "replay / static", "issue"]),
        _row(["---"] * 6),
    ]
    for one in compared.records.values():
        if one["status"] != "compiled":
            continue
        text = " ".join(f"{name}={value}" for name, value in one["parameters"].items())
        ratio = f"{one['alike'] / one['static']:.3f}"
        cells = [one["kernel"], text, f"{one['static']:,}", f"{one['alike']:,}", ratio]
        lines.append(_row([*cells, f"{one['issue']:,}"]))
    return lines


def _row(cells: list) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
