import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing_listings import listing

from jaxbench_env.evaluator.timing.bundles import parse
from jaxbench_env.evaluator.timing.listing import SLOT_CLASSES, Address, Reg, classify

TOKENS = st.sampled_from(
    "{ } ;; /* */ ( ) [ ] , = : > \n 0x0 0x1 1 %s1_s1 %p1_p0 !%p1_p0 %v1_v1 %7 sld sst smov 5 -1 "
    "sadd.s32 sbr.rel target $region5 $region [smem:[ ]] #allocation1 #allocation1_spill + $0x1 "
    "dma.hbm_to_vmem /*size_in_granules=*/ dma.done.wait shalt.err sphi inlined_call vld vst LB "
    "entry bundle: Start region 5 [thread:$0] 99999999999999999999 \x01 \x00 é".split(" ")
)


def only(text, address=0):
    """The single instruction of one bundle."""
    parsed = parse(text)
    assert not parsed.malformed
    (one,) = parsed.bundles[address]
    return one


def test_registers_keep_ssa_number_and_physical_register():
    one = only(listing("%s123_s7 = sadd.s32 4294967295, %s9_s7 /* index */"))
    assert one.op == "sadd.s32"
    assert (one.dest, one.dest.physical) == (Reg("s", 123), 7)
    assert one.args == (-1, Reg("s", 9))


def test_predicate_and_kept_value_are_read():
    one = only(listing("%s4_s1 = smov (!%p2_p0, %s3_s1), 7"))
    assert one.guard == Reg("p", 2, negated=True)
    assert one.old == Reg("s", 3)
    assert one.args == (7,)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("[#allocation4 + $0x1]", Address("#allocation4", (), 1)),
        ("[%s1_s1 + %s2_s2]", Address("", (Reg("s", 1), Reg("s", 2)), 0)),
        ("[#allocation16_spill]", Address("#allocation16_spill")),
    ],
)
def test_scalar_memory_addresses(text, address):
    load = only(listing(f"%s1_s1 = sld [smem:{text}] (!%p1_p0)"))
    assert load.args == (address,)
    assert load.guard == Reg("p", 1, negated=True)
    store = only(listing(f"%9 = sst [smem:{text}] (%p1_p0), %s1_s1"))
    assert store.args == (address, Reg("s", 1))


def test_spill_slots_are_told_from_memory():
    assert Address("#allocation16_spill").is_spill
    assert not Address("#allocation16").is_spill


def test_dma_operands_are_found_by_name_and_the_window_in_the_note():
    text = (
        "%8 = dma.hbm_to_vmem [thread:$0]  (%p1_p0), /*hbm=*/%s1_s1, /*size_in_granules=*/4096, "
        "/*vmem=*/%s2_s2, /*dst_syncflagno=*/[#allocation4], /*steps_per_stride=*/8 /* \n"
        "base_bounds: (128, 8)\ndynamic_base_bounds: (128, 8)\nwindow_bounds: (32, 2)\n"
        "element_size_in_bytes: 2048\nsecond_minor_factor: 1 */"
    )
    one = only(listing(text))
    assert one.named["size_in_granules"] == 4096
    assert one.named["dst_syncflagno"] == Address("#allocation4")
    assert (one.window_bytes, one.run_bytes) == (32 * 2 * 2048, 2 * 2048)
    assert one.guard == Reg("p", 1)


def test_branch_target_call_and_operand_index():
    assert only(listing("%5 = sbr.rel (%p1_p0) target = $region27")).target == 27
    assert only(listing("%5 = inlined_call %s1_s1 /* %f.1 = custom-call(%a) */")).callee == "f.1"
    text = "%5 = inlined_call /* <late-initialization> */"
    assert only(listing(text)).callee == "<late-initialization>"
    text = "%s3_s0 = inlined_call_operand.hbm [shape: bf16[8,8], index: 3, kind: input, x: {}]"
    assert only(listing(text)).operand == 3


def test_entry_name_and_regions_come_from_the_notes_of_the_bundle():
    parsed = parse(listing("", ("%s1_s1 = smov 0", "Start region 3 :: Start/End empty region 4")))
    assert parsed.regions == {3: 1, 4: 1}
    assert parse(listing("", entry="f.1")).name == "f.1"


