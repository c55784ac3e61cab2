"""Compares predicted with published v6e times, with the compiler of the measurements.

    python scripts/calibrate_timing.py [--only ID,ID] [--also-installed] [--fit] [--json]

Makes an environment with jax 0.9.2 and libtpu 0.0.37 in the cache directory, compiles every
published-size program there (50 baselines in their published form and the 8 hand-tuned kernels),
replays the schedules with the installed package and writes `docs/timing.csv` and `docs/timing.md`.
Compiled programs are kept, so that an interrupted run resumes and a changed model is priced anew in
a minute. The first run takes about half an hour on two cores.

`--also-installed` adds the installed compiler's programs, as information: nobody measured those.
`--fit` scans the fitted constants and leaves one workload out at a time; it takes some minutes.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
from scipy import stats

import workloads
from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.judge import feeds as scalars
from jaxbench_env.evaluator.sandbox import TPU_ENVIRONMENT
from jaxbench_env.evaluator.timing import Constants, TimingError, predict
from jaxbench_env.progress import progress_bar
from workloads.data import published

ROOT = Path(__file__).parents[1]
EXPERTS = ROOT / "scripts" / "published_experts"
CSV, PAGE, NOTES = (ROOT / "docs" / name for name in ("timing.csv", "timing.md", "timing_notes.md"))
MEASURED_WITH = ("jax[tpu]==0.9.2", "absl-py")
COMPILE_SECONDS = 1800
MAX_TEXT_BYTES = 1 << 30
FEED_SEED = 0  # the published inputs are fixed; nothing here is secret
SCORES = ("spearman", "median", "p90", "worst", "geometric", "within_10", "within_20")
# The scan of the fitted constants: TB/s, cycles, share.
BANDWIDTHS, LATENCIES, SLOWDOWNS = (1.3, 1.35, 1.4, 1.45), (1300, 1600, 1900), (1.03, 1.06, 1.09)


@dataclass(frozen=True)
class Program:
    """One program of the published table.

    Attributes:
        workload: Workload id.
        kind: ``"baseline"`` or ``"expert"``.
    """

    workload: str
    kind: str

    @property
    def published_ms(self) -> float | None:
        """Its published time, if there is one that can be compared."""
        return getattr(published(self.workload), f"{self.kind}_ms")

    @property
    def comparable(self) -> bool:
        """Whether its published time is of this program."""
        note = published(self.workload).note
        unjitted = self.kind == "baseline" and "un-jitted" in note
        return self.published_ms is not None and not unjitted

    @property
    def text(self) -> str:
        """What decides the program besides the compiler."""
        if self.kind == "expert":
            return (EXPERTS / f"{self.workload}.py").read_text()
        return workloads.get(self.workload, variant="published").reference_source()

    @property
    def random_data(self) -> bool:
        """Whether it was measured on random operands."""
        return not published(self.workload).zero_weights


@dataclass(frozen=True)
class Row:
    """One line of the CSV; times in milliseconds, None where there are none."""

    workload: str
    program: str
    compiler: str
    predicted_ms: float | None
    published_ms: float | None
    uncertain: bool
    comparable: bool
    xla_ms: float | None
    roofline_ms: float
    compile_seconds: float
    replay_seconds: float
    remark: str


def programs(only: Sequence[str] = ()) -> list[Program]:
    """All programs, or those of some workloads."""
    experts = {path.stem for path in EXPERTS.glob("*.py")}
    chosen = [workloads.get(name).id for name in only] or workloads.ids()
    every = [Program(name, "baseline") for name in chosen]
    return every + [Program(name, "expert") for name in chosen if name in experts]


# ------------------------------------------------------------------------- environments, compiles


def environment() -> Path:
    """Python of an environment with the compiler of the measurements, made if need be."""
    folder = store.cache_directory() / "calibrate" / "venv-jax-0.9.2"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        click.echo(f"installing {MEASURED_WITH[0]} into {folder}", err=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *MEASURED_WITH], check=True)
        (folder / "complete").touch()
    return python


def compile_all(python: Path, tag: str, chosen: Iterable[Program]) -> dict[Program, Path]:
    """Dump folders of the programs, compiled with `python` where they are not there yet."""
    wanted = {}
    for program in chosen:
        mark = hashlib.sha256(program.text.encode()).hexdigest()[:16]
        base = store.cache_directory() / "calibrate" / tag
        wanted[program] = base / f"{program.workload}-{program.kind}-{mark}"
    missing = [program for program, folder in wanted.items() if not (folder / "meta.json").exists()]

    def compile_one(program: Program) -> str:
        source = EXPERTS / f"{program.workload}.py" if program.kind == "expert" else "baseline"
        script = [python, ROOT / "scripts" / "calibrate_compile.py"]
        with store.compile_slot():
            done = subprocess.run(
                [*script, program.workload, source, wanted[program]],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=COMPILE_SECONDS,
            )
        return "" if done.returncode == 0 else done.stderr.strip()[-300:]

    failures = {}
    with (
        ThreadPoolExecutor(store.compile_slots()) as threads,
        progress_bar(len(missing), f"compiling with {tag}") as advance,
    ):
        for program, problem in zip(missing, threads.map(compile_one, missing), strict=True):
            if problem:
                failures[program] = problem
            advance(f", {program.workload}")
    for program, problem in failures.items():
        click.echo(f"{program.workload} ({program.kind}) does not compile: {problem}", err=True)
    return {program: folder for program, folder in wanted.items() if program not in failures}


# ------------------------------------------------------------------------------------ predictions


@functools.cache
def feeds(program: Program, folder: Path) -> dict:
    """Values of the scalar operands of an expert kernel: the page tables, lengths and masks."""
    if program.kind == "baseline":
        return {}
    workload = workloads.get(program.workload, variant="published")
    shapes = json.loads((folder / "meta.json").read_text()).get("shapes", {})
    preset = workload.presets["v6e"]
    args = {
        name: replace(spec, shape=tuple(shapes.get(name, spec.shape)))
        for name, spec in preset.args.items()
    }
    shaped = workload_with(workload, replace(preset, args=args))
    text = (folder / "program.mlir").read_text()
    given = published_inputs(workload)
    return scalars.for_dump(text, shaped, FEED_SEED, folder / "dump", given=given)[0]


def workload_with(workload: workloads.Workload, preset: workloads.Preset) -> workloads.Workload:
    """A workload whose published preset is another one: some experts take other layouts."""
    changed = replace(workload)
    changed.__dict__["presets"] = {**workload.presets, "v6e": preset}  # a cached property
    return changed


def published_inputs(workload: workloads.Workload) -> dict[str, np.ndarray]:
    """The integer inputs on which a workload was measured: everything full and in order."""
    specs = workload.presets["v6e"].args
    given = {}
    for name, spec in specs.items():
        size = math.prod(spec.shape)
        if name == "kv_lens":
            pages = specs["page_indices"].shape[1]
            page = specs["kv_pages" if "kv_pages" in specs else "k_pages"].shape[1]
            given[name] = np.full(spec.shape, pages * page, np.int32)
        elif name == "page_indices":
            given[name] = np.arange(size, dtype=np.int32).reshape(spec.shape)
        elif name == "cu_q_lens":
            each = specs["queries"].shape[0] // (size - 1)
            given[name] = np.arange(size, dtype=np.int32) * each
        elif name == "num_seqs":
            given[name] = np.asarray([specs["kv_lens"].shape[0]], np.int32)
        elif name == "group_sizes":
            given[name] = np.full(spec.shape, specs["lhs"].shape[0] // size, np.int32)
    return given


def price(program: Program, folder: Path, constants: Constants | None = None):
    """The prediction for one compiled program, or the error that says why there is none."""
    try:
        return predict(
            folder / "dump",
            constants=constants,
            feeds=feeds(program, folder),
            max_text_bytes=MAX_TEXT_BYTES,
            random_data=program.random_data,
        )
    except TimingError as error:
        return error


def xla_estimate(folder: Path) -> float | None:
    """XLA's own estimate in milliseconds: its cycles of all instructions of the entry.

    None where a Pallas call, for which it has no estimate, is part of the program.
    """
    text = (folder / "hlo.txt").read_text()
    entry = text[text.find("\nENTRY") :]
    if "tpu_custom_call" in entry:
        return None
    cycles = sum(int(n) for n in re.findall(r'"estimated_cycles":"(\d+)"', entry))
    return cycles / Constants.load().clock_hz * 1e3 or None


def row(program: Program, folder: Path) -> Row:
    """The line of the table for one compiled program."""
    meta = json.loads((folder / "meta.json").read_text())
    feeds(program, folder)  # kept: not part of the replay
    started = time.process_time()
    prediction = price(program, folder)
    replayed = time.process_time() - started
    failed = isinstance(prediction, TimingError)
    return Row(
        workload=program.workload,
        program=program.kind,
        compiler=f"jax {meta['jax']}, libtpu {meta['libtpu']}",
        predicted_ms=None if failed else round(prediction.ms, 4),
        published_ms=program.published_ms,
        uncertain=failed or prediction.uncertain,
        comparable=program.comparable,
        xla_ms=xla_estimate(folder),
        roofline_ms=round(roofline(program.workload), 4),
        compile_seconds=round(meta["compile_seconds"], 1),
        replay_seconds=round(replayed, 2),
        remark=str(prediction) if failed else "; ".join(prediction.reasons[:3]),
    )


def roofline(name: str) -> float:
    """Milliseconds that the reference's own flops and least traffic take at the chip's peaks."""
    workload = workloads.get(name)
    flops = workload.flops(workload.sizes["v6e"])
    return workloads.chip("v6e").roofline_ms(flops, workload.min_hbm_bytes())


# ----------------------------------------------------------------------------------------- scores


def scores(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """How well predictions (first) agree with measurements (second), both in milliseconds."""
    if len(pairs) < 3:  # of a run with --only
        return dict.fromkeys(SCORES, math.nan) | {"programs": len(pairs)}
    errors = np.abs(np.log([p / m for p, m in pairs]))
    return {
        "programs": len(pairs),
        "spearman": float(stats.spearmanr(*zip(*pairs, strict=True)).statistic),
        "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
        "worst": float(errors.max()),
        "geometric": float(np.exp(np.sqrt(np.mean(errors**2))) - 1),
        "within_10": float(np.mean(errors <= math.log(1.1))),
        "within_20": float(np.mean(errors <= math.log(1.2))),
    }


def score_rows(rows: Sequence[Row], value: Callable[[Row], float | None]) -> dict[str, float]:
    """Scores of one predictor over the rows that can be compared and are no bounds."""
    pairs = [
        (value(r), r.published_ms) for r in rows if r.comparable and value(r) and not r.uncertain
    ]
    return scores(pairs)


# ------------------------------------------------------------------------------- fit, leaving out


def _scan_point(job: tuple[float, float, Program, Path]) -> tuple[float, bool]:
    bandwidth, latency, program, folder = job
    base = Constants.load()
    point = replace(base, hbm_bytes_per_cycle=bandwidth * 1e12 / base.clock_hz, dma_latency=latency)
    prediction = price(program, folder, point)
    failed = isinstance(prediction, TimingError)
    return (math.nan, True) if failed else (prediction.cycles, prediction.uncertain)


def fit(folders: dict[Program, Path]) -> dict:
    """Scans the fitted constants: the best of all, and what each program gets from the others.

    Launch time and clock are not scanned: both are read off programs that wait for nothing.
    """
    known = [(p, f) for p, f in folders.items() if p.comparable]
    grid = list(itertools.product(BANDWIDTHS, LATENCIES))
    jobs = [(bw, latency, p, f) for bw, latency in grid for p, f in known]
    cycles = {}
    with (
        ProcessPoolExecutor(os.cpu_count()) as processes,
        progress_bar(len(jobs), "scanning constants") as advance,
    ):
        for job, (count, uncertain) in zip(jobs, processes.map(_scan_point, jobs), strict=True):
            if not uncertain:
                cycles[job[:3]] = count
            advance(f", {job[2].workload}")
    base = Constants.load()
    used = [p for p, _ in known if all((*point, p) in cycles for point in grid)]

    def ms(point: tuple[float, float, float], program: Program) -> float:
        slowdown = point[2] if program.random_data else 1.0
        seconds = cycles[(*point[:2], program)] / base.clock_hz * slowdown
        return (seconds + base.launch_seconds) * 1e3

    points = list(itertools.product(BANDWIDTHS, LATENCIES, SLOWDOWNS))

    def best(over: Sequence[Program]) -> tuple[float, float, float]:
        def loss(point: tuple[float, float, float]) -> float:
            # the mean, not the mean square: some published times are of other inputs or programs
            return float(np.mean([abs(math.log(ms(point, p) / p.published_ms)) for p in over]))

        return min(points, key=loss)

    left_out = [(ms(best([q for q in used if q != p]), p), p.published_ms) for p in used]
    chosen = {best([q for q in used if q != p]) for p in used}
    return {"best": best(used), "choices": sorted(chosen), "scores": scores(left_out)}


# ---------------------------------------------------------------------------------------- reports


def write_csv(rows: Sequence[Row]) -> None:
    """Writes `docs/timing.csv`."""
    columns = [
        "workload", "program", "compiler", "predicted_ms", "published_ms", "uncertain",
        "comparable", "xla_ms", "roofline_ms", "compile_seconds", "replay_seconds", "remark",
    ]  # fmt: skip
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for one in rows:
            cells = [getattr(one, column) for column in columns]
            writer.writerow([_cell(cell) for cell in cells])


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return round(value, 4) if isinstance(value, float) else value


def _line(name: str, score: dict[str, float]) -> str:
    return (
        f"| {name} | {score['programs']} | {score['spearman']:.3f} | {score['median']:.1%} | "
        f"{score['p90']:.1%} | {score['worst']:.1%} | {score['within_10']:.0%} | "
        f"{score['within_20']:.0%} |"
    )


def page(rows: Sequence[Row], fitted: dict | None) -> str:
    """The text of `docs/timing.md`."""
    measured = [r for r in rows if "jax 0.9.2" in r.compiler]
    lines = [
        "# Predicted and published times on a TPU v6e",
        "",
        "Written by `scripts/calibrate_timing.py`; the same rows as `timing.csv`. Published times:",
        f"{published('gemm').source}, one TPU v6e chip, median device time of 50 iterations,",
        f"{published('gemm').compiler}.",
        "The compiler decides the program, so what is compared is compiled with that compiler.",
        "",
        "| predictor | programs | Spearman | median error | 90th percentile | worst | within 10 % "
        "| within 20 % |",
        "|---|---|---|---|---|---|---|---|",
        _line("schedule replay", score_rows(measured, lambda r: r.predicted_ms)),
    ]
    if fitted:
        lines.append(_line("schedule replay, each left out of the fit", fitted["scores"]))
    baselines = [r for r in measured if r.program == "baseline"]
    lines += [
        _line("schedule replay, baselines", score_rows(baselines, lambda r: r.predicted_ms)),
        _line("XLA's estimate, baselines", score_rows(baselines, lambda r: r.xla_ms)),
        _line("roofline, baselines", score_rows(baselines, lambda r: r.roofline_ms)),
        "",
        "Errors are |log(predicted / published)|. The roofline takes all flops of the reference.",
        f"Left out are {sum(r.uncertain and r.comparable for r in measured)} programs whose replay "
        "is a bound (`uncertain` below), and published times of other programs.",
        "",
        _replays(measured),
    ]
    if fitted:
        bandwidth, latency, slowdown = fitted["best"]
        others = [c for c in fitted["choices"] if c != fitted["best"]]
        lines += [
            "",
            f"The scan of the constants is best at {bandwidth} TB/s, {latency} cycles and a "
            f"slowdown of {slowdown} on random operands"
            + (
                "; with one workload left out it also chose "
                + ", ".join(f"({b}, {n}, {s})" for b, n, s in others)
                if others
                else ", whichever workload is left out"
            )
            + ".",
        ]
    lines += ["", NOTES.read_text().strip(), "", "## Experts", "", *_experts(measured)]
    for compiler in dict.fromkeys(r.compiler for r in rows):
        about = "" if "jax 0.9.2" in compiler else ", which nobody measured"
        lines += ["", f"## All programs, {compiler}{about}", ""]
        lines += _table([r for r in rows if r.compiler == compiler])
    return "\n".join(lines) + "\n"


def _replays(rows: Sequence[Row]) -> str:
    slow = [f"{r.workload} {r.program} {r.replay_seconds} s" for r in rows if r.replay_seconds > 2]
    share = float(np.median([r.replay_seconds / r.compile_seconds for r in rows]))
    return (
        f"A replay takes {np.median([r.replay_seconds for r in rows]):.2f} CPU seconds in the "
        f"median, {share:.1%} of the compile; over 2 s: {', '.join(slow) or 'none'}."
    )


def _experts(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| workload | speedup, published | speedup, predicted | ratio | remark |",
        "|---|---|---|---|---|",
    ]
    by = {(r.workload, r.program): r for r in rows}
    for name in dict.fromkeys(r.workload for r in rows if r.program == "expert"):
        base, expert = by.get((name, "baseline")), by[name, "expert"]
        if base is None or not (base.predicted_ms and expert.predicted_ms):
            lines.append(f"| {name} | | | | no prediction |")
            continue
        told = base.published_ms / expert.published_ms
        found = base.predicted_ms / expert.predicted_ms
        ratio = f"{found / told:.2f}" if base.comparable else "not comparable"
        lines.append(f"| {name} | {told:.2f} | {found:.2f} | {ratio} | {published(name).note} |")
    return lines


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| workload | program | published ms | predicted ms | ratio | |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        known = f"{r.published_ms:.3f}" if r.published_ms else ""
        told = f"{r.predicted_ms:.3f}" if r.predicted_ms else "none"
        compared = r.comparable and r.predicted_ms and "jax 0.9.2" in r.compiler
        ratio = f"{r.predicted_ms / r.published_ms:.2f}" if compared else ""
        about = "uncertain" if r.uncertain else ""
        lines.append(f"| {r.workload} | {r.program} | {known} | {told} | {ratio} | {about} |")
    return lines


@click.command()
@click.option("--only", default="", help="Comma-separated ids; the documents are then left alone.")
@click.option("--also-installed", is_flag=True, help="Compile with the installed jax too.")
@click.option("--fit", "fitting", is_flag=True, help="Scan the constants, leaving one out.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def main(only: str, also_installed: bool, fitting: bool, as_json: bool) -> None:
    """Compare predicted with published times and write docs/timing.md and docs/timing.csv."""
    os.environ.update(TPU_ENVIRONMENT)
    chosen = programs([*filter(None, only.split(","))])
    compilers = {"jax-0.9.2": environment()}
    if also_installed:
        import jax

        compilers[f"jax-{jax.__version__}"] = Path(sys.executable)
    rows, measured = [], {}
    for tag, python in compilers.items():
        folders = compile_all(python, tag, chosen)
        measured = measured or folders
        with (
            ProcessPoolExecutor(os.cpu_count()) as processes,
            progress_bar(len(folders), "pricing") as advance,
        ):
            for one in processes.map(row, folders.keys(), folders.values()):
                rows.append(one)
                advance(f", {one.workload}")
    fitted = fit(measured) if fitting else None
    if not only:
        write_csv(rows)
        PAGE.write_text(page(rows, fitted))
    if as_json:
        click.echo(json.dumps([vars(one) for one in rows], indent=1))
    else:
        click.echo(page(rows, fitted))


if __name__ == "__main__":
    main()
