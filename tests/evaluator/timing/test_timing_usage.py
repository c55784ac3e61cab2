"""What is read out of a replay: units, spills, lines, loops, steps."""

import dataclasses
import json

import pytest
from timing_listings import call, listing, loop, write_dump

from jaxbench_env.evaluator.timing import Loop, predict
from jaxbench_env.evaluator.timing.bundles import parse
from jaxbench_env.evaluator.timing.scan import scan, without_locations

HLO = """HloModule jit_f

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0} parameter(0)
  %pad = f32[8,128]{1,0} fusion(%x), calls=%c
  ROOT %k = f32[8,128]{1,0} custom-call(%pad), custom_call_target="tpu_custom_call"
}
"""
AT = '/* loc("kernel.py":{}:8 to :18) */'
ADD = "%v1_v1 = vadd.f32 %v0_v0, %v0_v0"
MATMUL = "%v2_v2 = vmatmul.mubr.bf16.gmra.mxu0 %v1_v1"
SPILL = "%8 = vst [vmem:[#allocation7_spill] sm:$0xff] /*vst_source=*/%v1_v1"
FILL = "%v3_v3 = vld [vmem:[#allocation7_spill] sm:$0xff]"
LOAD = "%v4_v4 = vld [vmem:[%s9_s9 + $0x8] sm:$0xff]"


def located(line, *slots):
    return "  ;;  ".join(f"{slot} {AT.format(line)}" for slot in slots)


@pytest.fixture
def nested(tmp_path):
    """A kernel of 6 steps around 10 iterations of 9 bundles, after an XLA program of 100."""
    body = [located(41, ADD, ADD, MATMUL), f"{SPILL}  ;;  {FILL}  ;;  {located(43, LOAD)}"]
    inner = loop(10, *body, region=6, first=11)
    kernel = listing(*loop(6, *inner), entry="k")
    xla = listing(*loop(100), entry="pad")
    top = listing(call("pad"), call("k"))
    return write_dump(tmp_path / "dump", {"TLP": top, "pad": xla, "k": kernel}, HLO)


def test_the_hottest_loop_is_the_kernels_inner_one(nested):
    prediction = predict(nested)
    outside, step = 1 + 700, 7 + 1 + 10 * 9
    cycles = 2 + outside + 1 + 6 * step
    assert prediction.cycles == cycles and not prediction.uncertain
    one = prediction.loop
    assert (one.program, one.iterations, one.bundles) == ("k", 60, 9)
    assert one.share == pytest.approx(540 / cycles)
    assert one.wait_share == 0
    assert one.slots["vpu"] == pytest.approx(2 / (4 * 9))
    assert one.slots["load"] == pytest.approx(2 / (3 * 9))
    assert one.slots["store"] == pytest.approx(1 / (2 * 9))
    assert one.slots["mxu"] == pytest.approx(8 / (2 * 9))
    assert (one.spills, one.spill_share) == (2, pytest.approx(2 / 3))
    assert one.bound == "latency"
    assert one.lines == (41, 43)
    assert one.unit_lines == {"mxu": 41, "vpu": 41, "load": 43}
    assert Loop.from_dict(json.loads(json.dumps(dataclasses.asdict(one)))) == one


def test_the_counters_are_those_of_the_whole_run(nested):
    prediction = predict(nested)
    counters = prediction.counters
    inside = 1 + 6 * (8 + 90)
    assert counters["kernel_share"] == pytest.approx(inside / prediction.cycles)
    assert (counters["steps"], counters["bundles_per_step"]) == (6, 98)
    assert counters["vector_spills"] == 120
    bundles = counters["bundles"]
    assert counters["vpu_share"] == pytest.approx(120 / (4 * bundles))
    assert counters["mxu_share"] == pytest.approx(60 * 8 / (2 * bundles))
    assert counters["mxu_ops"] == 60


@pytest.mark.parametrize(
    ("bundle", "bound"),
    [
        (ADD, "latency"),
        (f"{MATMUL}  ;;  {MATMUL.replace('mxu0', 'mxu1')}", "mxu"),
        ("  ;;  ".join([ADD] * 4), "vpu"),
        (f"{SPILL}  ;;  {SPILL}", "store"),
        ("  ;;  ".join([LOAD] * 3), "load"),
        ("%9 = vpow2.f32 %v1_v1  ;;  %v5_v5 = vpop.eup %9", "eup"),
    ],
)
def test_what_fills_a_loop_bounds_it(tmp_path, bundle, bound):
    kernel = listing(*loop(50, *[bundle] * 10), entry="k")
    dump = write_dump(tmp_path, {"TLP": listing(call("k")), "k": kernel})
    assert predict(dump).loop.bound == bound


def test_a_loop_that_mostly_waits_is_bound_by_memory(kernel_dump):
    issue = (
        "%7 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s90_s9, /*size_in_granules=*/1024, "
        "/*vmem=*/%s91_s9, /*dst_syncflagno=*/[#allocation4]"
    )
    done = ["%8 = dma.done.wait [#allocation4], 1024", "%9 = vsyncadd [#allocation4], -1024"]
    one = predict(kernel_dump(*loop(20, issue, *done))).loop
    assert one.bound == "hbm" and one.wait_share > 0.9


def test_lines_of_other_files_are_not_the_kernels():
    text = listing(located(5, ADD), ADD + ' /* loc("/lib/library.py":7:1 to 8:2) */', ADD)
    [found] = scan(text, [(0, 3)], 3)
    assert dict(found.lines) == {("vpu", 5): 1}
    assert scan(text, [(0, 3)], 4)[0].lines == {}  # bundles that do not add up are not read


def test_annotations_do_not_change_what_is_parsed():
    plain = [ADD, f"{LOAD}  ;;  {SPILL}", "%s1_s1 = smov 3 /* copy for cssa */"]
    noted = [
        located(3, ADD),
        f"{located(4, LOAD)}  ;;  {SPILL}",
        '%s1_s1 = smov 3 /* copy for cssa :: loc("kernel.py":9:1 to 12:7) */',
    ]
    with_notes, without = parse(listing(*noted)), parse(listing(*plain))
    assert with_notes == without and not with_notes.malformed


@pytest.mark.parametrize("note", ["{} :: kRem", "kRem :: {}", "{} :: {} :: kRem"])
def test_a_note_beside_an_annotation_is_read(note):
    where = 'loc("kernel.py":14:15 to :40)'
    noted = f"%2 = sdivrem.u32 %s1_s1, 3 /* {note.format(where, where)} */"
    found, plain = parse(listing(noted)), parse(listing("%2 = sdivrem.u32 %s1_s1, 3 /* kRem */"))
    assert found == plain and not found.unknown and not found.malformed


@pytest.mark.parametrize(
    "name",
    ["a*/ ;; %s1_s1 = smov 7 /*", "a */ } \\0A 0x1 : > { /* b", "a/* b", "{", ";", "a" * 2000],
)
def test_a_file_name_cannot_add_instructions(name):
    note = f'/* loc("{name}":12:28 to :33) */'
    hostile = parse(listing(f"{ADD} {note}", "%s1_s1 = smov 3"))
    assert hostile.malformed or hostile == parse(listing(ADD, "%s1_s1 = smov 3"))
    assert hostile.malformed or without_locations(note) == ("", True)
