"""Predicts the run time of one executable from the folder into which libtpu dumped its schedule."""

from __future__ import annotations

import dataclasses
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxbench_env.evaluator.timing import bundles, hlo
from jaxbench_env.evaluator.timing.constants import Constants
from jaxbench_env.evaluator.timing.errors import TimingError
from jaxbench_env.evaluator.timing.listing import Listing
from jaxbench_env.evaluator.timing.loops import Loop
from jaxbench_env.evaluator.timing.lowering import TICKS
from jaxbench_env.evaluator.timing.machine import Engine, OutOfSteps, Tally
from jaxbench_env.evaluator.timing.program import AddressMap, Program
from jaxbench_env.evaluator.timing.record import Recorder, Recording
from jaxbench_env.evaluator.timing.steady import replay
from jaxbench_env.evaluator.timing.usage import Usage, usage

TOP_LEVEL = "TLP"
#: Programs that talk to the host around a run; they are not part of its device time.
HOST_PROGRAMS = ("<late-initialization>", "<late-finalization>")
MAX_FILES = 20_000
MAX_FORMS = 5  # unknown forms of one program that are told
#: Share of the time that may rest on estimates before the whole is uncertain.
ESTIMATE_TOLERANCE = 0.1
WORD_BYTES = 4
#: Bytes of the smallest HBM transaction of a SparseCore, and latencies that one call of it takes at
#: most (start, a few dependent accesses, end): both are bounds, not measurements.
SPARSE_CORE_GRANULE, SPARSE_CORE_CALL = 64, 10

_LISTING = re.compile(r"(\d{1,30})-(.{1,1000})-\d{1,4}-final_bundles\.txt")
_HLO = re.compile(r"(\d{1,30})-TLP-hlo\.txt")


@dataclass(frozen=True)
class ProgramTime:
    """Time of one HLO program, over all its calls.

    Attributes:
        name: HLO instruction name; "TLP" is the top level without what it calls.
        calls: Number of calls.
        cycles: Cycles in all calls together.
        wait_cycles: Cycles of these spent waiting for DMAs.
        hbm_bytes: HBM bytes of the DMAs that it issued.
    """

    name: str
    calls: int
    cycles: float
    wait_cycles: float
    hbm_bytes: int


@dataclass(frozen=True)
class Prediction:
    """A predicted run time.

    Attributes:
        ms: Run time on the device in milliseconds: cycles, slowed down by random data, and launch.
        cycles: Core cycles from the first bundle to the last transfer.
        uncertain: Whether the replay could not follow everything. `ms` is then no estimate to
            reward: unknown loops are charged `unknown_trip_count` iterations, unknown DMAs a whole
            window, doubtful effects in full, unsatisfied waits a latency; a program that ran out of
            steps is extrapolated where its loop is counted; and the whole is at least the time to
            move the arguments and results of the module through HBM once, and to issue every bundle
            of the programs reached once.
        reasons: What was uncertain or estimated, as sentences, in a fixed order.
        counters: Numbers about the run, all dynamic (executions, not places in the program):
            "bundles" (VLIW bundles issued), "blocks" (basic blocks executed), "mxu_ops", "xlu_ops",
            "eup_ops", "vpu_ops", "load_ops", "store_ops", "scalar_ops" (instructions by unit; MXU
            counts pushes, multiplies and pops), "spill_loads" and "spill_stores" (of scalar
            registers), "dma_count", "hbm_bytes", "hbm_read_bytes",
            "hbm_written_bytes", "hbm_bandwidth" (bytes a second),
            "dma_wait_cycles", "dma_wait_share" (of all cycles), "estimated_share" (of all cycles,
            programs without a schedule), "replay_steps" (of `max_steps`; about one for each
            block that was run and not skipped as exact repetition);
            "mxu_share", "vpu_share", "xlu_share", "eup_share", "load_share" and "store_share": the
            part of the slots of all issued bundles that are filled (`loops.slot_shares`),
            "vector_spills" (vector registers stored to and loaded from spill slots),
            "kernel_share" (of all cycles, in Pallas programs), "steps" (iterations of the outermost
            loop of the Pallas program that takes most time: its grid) and "bundles_per_step".
        programs: Time by HLO program, longest first.
        loop: The loop that takes most of the time; of Pallas programs where there are any.
    """

    ms: float
    cycles: float
    uncertain: bool
    reasons: tuple[str, ...]
    counters: dict[str, float]
    programs: tuple[ProgramTime, ...]
    loop: Loop | None = None


