"""The machine: scalar unit, branches, DMAs and flags, on listings written by hand."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timing_listings import call, listing, loop, write_dump

from jaxbench_env.evaluator.timing import Constants, predict, steady

K = Constants.load()
TOP = 1  # cycles of the bundle that calls the kernel
WAIT = "%8 = dma.done.wait [#allocation4], {}"
TAKE = "%9 = vsyncadd [#allocation4], -{}"


def dma(granules, flag="[#allocation4]", guard="", op="dma.hbm_to_vmem"):
    side, other = ("hbm", "vmem") if op == "dma.hbm_to_vmem" else ("vmem", "hbm")
    return (
        f"%7 = {op} [thread:$0]  {guard} /*{side}=*/%s90_s9, /*size_in_granules=*/{granules}, "
        f"/*{other}=*/%s91_s9, /*dst_syncflagno=*/{flag}"
    )


def hbm_cycles(granules):
    return max(granules * 32 / K.hbm_bytes_per_cycle, K.dma_min_cycles)


def test_bundles_take_one_cycle_each(kernel_dump):
    prediction = predict(kernel_dump("", "%v1_v1 = vadd.f32 %v0_v0, %v0_v0", ""))
    assert prediction.cycles == TOP + 3
    seconds = prediction.cycles / K.clock_hz * K.random_data_slowdown + K.launch_seconds
    assert prediction.ms == pytest.approx(seconds * 1e3)
    assert not prediction.uncertain


def test_a_counted_loop_runs_its_iterations(kernel_dump):
    prediction = predict(kernel_dump(*loop(10)))
    assert prediction.cycles == TOP + 1 + 10 * 7
    assert not prediction.uncertain


def test_delay_slots_run_whether_or_not_the_branch_is_taken(kernel_dump):
    bundles = loop(10)
    bundles[-1] = "%v1_v1 = vadd.f32 %v0_v0, %v0_v0"
    assert predict(kernel_dump(*bundles)).counters["vpu_ops"] == 10


def test_a_value_set_in_a_delay_slot_is_seen_at_the_target(kernel_dump):
    start = ["%s33_s3 = smov 4", "%99 = sbr.rel target = $region8", "", "", "%s34_s3 = smov 6", ""]
    skipped = ["%v1_v1 = vadd.f32 %v0_v0, %v0_v0"]
    bundles = [*start, *skipped, ("", "Start region 8"), *loop("%s34_s3")]
    prediction = predict(kernel_dump(*bundles))
    assert prediction.cycles == TOP + len(start) + 1 + 1 + 6 * 7
    assert prediction.counters["vpu_ops"] == 0


@pytest.mark.parametrize(("limit", "skips"), [(3, True), (8, False)])
def test_a_forward_branch_follows_its_predicate(kernel_dump, limit, skips):
    prediction = predict(
        kernel_dump(
            f"%s1_s1 = smov {limit}",
            "%p1_p1 = scmp.lt.s32.totalorder %s1_s1, 5",
            "%5 = sbr.rel (%p1_p1) target = $region3",
            *[""] * 4,
            *[""] * 100,
            ("", "Start region 3"),
        )
    )
    assert prediction.cycles == TOP + 7 + (0 if skips else 100) + 1


def test_a_guarded_assignment_keeps_the_old_value(kernel_dump):
    def bundles(value):
        return [
            f"%s50_s5 = smov {value}",
            "%s51_s6 = smov 20",
            "%p50_p5 = scmp.eq.s32.totalorder %s50_s5, 1",
            "%s52_s6 = smov (%p50_p5, %s51_s6), 5",
            "%s53_s6 = smov (!%p50_p5, %s52_s6), 9",
            *loop("%s53_s6"),
        ]

    times = [predict(kernel_dump(*bundles(value))).cycles for value in (1, 2)]
    # (guard, old): the new value is taken where the guard holds
    assert times == [TOP + 6 + 5 * 7, TOP + 6 + 9 * 7]


def test_a_loop_bound_survives_a_spill_slot(kernel_dump):
    prediction = predict(
        kernel_dump(
            "%s50_s5 = smov 12",
            "%51 = sst [smem:[#allocation9_spill]] %s50_s5",
            "%s52_s5 = sld [smem:[#allocation9_spill]]",
            *loop("%s52_s5"),
        )
    )
    assert prediction.cycles == TOP + 3 + 1 + 12 * 7
    assert (prediction.counters["spill_loads"], prediction.counters["spill_stores"]) == (1, 1)


def test_scalar_memory_keeps_words_by_address(kernel_dump):
    prediction = predict(
        kernel_dump(
            "%51 = sst [smem:[#allocation9]] 3  ;;  %s50_s5 = smov 1",
            "%52 = sst [smem:[#allocation9 + $0x1]] 11",
            "%s53_s5 = sld [smem:[#allocation9 + %s50_s5]]",
            *loop("%s53_s5"),
        )
    )
    assert prediction.cycles == TOP + 3 + 1 + 11 * 7


@pytest.mark.parametrize(
    ("op", "value"),
    [
        ("sadd.s32 5, 4", 9),
        ("ssub.s32 9, 4", 5),
        ("smul.u32 3, 4", 12),
        ("sshll.u32 3, 2", 12),
        ("sshrl.u32 -1, 28", 15),
        ("sand.u32 7, 13", 5),
        ("sor.u32 5, 2", 7),
        ("sxor.u32 5, 1", 4),
        ("smin.u32 -1, 6", 6),
        ("smulhi.u32 -2147483648, 16", 8),
        ("smin.s32 6, 8", 6),
        ("smax.s32 -1, 6", 6),
        ("scalar_lea.smem 4, 3", 7),
        ("int_to_ptr.smem [resolvable:$true] 8", 8),
        ("sadd.s32 2147483647, -2147483641", 6),
        ("scalar_select /*predicate=*/%p30_p3, /*on_true=*/6, /*on_false=*/8", 6),
    ],
)
def test_scalar_operations(kernel_dump, op, value):
    bundles = ["%p30_p3 = scmp.lt.s32.totalorder 1, 2", f"%s50_s5 = {op}", *loop("%s50_s5")]
    assert predict(kernel_dump(*bundles)).cycles == TOP + 2 + 1 + value * 7


@pytest.mark.parametrize("op", ["sadd.f32 1, 2", "sadd.s8 1, 2", "scvt.s32 3", "sadd.s32 1"])
def test_operations_that_are_not_known_give_unknown_values(kernel_dump, op):
    assert predict(kernel_dump(f"%s50_s5 = {op}", *loop("%s50_s5"))).uncertain


@pytest.mark.parametrize(
    ("op", "holds"),
    [("pnand", False), ("pnor", False), ("pand", True), ("por", True), ("pxor", False)],
)
def test_predicate_operations(kernel_dump, op, holds):
    bundles = [
        "%p40_p4 = scmp.lt.s32.totalorder 1, 2",
        f"%p41_p4 = {op} %p40_p4, %p40_p4",
        "%s50_s5 = scalar_select /*predicate=*/%p41_p4, /*on_true=*/6, /*on_false=*/9",
        *loop("%s50_s5"),
    ]
    assert predict(kernel_dump(*bundles)).cycles == TOP + 3 + 1 + (6 if holds else 9) * 7


def test_sums_wrap_like_32_bit_words(kernel_dump):
    bundles = [
        "%s50_s5 = smov 2147483647",
        "%s51_s5 = sadd.s32 %s50_s5, 1",
        "%p50_p5 = scmp.lt.s32.totalorder %s51_s5, 0",
        "%s52_s5 = scalar_select /*predicate=*/%p50_p5, /*on_true=*/20, /*on_false=*/2",
        *loop("%s52_s5"),
    ]
    assert predict(kernel_dump(*bundles)).cycles == TOP + 4 + 1 + 20 * 7


def test_the_scalar_divider_gives_its_result_to_the_pop(kernel_dump):
    bundles = [
        "%s49_s4 = smov 17",
        "%50 = sdivrem.u32 %s49_s4, 7 /* kRem */",
        "%s51_s5 = spop.drf %50",
        *loop("%s51_s5"),
    ]
    assert predict(kernel_dump(*bundles)).cycles == TOP + 3 + 1 + 3 * 7


def test_a_wait_lasts_until_the_dma_has_landed(kernel_dump):
    prediction = predict(kernel_dump(dma(4096), WAIT.format(4096), TAKE.format(4096)))
    done = hbm_cycles(4096) + K.dma_latency
    assert prediction.cycles == pytest.approx(TOP + done + 2, abs=0.1)
    assert prediction.counters["dma_wait_cycles"] == pytest.approx(done - 1, abs=0.1)
    assert prediction.counters["hbm_bytes"] == 4096 * 32
    assert prediction.counters["dma_count"] == 1


def test_dmas_share_the_bandwidth_but_not_the_latency(kernel_dump):
    prediction = predict(kernel_dump(dma(4096), dma(4096), WAIT.format(8192)))
    done = 2 * hbm_cycles(4096) + K.dma_latency
    assert prediction.cycles == pytest.approx(TOP + done + 1, abs=0.1)


def test_many_short_runs_are_slower_than_one_long_run(kernel_dump):
    strided = dma(4096) + ", /*steps_per_stride=*/1"
    plain = predict(kernel_dump(dma(4096), WAIT.format(4096))).cycles
    assert predict(kernel_dump(strided, WAIT.format(4096))).cycles > plain + 50


def test_work_hides_behind_a_dma(kernel_dump):
    waiting = predict(kernel_dump(dma(4096), WAIT.format(4096)))
    working = predict(kernel_dump(dma(4096), *[""] * 500, WAIT.format(4096)))
    assert working.cycles == pytest.approx(waiting.cycles, abs=0.1)
    assert working.counters["dma_wait_share"] < waiting.counters["dma_wait_share"]


def test_transfers_that_nobody_waits_for_still_take_their_time(kernel_dump):
    prediction = predict(kernel_dump(dma(1 << 20, op="dma.vmem_to_hbm")))
    assert prediction.cycles >= hbm_cycles(1 << 20) - 0.1


def test_a_guarded_dma_that_is_off_is_not_issued(kernel_dump):
    off = "%p60_p6 = scmp.lt.s32.totalorder 2, 1"
    prediction = predict(kernel_dump(off, dma(4096, guard="(%p60_p6),")))
    assert prediction.counters["dma_count"] == 0
    assert not prediction.uncertain


def test_a_signalled_flag_satisfies_a_wait(kernel_dump):
    prediction = predict(
        kernel_dump(
            "%1 = vsyncadd [#allocation2], 2",
            "%2 = vwait.ge [#allocation2], 2",
            "%3 = vsyncadd [#allocation2], -2",
        )
    )
    assert prediction.cycles == TOP + 3
    assert not prediction.uncertain


def test_a_flag_left_raised_is_uncertain(kernel_dump):
    prediction = predict(kernel_dump("%1 = vsyncadd [#allocation2], 2"), compiler="libtpu 1.2.3")
    assert prediction.uncertain
    assert any("left raised" in one and "libtpu 1.2.3" in one for one in prediction.reasons)


def test_flags_of_two_slots_are_apart(kernel_dump):
    one = dma(4096, flag="[#allocation4]")
    prediction = predict(kernel_dump(one, "%8 = dma.done.wait [#allocation4 + $0x1], 4096"))
    assert prediction.uncertain


def test_program_times_add_up_and_name_what_was_called(tmp_path):
    top = listing(call("a"), call("b"), call("a"))
    dump = write_dump(
        tmp_path,
        {"TLP": top, "a": listing(*[""] * 50, entry="a"), "b": listing(*loop(30), entry="b")},
    )
    prediction = predict(dump)
    rows = {row.name: row for row in prediction.programs}
    assert (rows["a"].calls, rows["a"].cycles) == (2, 100)
    assert (rows["b"].calls, rows["b"].cycles) == (1, 211)
    assert sum(row.cycles for row in prediction.programs) == prediction.cycles
    assert [row.cycles for row in prediction.programs] == sorted(
        (row.cycles for row in prediction.programs), reverse=True
    )


def test_arguments_reach_the_called_program(kernel_dump):
    kernel = [
        "%s80_s8 = inlined_call_operand.<no memory space> [index: 0, kind: x]",
        *loop("%s80_s8"),
    ]
    dump = kernel_dump(*kernel, args=("%s40_s8",), prologue=("%s40_s8 = smov 6",))
    assert predict(dump).cycles == 2 + 1 + 1 + 6 * 7


# ---- what cannot be followed


def test_an_unknown_trip_count_is_uncertain_and_charged_a_bound(kernel_dump):
    prediction = predict(kernel_dump("%s50_s5 = sld [smem:[#allocation9]]", *loop("%s50_s5")))
    assert prediction.uncertain
    assert prediction.cycles >= K.unknown_trip_count * 7
    assert any("trip count" in reason for reason in prediction.reasons)


def test_an_unknown_exit_at_the_top_of_a_loop_is_a_bound_too(kernel_dump):
    bundles = [
        "%s50_s5 = sld [smem:[#allocation9]]",
        ("%p50_p5 = scmp.eq.s32.totalorder %s50_s5, 3", "Start region 5"),
        "%51 = sbr.rel (%p50_p5) target = $region6",
        *[""] * 4,
        "%52 = vsyncadd [#allocation2], 1",
        "%53 = sbr.rel target = $region5",
        *[""] * 4,
        ("", "Start region 6"),
    ]
    prediction = predict(kernel_dump(*bundles))
    assert prediction.uncertain
    assert K.unknown_trip_count * 10 < prediction.cycles < K.unknown_trip_count * 20


def test_a_loop_without_an_end_stops_and_is_uncertain(kernel_dump):
    prediction = predict(
        kernel_dump(("", "Start region 5"), "%5 = sbr.rel target = $region5", *[""] * 4)
    )
    assert prediction.uncertain
    assert prediction.cycles >= K.unknown_trip_count * 6


def test_an_endless_loop_that_never_repeats_stops_at_the_step_budget(kernel_dump):
    bundles = loop("%s3_s1")  # compares the counter with itself: leaves at once unless changed
    bundles[-6] = "%p1_p0 = scmp.lt.s32.totalorder %s3_s1, 0"
    bundles.insert(2, "%60 = sst [smem:[#allocation9 + %s3_s1]] 1")
    prediction = predict(kernel_dump(*bundles), max_steps=5_000)
    assert prediction.uncertain
    assert any("step budget" in reason for reason in prediction.reasons)
    assert prediction.cycles > 1_000


def test_a_long_counted_loop_that_cannot_be_skipped_is_extrapolated(kernel_dump):
    bundles = loop(1_000_000)
    bundles.insert(2, "%60 = sst [smem:[#allocation9 + %s3_s1]] 1")
    prediction = predict(kernel_dump(*bundles), max_steps=5_000)
    assert prediction.uncertain
    assert prediction.cycles == pytest.approx(8e6, rel=0.01)


@pytest.mark.parametrize(
    ("bundles", "word"),
    [
        (["%8 = dma.done.wait [#allocation4], 7"], "signals"),
        (["%s50_s5 = sld [smem:[#allocation9]]", dma("%s50_s5")], "unknown size"),
        (["%s50_s5 = sld [smem:[#allocation9]]", dma(8), WAIT.format("%s50_s5")], "amount"),
        (["%s50_s5 = sld [smem:[#allocation9]]", dma(8, flag="%s50_s5")], "flag"),
        (["%1 = vwait.eq [#allocation4], 1"], "not modelled"),
        (["%1 = dma.remote.hbm_to_hbm %s1_s1"], "not modelled"),
        (["%1 = sbr.rel %s1_s1", *[""] * 4], "target"),
        ([call("elsewhere")], "no schedule"),
        (
            [
                "%s50_s5 = sld [smem:[#allocation9]]",
                "%p50_p5 = scmp.eq.s32.totalorder %s50_s5, 3",
                dma(4096, guard="(%p50_p5),"),
            ],
            "unknown condition",
        ),
        (
            [
                "%s50_s5 = sld [smem:[#allocation9]]",
                "%p50_p5 = scmp.eq.s32.totalorder %s50_s5, 3",
                "%51 = sbr.rel (%p50_p5) target = $region3",
                *[""] * 4,
                "%52 = sst [smem:[#allocation8]] 1",
                ("", "Start region 3"),
            ],
            "branch on an unknown",
        ),
    ],
)
def test_what_cannot_be_followed_is_uncertain_and_says_why(kernel_dump, bundles, word):
    prediction = predict(kernel_dump(*bundles))
    assert prediction.uncertain
    assert any(word in reason for reason in prediction.reasons), prediction.reasons


def test_conditional_vector_work_is_charged_without_doubt(kernel_dump):
    prediction = predict(
        kernel_dump(
            "%s50_s5 = sld [smem:[#allocation9]]",
            "%p50_p5 = scmp.eq.s32.totalorder %s50_s5, 3",
            "%51 = sbr.rel (%p50_p5) target = $region3",
            *[""] * 4,
            *["%v1_v1 = vadd.f32 %v0_v0, %v0_v0"] * 100,
            ("", "Start region 3"),
        )
    )
    assert not prediction.uncertain
    assert prediction.counters["vpu_ops"] == 100


def test_a_store_to_an_unknown_address_spoils_scalar_memory(kernel_dump):
    bundles = [
        "%51 = sst [smem:[#allocation9]] 3",
        "%s50_s5 = sld [smem:[#allocation8]]",
        "%52 = sst [smem:[#allocation9 + %s50_s5]] 900",
        "%s53_s5 = sld [smem:[#allocation9]]",
        *loop("%s53_s5"),
    ]
    assert predict(kernel_dump(*bundles)).uncertain


def test_a_dma_over_scalar_memory_hides_what_was_there(kernel_dump):
    bundles = [
        "%51 = sst [smem:[#allocation9]] 3  ;;  %s52_s5 = smov [#allocation9]",
        "%7 = dma.hbm_to_smem /*hbm=*/%s90_s9, /*size_in_granules=*/1, /*smem=*/%s52_s5, "
        "/*dst_syncflagno=*/[#allocation4]",
        WAIT.format(1),
        "%s53_s5 = sld [smem:[#allocation9]]",
        *loop("%s53_s5"),
    ]
    prediction = predict(kernel_dump(*bundles))
    assert prediction.uncertain
    assert prediction.cycles > K.unknown_trip_count


def test_fed_operands_fill_scalar_memory(kernel_dump):
    bundles = [
        "%s80_s8 = inlined_call_operand.hbm [shape: s32[8], index: 2, kind: input, x]",
        "%s52_s5 = smov [#allocation9]",
        "%7 = dma.hbm_to_smem /*hbm=*/%s80_s8, /*size_in_granules=*/1, /*smem=*/%s52_s5, "
        "/*dst_syncflagno=*/[#allocation4]",
        WAIT.format(1),
        TAKE.format(1),
        "%s53_s5 = sld [smem:[#allocation9 + $0x1]]",
        *loop("%s53_s5"),
    ]
    dump = kernel_dump(*bundles)
    assert predict(dump).uncertain
    fed = predict(dump, feeds={("k", 2): [0, 9, 0, 0, 0, 0, 0, 0]})
    assert not fed.uncertain
    assert fed.counters["scalar_ops"] < predict(dump).counters["scalar_ops"]
    longer = predict(dump, feeds={("k", 2): [0, 19, 0, 0, 0, 0, 0, 0]})
    assert longer.cycles - fed.cycles == 70


def test_a_copy_of_a_part_of_an_operand_is_not_fed(kernel_dump):
    bundles = [
        "%s80_s8 = inlined_call_operand.hbm [shape: s32[16], index: 2, kind: input, x]",
        "%s52_s5 = smov [#allocation9]",
        "%7 = dma.hbm_to_smem /*hbm=*/%s80_s8, /*size_in_granules=*/1, /*smem=*/%s52_s5, "
        "/*dst_syncflagno=*/[#allocation4]",
        WAIT.format(1),
        TAKE.format(1),
        "%s53_s5 = sld [smem:[#allocation9 + $0x1]]",
        *loop("%s53_s5"),
    ]
    dump = kernel_dump(*bundles)
    assert predict(dump, feeds={("k", 2): [9] * 16}).uncertain  # which half is copied?
    assert not predict(dump, feeds={("k", 2): [9] * 8}).uncertain
    assert predict(dump, feeds={("k", 2): [9, None, 9, 9, 9, 9, 9, 9]}).uncertain


def test_a_dma_between_unknown_memories_is_charged_as_hbm(kernel_dump):
    text = "%7 = dma.general /*src=*/%s70_s7, /*size_in_granules=*/40960, /*dst=*/%s71_s7, "
    unknown = predict(kernel_dump(text + "/*dst_syncflagno=*/[#allocation4]", WAIT.format(40960)))
    known = predict(kernel_dump(dma(40960), WAIT.format(40960)))
    assert unknown.cycles >= known.cycles


def test_a_store_that_may_not_happen_leaves_an_unknown_word(kernel_dump):
    bundles = [
        "%51 = sst [smem:[#allocation9]] 900  ;;  %s50_s5 = sld [smem:[#allocation8]]",
        "%p50_p5 = scmp.eq.s32.totalorder %s50_s5, 3",
        "%52 = sst [smem:[#allocation9]] (%p50_p5), 1",
        "%s53_s5 = sld [smem:[#allocation9]]",
        *loop("%s53_s5"),
    ]
    prediction = predict(kernel_dump(*bundles))
    assert any("trip count" in reason for reason in prediction.reasons)
    assert prediction.cycles > 900 * 7


def test_one_program_without_an_end_leaves_steps_for_the_others(tmp_path):
    endless = loop(10**9, "%60 = sst [smem:[#allocation9 + %s3_s1]] 1")
    top = listing(call("a"), call("b"), call("a"))
    kernels = {"a": listing(*endless, entry="a"), "b": listing(*loop(30), entry="b")}
    prediction = predict(write_dump(tmp_path, {"TLP": top, **kernels}), max_steps=10_000)
    rows = {row.name: row for row in prediction.programs}
    assert prediction.uncertain
    assert rows["b"].cycles == 211
    assert rows["a"].calls == 2
    assert rows["a"].cycles == pytest.approx(2 * 8e9, rel=0.01)


def test_an_uncertain_time_covers_every_bundle_once(kernel_dump):
    bundles = ["%1 = sbr.rel %s1_s1", *[""] * 300]
    prediction = predict(kernel_dump(*bundles))
    assert prediction.uncertain
    assert prediction.cycles == TOP + 301


def test_fed_words_are_signed(kernel_dump):
    bundles = [
        "%s80_s8 = inlined_call_operand.<no memory space> [shape: u32[], index: 1, kind: input]",
        "%p80_p8 = scmp.lt.s32.totalorder %s80_s8, 0",
        "%s81_s8 = scalar_select /*predicate=*/%p80_p8, /*on_true=*/6, /*on_false=*/9",
        *loop("%s81_s8"),
    ]
    prediction = predict(kernel_dump(*bundles), feeds={("k", 1): [4294967295]})
    assert prediction.cycles == TOP + 3 + 1 + 6 * 7


def test_calls_in_a_circle_end(tmp_path):
    top = listing(call("a"))
    dump = write_dump(tmp_path, {"TLP": top, "a": listing(call("a"), call("a"), entry="a")})
    assert predict(dump).uncertain


# ---- skipping repetitions is exact


def full_replay(dump, monkeypatch, **options):
    with monkeypatch.context() as patch:
        patch.setattr(steady, "MIN_GAIN", 1 << 80)
        return predict(dump, **options)


def same_run(first, second):
    """Equal but for how many blocks were run one by one."""
    counters = [
        {name: value for name, value in one.counters.items() if name != "replay_steps"}
        for one in (first, second)
    ]
    assert counters[0] == counters[1]
    assert dataclasses.replace(first, counters={}) == dataclasses.replace(second, counters={})


def pipeline(rows, columns, size, work, wait_first):
    """A grid of rows x columns: a block per step, another per row, both double buffered."""
    step = [
        "%s60_s6 = sand.u32 1, %s2_s1  ;;  %s61_s6 = sshrl.u32 %s2_s1, 0",
        "%s62_s6 = scalar_lea.sflag [#allocation4], %s60_s6",
        f"%63 = sdivrem.u32 %s2_s1, {columns} /* kRem */",
        "%s64_s6 = spop.drf %63",
        "%p64_p6 = scmp.eq.s32.totalorder %s64_s6, 0",
        dma(size, flag="%s62_s6"),
        dma(3 * size, flag="[#allocation6]", guard="(%p64_p6),"),
        *[""] * work,
        f"%65 = dma.done.wait %s62_s6, {size}",
        f"%66 = vsyncadd %s62_s6, -{size}",
        f"%67 = dma.done.wait (%p64_p6), [#allocation6], {3 * size}",
        f"%68 = vsyncadd (%p64_p6), [#allocation6], -{3 * size}",
    ]
    if wait_first:
        step = [*step[:5], *step[7:], *step[5:7]]
        prologue = [
            dma(size),
            dma(size, flag="[#allocation4 + $0x1]"),
            dma(3 * size, "[#allocation6]"),
        ]
    else:
        prologue = []
    return [*prologue, *loop(rows * columns, *step)]


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 9),
    size=st.sampled_from([1, 100, 4096, 40_000]),
    work=st.sampled_from([0, 5, 300, 2500]),
    wait_first=st.booleans(),
)
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_skipping_equals_the_full_replay(
    kernel_dump, monkeypatch, rows, columns, size, work, wait_first
):
    dump = kernel_dump(*pipeline(rows * 8, columns, size, work, wait_first))
    same_run(predict(dump), full_replay(dump, monkeypatch))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6))
@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_skipping_equals_the_full_replay_of_nested_loops(
    kernel_dump, monkeypatch, outer, inner, growth
):
    body = [f"%s40_s4 = smul.u32 %s2_s1, {growth}", *loop(inner, "", region=6, first=11)]
    triangle = [*body, *loop("%s40_s4", region=7, first=21)]
    dump = kernel_dump(*loop(outer, *triangle))
    same_run(predict(dump), full_replay(dump, monkeypatch))


def test_loops_with_unknown_branches_inside_are_not_skipped(kernel_dump, monkeypatch):
    branch = [
        "%s50_s5 = sld [smem:[#allocation9]]",
        "%p50_p5 = scmp.eq.s32.totalorder %s50_s5, 3",
        "%51 = sbr.rel (%p50_p5) target = $region3",
        *[""] * 4,
        "%52 = vsyncadd [#allocation2], 0",
        *[""] * 20,
        ("", "Start region 3"),
    ]
    dump = kernel_dump(*loop(5_000, *branch))
    quick = predict(dump)
    assert quick.uncertain
    # once in a while the other way is taken, which no skip may hide
    assert quick.cycles < TOP + 1 + 5_000 * (7 + len(branch))
    same_run(quick, full_replay(dump, monkeypatch))


def test_a_grid_is_skipped_row_by_row(kernel_dump):
    prediction = predict(kernel_dump(*pipeline(400, 12, 4096, 40, True)))
    assert prediction.counters["replay_steps"] < 0.2 * prediction.counters["blocks"]


def test_a_loop_with_many_phases_is_skipped_in_each(kernel_dump):
    phase = [
        "%s60_s6 = sand.u32 1023, %s2_s1",
        "%p60_p6 = scmp.lt.s32.totalorder %s60_s6, 7",
        "%61 = sbr.rel (%p60_p6) target = $region3",
        *[""] * 4,
        "%62 = vsyncadd [#allocation2], 0",
        ("", "Start region 3"),
    ]
    prediction = predict(kernel_dump(*loop(64 * 1024, *phase)))
    assert prediction.cycles == TOP + 1 + 64 * 1024 * (7 + len(phase)) - 64 * 7
    assert prediction.counters["replay_steps"] < 0.05 * prediction.counters["blocks"]


def test_long_loops_are_skipped_not_run(kernel_dump):
    prediction = predict(kernel_dump(*loop(300_000_000)))
    assert prediction.cycles == TOP + 1 + 300_000_000 * 7
    assert prediction.counters["replay_steps"] < 100
    assert prediction.counters["blocks"] == pytest.approx(300_000_000, abs=5)
    assert not prediction.uncertain


def test_a_loop_of_calls_is_skipped_with_its_program_times(tmp_path):
    top = listing(*loop(5_000, call("k")))
    dump = write_dump(tmp_path, {"TLP": top, "k": listing(*[""] * 9, entry="k")})
    prediction = predict(dump)
    rows = {row.name: row for row in prediction.programs}
    assert (rows["k"].calls, rows["k"].cycles) == (5_000, 45_000)
    assert prediction.counters["replay_steps"] < 200


@given(st.integers(1, 400), st.integers(1, 400))
@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_more_iterations_never_take_less_time(kernel_dump, few, more):
    few, more = sorted((few, few + more))
    times = [predict(kernel_dump(*pipeline(n, 3, 500, 20, True))).cycles for n in (few, more)]
    assert times[0] < times[1]


def test_a_wider_step_budget_never_takes_less_time(kernel_dump):
    bundles = loop(3_000)
    bundles.insert(2, "%60 = sst [smem:[#allocation9 + %s3_s1]] 1")
    dump = kernel_dump(*bundles)
    exact = predict(dump)
    assert not exact.uncertain
    assert predict(dump, max_steps=1_000).cycles >= 0.99 * exact.cycles