def test_vector_slots_are_counted_by_unit_and_by_bundle():
    parsed = parse(
        listing(
            "%v1_v1 = vld [vmem:[#allocation1] sm:$0xff]  ;;  %v2_v2 = vadd.f32 %v1_v1, %v1_v1",
            "%9 = vst [vmem:[#allocation2] sm:$0xff] /*vst_source=*/%v2_v2",
            "%8 = vmatmul.mubr.bf16.gmra.mxu0 %v2_v2  ;;  %s1_s1 = sld [smem:[#allocation3_spill]]",
        )
    )
    count = dict(zip(SLOT_CLASSES, parsed.histogram(0, 3), strict=True))
    assert count["load"] == count["vpu"] == count["store"] == count["matmul"] == 1
    assert count["spill_load"] == 1
    assert sum(parsed.histogram(1, 2)) == 1


@pytest.mark.parametrize(
    ("op", "unit"),
    [
        ("vmatpush1.bf16.msra.mxu1", "mxu"),
        ("vpop.f32.mrf.mxu0", "mxu"),
        ("vrot.slane", "xlu"),
        ("vpop.permute.xlu0", "xlu"),
        ("vpow2.f32", "eup"),
        ("vpop.eup", "eup"),
        ("vst.msk", "store"),
        ("vstv", "vpu"),
        ("vld.sshfl", "load"),
        ("vtrace", "scalar"),
        ("vadd.f32", "vpu"),
    ],
)
def test_opcodes_belong_to_units(op, unit):
    assert SLOT_CLASSES[classify(op)] == unit


@pytest.mark.parametrize(
    "message",
    [
        "x */ ;; %99 = sbr.rel target = $region5 /* ",
        "x */ } /* Start region 5",
        "x */ }\n  0x1   :  { %99 = sbr.rel target = $region5 } /* ",
        "x */ } /* y */\n  0x1   :  {} /* /* ",
        "x \n  0x1   :  { }\n",
        "x */ /* y",
        "\x01" + "0\x01",
    ],
)
def test_the_message_of_a_check_cannot_add_code_unnoticed(message):
    text = listing("", f"%28 = shalt.err (!%p25_p5) /* {message} */", "", "%s1_s1 = smov 0")
    assert parse(text).malformed


def test_a_bounds_check_that_quotes_a_dma_is_ordinary():
    text = listing(
        "%26 = shalt.err (!%p2_p2) /* BoundsCheck 0 [deref of %s1] for %8 = dma.hbm_to_vmem "
        "[thread:$0]  /*hbm=*/%s1, /*size_in_granules=*/4 /* \nwindow_bounds: (32, 2)\n */\n"
        "hlo: f\n */"
    )
    assert not parse(text).malformed


@pytest.mark.parametrize("line", ["  0x0   :  {}", "  0x7   :  {}"])
def test_addresses_out_of_order_are_noticed(line):
    assert parse(listing("", "") + line + "\n").malformed


def test_a_region_defined_twice_is_noticed():
    assert parse(listing(("", "Start region 5"), ("", "Start region 5"))).malformed


def test_odd_operands_become_unknown():
    assert only(listing("%s1_s1 = smov 99999999999999999999")).args == (None,)
    assert only(listing("%s1_s1 = smov __import__('os')")).args == (None,)
    assert only(listing("%s1_s1 = sld [smem:[%s1 + %s2 + %s3 + %s4 + %s5]]")).args == (None,)


@pytest.mark.parametrize("unit", ["/*", "*/", "{", "%s1_s1 = ", "/*a=*/", "0x0 : {", "(", "\n"])
def test_long_garbage_takes_linear_time(unit):
    start = time.process_time()  # not what others take of the machine
    parse("  0x0   :  { %s1_s1 = smov " + unit * (400_000 // len(unit)))
    assert time.process_time() - start < 5


@given(st.text(max_size=300))
def test_arbitrary_text_never_raises(text):
    parse(text)


@given(st.lists(TOKENS, max_size=60))
def test_scrambled_listings_never_raise_and_parse_the_same_twice(tokens):
    text = "  0x0   :  { " + " ".join(tokens)
    first, second = parse(text), parse(text)
    assert first.bundles == second.bundles
    assert first.malformed == second.malformed
    assert first.histogram(0, first.length) == second.histogram(0, second.length)