def predict(
    dump_dir: Path,
    *,
    constants: Constants | None = None,
    feeds: Mapping[tuple[str, int], Sequence[int | None]] | None = None,
    max_steps: int = 2_000_000,
    max_text_bytes: int = 200 << 20,
    random_data: bool = True,
    least: bool = False,
    recorder: Recorder | None = None,
    compiler: str = "a libtpu of unknown version",
) -> Prediction:
    """Replays the schedule in `dump_dir` and returns the predicted time.

    Args:
        dump_dir: Folder written by libtpu with `--xla_jf_dump_to`, holding one executable.
        constants: Machine model; by default the packaged one of the v6e.
        feeds: Values of scalar operands, (HLO instruction name, operand index) -> 32-bit words as
            they lie in memory, None for unknown ones; `match` makes them. An operand without values
            makes the result uncertain only if control flow, a DMA's size or a wait depends on it.
        max_steps: Bound on the work, about one step for a basic block that is run; beyond that
            the rest is extrapolated and the result uncertain.
        max_text_bytes: Most bytes of listings and HLO to read.
        random_data: Whether the operands of the products are random. On constant ones (zero
            weights, as in some published measurements) the chip keeps its full clock.
        least: What to do where the replay is uncertain: by default everything doubtful is charged,
            and the time is a bound from above; with `least` nothing of it is (unknown loops run
            once, what may not happen does not, estimated work overlaps with all other), and it is
            a bound from below.
        recorder: Is told what happens when, for a timeline.
        compiler: What wrote the dump, for instance "libtpu 0.0.42.1"; the dump does not say. Named
            in reasons and errors that may come from a version this replay was not written for.

    Raises:
        TimingError: The folder holds no complete dump, or one that is too large.
    """
    constants = constants or Constants.load()
    folder = Path(dump_dir)
    try:
        listings, top_level, module, doubts = _load(folder, max_text_bytes)
        arguments = constants, feeds or {}, max_steps, replay, least
        engine = Recording(*arguments, recorder=recorder) if recorder else Engine(*arguments)
        parts = listings, top_level, module, doubts, random_data, compiler
        if constants.cores == 1:
            return _predict(engine, *parts, None)
        found = [_predict(engine, *parts, 0)]
        found += [_predict(Engine(*arguments), *parts, core) for core in range(1, constants.cores)]
        return _together(found)
    except TimingError:
        raise
    except Exception as error:  # a hostile listing must not bring the evaluator down
        raise TimingError(
            f"the replay of a dump of {compiler} failed: {type(error).__name__}: {error}"[:500]
        ) from error


