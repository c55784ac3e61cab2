"""Timelines: exact events of small listings, sums of real ones."""

import dataclasses
import gzip
import json

import pytest
from timing_listings import call, listing, loop, write_dump

from jaxbench_env.evaluator.timing import Constants, Recorder, chrome_trace, predict, record

# One cycle is a microsecond, and memory moves one granule a cycle.
SIMPLE = dataclasses.replace(
    Constants.load(),
    clock_hz=1e6,
    launch_seconds=0.0,
    random_data_slowdown=1.0,
    hbm_bytes_per_cycle=32,
    dma_latency=100,
    dma_min_cycles=1,
    chunk_cycles=1,
)
ADD = "%v1_v1 = vadd.f32 %v0_v0, %v0_v0"
ISSUE = (
    "%7 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s80_s8, /*size_in_granules=*/{}, "
    "/*vmem=*/%s91_s9, /*dst_syncflagno=*/[#allocation4]"
)
OPERAND = "%s80_s8 = inlined_call_operand.hbm [shape: f32[8,128], index: 3, kind: input]"
PHASES = {"X", "C", "M"}


def traced(dump, **kwargs):
    """The prediction, and the slices and counters of the trace by the name of their track."""
    recorder = Recorder(**kwargs)
    prediction = predict(dump, constants=SIMPLE, recorder=recorder)
    document = json.loads(gzip.decompress(chrome_trace(recorder, SIMPLE.clock_hz, "test")))
    events = document["traceEvents"]
    valid(events)
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    slices = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault(tracks[event["pid"], event["tid"]], []).append(event)
    return prediction, slices, [event for event in events if event["ph"] == "C"]