def _predict(
    engine: Engine,
    listings: dict[str, Listing],
    top_level: Listing,
    module: hlo.Module,
    doubts: list[str],
    random_data: bool,
    compiler: str,
    core: int | None,
) -> Prediction:
    constants = engine.constants
    recorder = engine.recorder if isinstance(engine, Recording) else None
    for doubt in doubts:
        engine.note(doubt, uncertain=True)
    addresses = AddressMap()
    chip = {"matrix": constants.matrix, "core": core}
    programs = {
        name: Program(name, number, listing, addresses, **chip)
        for number, (name, listing) in enumerate(sorted(listings.items()), start=1)
    }
    top = Program(TOP_LEVEL, 0, top_level, addresses, top_level=True, **chip)
    engine.programs = {**programs, **dict.fromkeys(HOST_PROGRAMS, 0)}
    if recorder:
        recorder.watch([top, *programs.values()])
    estimated = _stand_ins(engine, [top, *programs.values()], module)
    try:
        end = replay(engine, top, 0)
    except OutOfSteps as stopped:
        end = stopped.time
    end = max(end, engine.hbm_free)  # transfers that nothing waits for still have to finish
    if recorder:
        recorder.top, recorder.end = top, end
    replayed = [top, *(one for one in programs.values() if one.number in engine.tally.blocks)]
    for program in replayed:
        _distrust(engine, program, compiler)
    if not engine.uncertain and any(flag.value for flag in engine.flags.values()):
        engine.note(
            f"synchronisation flags are left raised at the end (compiled by {compiler})",
            uncertain=True,
        )
    elsewhere = _sparse_core_ticks(engine, module, end)
    end = max(end, elsewhere) if engine.least else end + elsewhere
    cycles = end / TICKS
    share = sum(
        engine.tally.calls[name][1] for name in estimated if name in engine.tally.calls
    ) / max(end, 1)
    if share > ESTIMATE_TOLERANCE:
        engine.note(f"{share:.0%} of the time rests on estimates", uncertain=True)
    if engine.uncertain and not engine.least:
        once = sum(program.listing.length for program in replayed)
        floor = max(module.entry_bytes / constants.hbm_bytes_per_cycle, once)
        if floor > cycles:
            engine.note("raised to the least that such a program takes", uncertain=True)
            cycles = floor
    slowdown = constants.random_data_slowdown if random_data else 1.0
    seconds = cycles / constants.clock_hz * slowdown + constants.launch_seconds
    rows = _program_times(engine.tally, end)
    times = {row.name: row.cycles for row in rows}
    used = usage(replayed, module.kernels(), engine.tally, times, cycles)
    return Prediction(
        ms=seconds * 1e3,
        cycles=cycles,
        uncertain=engine.uncertain,
        reasons=tuple(_sentence(text, times) for text, times in engine.reasons.items()),
        counters=_counters(engine, used, cycles, seconds, share),
        programs=rows,
        loop=used.loop,
    )


def _together(cores: Sequence[Prediction]) -> Prediction:
    """What cores take that share a program: as long as the slowest, and as sure as all."""
    slowest = max(cores, key=lambda one: one.ms)
    reasons = dict.fromkeys(reason for one in cores for reason in one.reasons)
    moved = {
        name: sum(one.counters[name] for one in cores)
        for name in ("hbm_bytes", "hbm_read_bytes", "hbm_written_bytes", "hbm_bandwidth")
    }
    return dataclasses.replace(
        slowest,
        uncertain=any(one.uncertain for one in cores),
        reasons=tuple(reasons),
        counters={**slowest.counters, **moved},
    )


def _distrust(engine: Engine, program: Program, compiler: str) -> None:
    """Says what in a listing that was replayed is odd or new."""
    listing = program.listing
    for defect in sorted(listing.malformed):
        engine.note(
            f"the listing of {program.name} is not as libtpu writes it: {defect} "
            f"(compiled by {compiler})",
            uncertain=True,
        )
    for form in sorted(listing.unknown)[:MAX_FORMS]:
        engine.note(
            f"{form} in {program.name} is not known to this replay (compiled by {compiler})",
            uncertain=True,
        )


def _stand_ins(engine: Engine, programs: list[Program], module: hlo.Module) -> set[str]:
    """Gives called programs without a listing a twin or an estimate; returns the estimated ones."""
    called = set()
    for program in programs:
        for instructions in program.listing.bundles.values():
            called.update(one.callee for one in instructions if one.op == "inlined_call")
    available = [program.name for program in programs[1:]]
    estimated = set()
    for name in sorted(called - engine.programs.keys()):
        twin = module.twin(name, available)
        if twin is not None:
            engine.programs[name] = engine.programs[twin[0]]
            if twin[1]:
                engine.note(f"{name} shares the schedule of {twin[0]}", uncertain=False)
            else:
                engine.note(
                    f"{name} has no schedule; that of {twin[0]}, same shapes, is used",
                    uncertain=False,
                )
                estimated.add(name)
            continue
        one = module.instructions.get(name)
        if one is None:
            continue  # the engine reports it when it is called
        cycles = one.bytes / engine.constants.hbm_bytes_per_cycle
        if one.estimate:
            cycles = min(cycles, one.estimate) if engine.least else one.estimate
        engine.programs[name] = max(round(cycles * TICKS), 1)
        estimated.add(name)
        source = "the compiler's estimate" if one.estimate else "its bytes"
        # a kernel's time is not bounded by its operands' bytes
        engine.note(f"{name} has no schedule; {source} is used", uncertain=bool(one.body))
    return estimated


def _sparse_core_ticks(engine: Engine, module: hlo.Module, end: int) -> int:
    """Ticks charged for what the SparseCore does, which has no schedule to replay.

    A little of it (lists of groups, offsets) is charged as if every word took a transaction of its
    own, which no such work exceeds; more of it is estimated from its bytes and uncertain.

    Args:
        engine: The engine after the replay.
        module: The HLO module.
        end: Ticks of everything else.
    """
    size, constants = module.sparse_core_bytes(), engine.constants
    if not size:
        if engine.waits_elsewhere:
            engine.note("waits for the SparseCore, of which the HLO says nothing", uncertain=True)
        return 0
    if engine.least:
        engine.note(f"{size} bytes of SparseCore work at all of HBM's bandwidth", uncertain=True)
        return round(size / constants.hbm_bytes_per_cycle * TICKS)
    speed = constants.hbm_bytes_per_cycle * constants.sparse_core_bandwidth_share
    calls, whole = module.sparse_core_calls()
    words = whole / WORD_BYTES * SPARSE_CORE_GRANULE / speed
    most = round((words + calls * SPARSE_CORE_CALL * constants.dma_latency) * TICKS)
    if most <= ESTIMATE_TOLERANCE * end:
        engine.note(
            f"{calls} small calls of the SparseCore are charged as a bound", uncertain=False
        )
        return most
    engine.note(
        f"SparseCore work is estimated from {size} bytes and added without overlap", uncertain=True
    )
    return round((size / speed + constants.dma_latency) * TICKS)


def _sentence(text: str, times: int) -> str:
    return f"{text} ({times} times)" if times > 1 else text


def _counters(
    engine: Engine, used: Usage, cycles: float, seconds: float, estimated_share: float
) -> dict[str, float]:
    tally = engine.tally
    counts = used.slots
    # every instruction of the matrix units, not only the multiplications
    matrix = counts["mxu"] + counts["matmul"] + counts["matmul_f32"]
    return {
        "bundles": float(used.issued),
        "blocks": float(tally.steps),
        "replay_steps": float(engine.steps),
        "mxu_ops": float(matrix),
        **{
            f"{unit}_ops": float(counts[unit])
            for unit in ("xlu", "eup", "vpu", "load", "store", "scalar")
        },
        "spill_loads": float(counts["spill_load"]),
        "spill_stores": float(counts["spill_store"]),
        "dma_count": float(tally.dmas),
        "hbm_bytes": float(tally.hbm_bytes),
        "hbm_read_bytes": float(tally.hbm_read),
        "hbm_written_bytes": float(tally.hbm_written),
        "hbm_bandwidth": tally.hbm_bytes / seconds if seconds else 0.0,
        "dma_wait_cycles": tally.wait / TICKS,
        "dma_wait_share": min(tally.wait / TICKS / cycles, 1.0) if cycles else 0.0,
        "estimated_share": estimated_share,
        **used.numbers,
    }