def valid(events):
    """Holds events against the Trace Event Format, and slices against overlap on a track."""
    open_ = {}
    for event in events:
        assert event["ph"] in PHASES and isinstance(event["name"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ts"] >= 0 and isinstance(event.get("args", {}), dict)
        if event["ph"] == "C":
            assert all(0 <= value <= 100 for value in event["args"].values())
        if event["ph"] != "X":
            continue
        assert event["dur"] >= 0
        stack = open_.setdefault((event["pid"], event["tid"]), [])
        while stack and stack[-1] <= event["ts"] + 1e-6:
            stack.pop()
        end = event["ts"] + event["dur"]
        assert not stack or end <= stack[-1] + 1e-5  # slices of a track lie inside each other
        stack.append(end)


def spans(slices):
    return [(one["name"], one["ts"], one["ts"] + one["dur"]) for one in slices]


def test_the_events_of_a_known_timeline(kernel_dump):
    prediction, slices, counters = traced(
        kernel_dump(
            OPERAND,  # cycle 0 of the kernel
            ISSUE.format(50),  # 1: moves until 51, lands at 151
            "%8 = dma.done.wait [#allocation4], 50",  # 2: waits until 151
            "%9 = vsyncadd [#allocation4], -50",
            *[ADD] * 4,
        )
    )
    end = 151 + 6  # the bundle that waits and the five after it
    assert prediction.cycles == end + 1  # and the one that called
    assert spans(slices["programs"]) == [("TLP", 0, end + 1), ("k", 0, end)]
    assert spans(slices["waits for DMAs"]) == [("wait", 2, 151)]
    assert spans(slices["HBM busy"]) == [("hbm to vmem, operand 3", 1, 51)]
    assert spans(slices["in flight 0"]) == [("hbm to vmem, operand 3", 1, 151)]
    assert slices["HBM busy"][0]["args"] == {
        "program": "k",
        "from": "hbm",
        "to": "vmem",
        "bytes": 1600,
        "hbm_bytes": 1600,
    }
    assert spans(slices["basic blocks"]) == [
        ("TLP, bundles 0 to 0", 0, end + 1),
        ("k, bundles 0 to 7", 0, end),
    ]
    assert slices["basic blocks"][1]["args"] == {"bundles": 8, "vpu": 4}
    # half a slot of eight bundles of four, nothing while it waits
    assert [(event["ts"], event["args"]["VPU"]) for event in counters] == [
        (0, 12.5),
        (2, 0),
        (151, 12.5),
        (end, 0),
    ]


def test_iterations_are_numbered_and_repetition_is_one_slice(kernel_dump):
    dump = kernel_dump(*loop(100, *loop(3, ADD, region=6, first=11)))
    prediction, slices, _ = traced(dump, iterations=6)
    loops = slices["loop iterations"]
    steps = [one for one in loops if one["name"].startswith("k step")]
    [repeated] = [one for one in loops if "repeated" in one["name"]]
    step = 7 + 1 + 3 * 8
    assert spans(steps)[:2] == [("k step 0", 1, 1 + step), ("k step 1", 1 + step, 1 + 2 * step)]
    assert all(one["dur"] == step for one in steps)
    inner = [one for one in loops if one["name"].startswith("iteration")]
    assert [one["name"] for one in inner[:4]] == [
        *(f"iteration {n}" for n in (0, 1, 2)),
        "iteration 0",
    ]
    assert all(one["dur"] == 8 for one in inner)
    # the periods that are left out and the steps that are shown make a hundred
    left_out = round(repeated["dur"] / step)
    assert len(steps) + left_out == 100 and len(steps) >= 6
    last = 100 - (len(steps) - int(repeated["name"].split()[3].replace(",", "")))
    assert repeated["name"].endswith(f"to {last - 1}")
    assert steps[-1]["name"] == "k step 99"
    assert prediction.cycles == 1 + 1 + 100 * step


def test_more_iterations_are_shown_when_asked_for(kernel_dump):
    dump = kernel_dump(*loop(100, ADD))
    few = traced(dump, iterations=1)[1]["loop iterations"]
    many = traced(dump, iterations=50)[1]["loop iterations"]
    everything = traced(dump, iterations=1000)[1]["loop iterations"]
    assert len(few) < 12 < 50 <= len(many) < len(everything) == 100


def test_recording_changes_nothing_and_loses_nothing(real_dumps):
    for sample in ("matmul", "fori", "emit", "manual", "vecwhen", "prefetch"):
        dump = real_dumps[f"jax_0_10_2/{sample}"]
        plain = predict(dump, constants=SIMPLE)
        prediction, slices, _ = traced(dump, iterations=3)
        assert (prediction.cycles, prediction.programs) == (plain.cycles, plain.programs)
        counters = prediction.counters

        def total(name, *tracks, slices=slices):
            found = [one for track in tracks for one in slices.get(track, ())]
            return sum(one.get("args", {}).get(name, 0) for one in found)

        blocks = "basic blocks"
        assert total("bundles", blocks) == counters["bundles"]
        assert total("vpu", blocks) == counters["vpu_ops"]
        matrix = [total(name, blocks) for name in ("mxu", "matmul", "matmul_f32")]
        assert sum(matrix) == counters["mxu_ops"]
        assert total("hbm_bytes", blocks, "HBM busy") == counters["hbm_bytes"]
        waits = sum(one["dur"] for one in slices.get("waits for DMAs", ()))
        waits += total("wait_us", blocks)
        assert waits == pytest.approx(counters["dma_wait_cycles"], rel=1e-6, abs=1e-3)


def test_a_trace_is_bounded_and_says_what_it_leaves_out(kernel_dump, monkeypatch):
    monkeypatch.setattr(record, "MAX_PER_PROGRAM", 20)
    prediction, slices, _ = traced(kernel_dump(*loop(1000, ADD)), iterations=1000)
    assert len(slices["basic blocks"]) == 1 + 20  # that of the caller, and those that are kept
    [rest] = slices["not shown"]
    assert rest["name"] == "k: 981 more events"
    assert rest["ts"] + rest["dur"] == prediction.cycles


def test_names_in_a_trace_are_sanitised(tmp_path):
    name = "k<b>;'\\\"x"
    top = listing(call(name))
    dump = write_dump(tmp_path / "dump", {"TLP": top})
    (dump / "1001-k-01-final_bundles.txt").write_text(listing(ADD, entry=name))
    _, slices, _ = traced(dump)
    for track in slices.values():
        for one in track:
            assert not set(one["name"]) & set(";'\\\"&")