def _program_times(tally: Tally, end: int) -> tuple[ProgramTime, ...]:
    rows = [
        ProgramTime(safe_name(name), calls, ticks / TICKS, wait / TICKS, moved)
        for name, (calls, ticks, wait, moved) in tally.calls.items()
        if name not in HOST_PROGRAMS
    ]
    own = end - sum(record[1] for record in tally.calls.values())
    wait = tally.wait - sum(record[2] for record in tally.calls.values())
    moved = tally.hbm_bytes - sum(record[3] for record in tally.calls.values())
    rows.append(ProgramTime(TOP_LEVEL, 1, max(own, 0) / TICKS, max(wait, 0) / TICKS, max(moved, 0)))
    return tuple(sorted(rows, key=lambda row: (-row.cycles, row.name)))


# ---- reading the folder


def _load(
    folder: Path, max_bytes: int
) -> tuple[dict[str, Listing], Listing, hlo.Module, list[str]]:
    """Reads all listings: (by program name, the top level, the HLO module, doubts)."""
    files = _files(folder)
    total = sum(size for _, size in files)
    if total > max_bytes:
        raise TimingError(
            f"the dump in {folder} has {total} bytes of text; at most {max_bytes} are read"
        )
    listings: dict[str, Listing] = {}
    tops: list[tuple[str, Listing]] = []
    modules: list[tuple[str, Path]] = []
    for path, _ in files:
        match = _LISTING.fullmatch(path.name)
        if match is None:
            modules.append((path.name.partition("-")[0], path))
            continue
        listing = bundles.parse(_read(path))
        listing.path = path
        if match.group(2) == TOP_LEVEL and not listing.name:
            tops.append((match.group(1), listing))
        else:
            # a fusion may be compiled again with other windows: the last one is the one in use
            listings[safe_name(listing.name or match.group(2))] = listing
    if not tops:
        raise TimingError(f"no listing of a top-level program (TLP) in {folder}")
    stamp, top = tops[-1]
    if not top.length:
        raise TimingError(f"the listing of the top-level program in {folder} is empty")
    doubts = (
        ["the dump holds several top-level programs; the last is used"] if len(tops) > 1 else []
    )
    return listings, top, _module(stamp, modules), doubts


def read_module(folder: Path) -> hlo.Module:
    """The compiled module of a dump, as `predict` reads it.

    Raises:
        TimingError: If there is no dump.
    """
    names = [path.name for path, _ in _files(folder)]
    tops = [one for one in map(_LISTING.fullmatch, names) if one and one.group(2) == TOP_LEVEL]
    modules = [(one.group(1), folder / one.group()) for one in map(_HLO.fullmatch, names) if one]
    return _module(tops[-1].group(1) if tops else "", modules)


def _module(stamp: str, modules: Sequence[tuple[str, Path]]) -> hlo.Module:
    """The module that was compiled together with the top level, or else the last one."""
    same = [path for prefix, path in modules if prefix == stamp] or [path for _, path in modules]
    return hlo.Module(_read(same[-1])) if same else hlo.Module()


def _files(folder: Path) -> list[tuple[Path, int]]:
    """Listings and HLO texts with their sizes, in the order in which libtpu made them.

    Names start with a time stamp of the compilation of that program. Only regular files are read.
    """
    found = []
    try:
        for number, path in enumerate(folder.iterdir()):
            if number >= MAX_FILES:
                raise TimingError(f"more than {MAX_FILES} files in {folder}")
            match = _LISTING.fullmatch(path.name) or _HLO.fullmatch(path.name)
            if match is None:
                continue
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append(((int(match.group(1)), path.name), path, status.st_size))
    except OSError as error:
        raise TimingError(f"cannot read the dump folder {folder}: {error}") from error
    if not found:
        raise TimingError(f"no final bundles in {folder}: was the dump switched on?")
    return [(path, size) for _, path, size in sorted(found)]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise TimingError(f"cannot read {path}: {error}") from error


def safe_name(name: str) -> str:
    """Names end up in reports; libtpu's own consist of these characters."""
    return re.sub(r"[^\w.<>\-]", "_", name)[:512]
