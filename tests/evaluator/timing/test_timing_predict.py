import dataclasses
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timing_listings import call, listing, loop, write_dump

from jaxbench_env.evaluator.timing import Constants, Prediction, TimingError, predict, steady
from jaxbench_env.evaluator.timing.bundles import parse
from jaxbench_env.evaluator.timing.machine import Engine, OutOfSteps
from jaxbench_env.evaluator.timing.program import AddressMap, Program

K = Constants.load()

#: Milliseconds of the real samples. Those of `matmul` agree with an independent replay.
EXPECTED = {
    "jax_0_9_2/rms_norm": 1.241402,
    "jax_0_10_2/matmul": 0.042876,
    "jax_0_12_0/matmul": 0.042838,
    "jax_0_10_2/fori": 1.894844,
    "jax_0_12_0/fori": 1.894853,
    "jax_0_10_2/emit": 0.310957,
    "jax_0_12_0/emit": 0.310958,
    "jax_0_10_2/manual": 0.104780,
    "jax_0_12_0/manual": 0.104780,
    "jax_0_10_2/sems": 0.002024,
    "jax_0_12_0/sems": 0.002024,
    "jax_0_10_2/vecwhen": 0.011761,
    "jax_0_10_2/hugeloop": 1885.716,
    "jax_0_12_0/hugeloop": 1885.716,
}
#: Real samples whose control flow depends on data; at least this many milliseconds.
UNCERTAIN = {
    "jax_0_10_2/vecwhile": 0.01,
    "jax_0_12_0/vecwhile": 0.01,
    "jax_0_10_2/dyngrid": 0.5,
    "jax_0_12_0/dyngrid": 0.5,
    "jax_0_10_2/prefetch_ctl": 0.3,
    "jax_0_12_0/prefetch_ctl": 0.3,
    "jax_0_10_2/prefetch": 0.06,
    "jax_0_12_0/prefetch": 0.06,
    "jax_0_12_0/gather": 0.1,
    "jax_0_10_2/dbg": 0.002,
    "jax_0_12_0/dbg": 0.002,
}
COUNTERS = {
    "bundles",
    "blocks",
    "replay_steps",
    "mxu_ops",
    "xlu_ops",
    "eup_ops",
    "vpu_ops",
    "load_ops",
    "store_ops",
    "scalar_ops",
    "spill_loads",
    "spill_stores",
    "dma_count",
    "hbm_bytes",
    "hbm_read_bytes",
    "hbm_written_bytes",
    "hbm_bandwidth",
    "dma_wait_cycles",
    "dma_wait_share",
    "estimated_share",
    "mxu_share",
    "vpu_share",
    "xlu_share",
    "eup_share",
    "load_share",
    "store_share",
    "vector_spills",
    "kernel_share",
    "steps",
    "bundles_per_step",
}


# ---- real dumps


@pytest.mark.parametrize("sample", EXPECTED)
def test_real_samples_are_followed_to_their_known_time(real_dumps, sample):
    # a fixed bandwidth, so that the numbers outlive the next fit
    fixed = dataclasses.replace(K, hbm_bytes_per_cycle=1.3e12 / 1.75e9)
    prediction = predict(real_dumps[sample], constants=fixed)
    assert not prediction.uncertain, prediction.reasons
    assert prediction.cycles / 1.75e6 == pytest.approx(EXPECTED[sample], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("sample", UNCERTAIN)
def test_real_samples_that_depend_on_data_are_uncertain_and_never_tiny(real_dumps, sample):
    prediction = predict(real_dumps[sample])
    assert prediction.uncertain
    assert prediction.ms >= UNCERTAIN[sample]


@pytest.mark.parametrize("version", ["jax_0_10_2", "jax_0_12_0"])
def test_fed_scalar_operands_settle_what_depends_on_them(real_dumps, version):
    dump = real_dumps[f"{version}/prefetch_ctl"]
    short = predict(dump, feeds={("prefetch_ctl.1", 0): [10] * 64})
    long = predict(dump, feeds={("prefetch_ctl.1", 0): [1000] * 64})
    assert not short.uncertain and not long.uncertain
    # 8 vector registers a block: at least 8 additions and multiplications an iteration
    assert long.cycles - short.cycles >= 64 * 990 * 8
    blocks = real_dumps[f"{version}/prefetch"]
    spread = predict(blocks, feeds={("prefetch.1", 0): list(range(64))})
    same = predict(blocks, feeds={("prefetch.1", 0): [0] * 64})
    assert not spread.uncertain and not same.uncertain
    assert spread.counters["hbm_bytes"] > same.counters["hbm_bytes"]


@pytest.mark.parametrize("version", ["jax_0_10_2", "jax_0_12_0"])
def test_a_fed_bound_of_the_grid_is_followed_and_an_unfed_one_is_uncertain(real_dumps, version):
    dump = real_dumps[f"{version}/dyngrid"]
    few, many = (predict(dump, feeds={("dyngrid.1", 0): [n]}) for n in (10, 100_000))
    assert not few.uncertain and not many.uncertain
    # a step moves 64 KB in
    assert many.counters["hbm_bytes"] - few.counters["hbm_bytes"] >= 99_990 * (1 << 16)
    assert predict(dump).uncertain


def test_a_time_from_below_charges_no_doubts(real_dumps):
    for sample, dump in real_dumps.items():
        above, below = predict(dump), predict(dump, least=True)
        assert 0 < below.ms <= above.ms
        if sample in EXPECTED and "conditional" not in " ".join(above.reasons):
            assert below.ms == above.ms
        assert below.uncertain == above.uncertain
    fed = predict(real_dumps["jax_0_10_2/dyngrid"], feeds={("dyngrid.1", 0): [1]})
    assert predict(real_dumps["jax_0_10_2/dyngrid"], least=True).ms <= fed.ms


def test_sparse_core_work_from_below_overlaps(real_dumps):
    dump, moved = real_dumps["jax_0_12_0/gather"], 2 * 8192 * 1024 * 4
    below = predict(dump, least=True).cycles
    assert moved / K.hbm_bytes_per_cycle <= below < 0.6 * predict(dump).cycles


def test_sparse_core_work_is_estimated_and_reported(real_dumps):
    prediction = predict(real_dumps["jax_0_12_0/gather"])
    assert any("SparseCore work is estimated" in reason for reason in prediction.reasons)
    moved = 2 * 8192 * 1024 * 4
    assert prediction.cycles > moved / K.hbm_bytes_per_cycle


def test_the_matmul_sample_counts_its_work(real_dumps):
    prediction = predict(real_dumps["jax_0_10_2/matmul"])
    assert set(prediction.counters) == COUNTERS
    assert [row.name for row in prediction.programs] == ["f.1", "broadcast_maximum_fusion", "TLP"]
    counters = prediction.counters
    # 4 x 4 x 4 steps read two blocks of 256 x 256 bfloat16 each, apart from repeats
    assert 14e6 < prediction.programs[0].hbm_bytes < 17e6
    # 64 steps x 32 pushes and 32 multiplies of 8 rows at least
    assert counters["mxu_ops"] > 64 * 32
    assert counters["vpu_ops"] > 1000 and counters["load_ops"] > 1000
    assert 0 < counters["dma_wait_share"] < 1
    bandwidth = counters["hbm_bytes"] / (prediction.ms * 1e-3)
    assert counters["hbm_bandwidth"] == pytest.approx(bandwidth)
    assert counters["hbm_bandwidth"] < K.hbm_bytes_per_cycle * K.clock_hz


def test_every_real_sample_is_in_one_of_the_tables(real_dumps):
    assert set(real_dumps) == set(EXPECTED) | set(UNCERTAIN)


def test_skipping_is_exact_on_real_samples(real_dumps, monkeypatch):
    for program in ("matmul", "emit", "manual", "sems", "vecwhen", "fori"):
        sample = f"jax_0_10_2/{program}"
        quick = predict(real_dumps[sample])
        with monkeypatch.context() as patch:
            patch.setattr(steady, "MIN_GAIN", 1 << 80)
            full = predict(real_dumps[sample])
        assert (quick.cycles, quick.programs) == (full.cycles, full.programs)


def test_the_same_dump_gives_the_same_result_to_the_bit(real_dumps, tmp_path):
    for sample, dump in real_dumps.items():
        moved = tmp_path / sample
        shutil.copytree(dump, moved)
        for number, path in enumerate(sorted(moved.iterdir(), reverse=True)):
            os.utime(path, (number, number))
        assert repr(predict(dump)) == repr(predict(moved))


def test_the_result_does_not_depend_on_the_hash_seed_of_the_process(real_dumps):
    code = (
        "import sys; from pathlib import Path; from jaxbench_env.evaluator.timing import predict; "
        "print([predict(Path(dump)) for dump in sys.argv[1:]])"
    )
    dumps = [str(real_dumps[f"jax_0_12_0/{name}"]) for name in ("gather", "sems")]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, *dumps],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1


# ---- folders


def test_a_folder_that_is_missing_or_empty_is_an_error(tmp_path):
    with pytest.raises(TimingError, match="cannot read"):
        predict(tmp_path / "missing")
    with pytest.raises(TimingError, match="no final bundles"):
        predict(tmp_path)


def test_a_dump_without_a_top_level_is_an_error(tmp_path):
    with pytest.raises(TimingError, match="top-level"):
        predict(write_dump(tmp_path, {"k": listing("", entry="k")}))


@pytest.mark.parametrize("text", ["", "\n\n", "garbage", "= control target key start\n"])
def test_a_top_level_without_bundles_is_an_error(tmp_path, text):
    with pytest.raises(TimingError, match="empty"):
        predict(write_dump(tmp_path, {"TLP": text}))


def test_a_dump_that_is_too_large_is_an_error(tmp_path):
    dump = write_dump(tmp_path, {"TLP": listing(*[""] * 100)})
    assert predict(dump).cycles == 100
    with pytest.raises(TimingError, match="at most 500"):
        predict(dump, max_text_bytes=500)


def test_links_and_other_files_are_not_read(tmp_path):
    dump = write_dump(tmp_path / "dump", {"TLP": listing("", "")})
    (dump / "2000-TLP-01-final_bundles.txt").symlink_to(tmp_path / "elsewhere")
    (dump / "2000-TLP-00-schedule-analysis_final_bundles.txt").write_text("no listing")
    os.mkfifo(dump / "3000-TLP-01-final_bundles.txt")
    assert predict(dump).cycles == 2


def test_the_last_compilation_of_a_program_counts_whatever_the_file_times(tmp_path):
    dump = write_dump(tmp_path, {"TLP": listing(call("k"))})
    for stamp, length in ((20, 50), (3, 10), (100, 70)):
        path = dump / f"{stamp}-k-01-final_bundles.txt"
        path.write_text(listing(*[""] * length, entry="k"))
        os.utime(path, (1e9 - stamp, 1e9 - stamp))
    assert predict(dump).cycles == 1 + 70


def test_a_kernel_named_like_the_top_level_is_not_the_top_level(tmp_path):
    dump = write_dump(tmp_path, {"TLP": listing(call("TLP"), *[""] * 9)})
    (dump / "2000-TLP-01-final_bundles.txt").write_text(listing(*[""] * 40, entry="TLP"))
    assert predict(dump).cycles == 10 + 40


def test_two_top_levels_are_uncertain(tmp_path):
    dump = write_dump(tmp_path, {"TLP": listing("")})
    (dump / "2000-TLP-01-final_bundles.txt").write_text(listing("", ""))
    assert predict(dump).uncertain
    assert predict(dump).cycles == 2


# ---- programs without a listing

HLO = """HloModule jit_f

%a (p: f32[4096,4096]) -> f32[4096,4096] {
  %p = f32[4096,4096]{1,0} parameter(0)
  ROOT %r = f32[4096,4096]{1,0} negate(%p)
}

%b (p: f32[4096,4096]) -> f32[4096,4096] {
  %p.1 = f32[4096,4096]{1,0} parameter(0)
  ROOT %r.1 = f32[4096,4096]{1,0} negate(%p.1)
}

ENTRY %main (x: f32[4096,4096]) -> f32[4096,4096] {
  %x = f32[4096,4096]{1,0} parameter(0)
  %one = f32[4096,4096]{1,0} fusion(%x), kind=kLoop, calls=%a
  %two = f32[4096,4096]{1,0} fusion(%one), kind=kLoop, calls=%b
  %est = f32[8,128]{1,0} fusion(%one), calls=%c, backend_config={"window_config":{\
"estimated_cycles":"5000"}}
  ROOT %out = f32[4096,4096]{1,0} copy(%two)
}
"""


def test_a_twin_lends_its_schedule(tmp_path):
    top = listing(call("one"), call("two"))
    dump = write_dump(tmp_path, {"TLP": top, "one": listing(*[""] * 60, entry="one")}, HLO)
    prediction = predict(dump)
    assert prediction.cycles == 2 + 120
    assert not prediction.uncertain
    assert prediction.reasons == ("two shares the schedule of one",)


def test_a_twin_is_fed_its_own_operands(tmp_path):
    kernel = listing(
        "%s80_s8 = inlined_call_operand.<no memory space> [shape: s32[], index: 1, kind: input]",
        *loop("%s80_s8"),
        entry="one",
    )
    top = listing(call("one"), call("two"))
    dump = write_dump(tmp_path, {"TLP": top, "one": kernel}, HLO)
    prediction = predict(dump, feeds={("one", 1): [10], ("two", 1): [30]})
    cycles = {row.name: row.cycles for row in prediction.programs}
    assert (cycles["one"], cycles["two"]) == (2 + 70, 2 + 210)


def test_large_estimates_make_the_time_uncertain_and_small_ones_do_not(tmp_path):
    for number, (work, uncertain) in enumerate(((100, True), (100_000, False))):
        top = listing(call("est"), call("one"))
        kernel = listing(*loop(work), entry="one")
        prediction = predict(write_dump(tmp_path / str(number), {"TLP": top, "one": kernel}, HLO))
        assert prediction.uncertain is uncertain
        assert any("compiler's estimate" in reason for reason in prediction.reasons)
        assert (
            prediction.counters["estimated_share"]
            == pytest.approx(5000 / prediction.cycles, rel=0.01)
            or uncertain
        )


def test_bytes_stand_in_where_there_is_nothing_else(tmp_path):
    prediction = predict(write_dump(tmp_path, {"TLP": listing(call("out"))}, HLO))
    assert prediction.uncertain
    assert prediction.cycles >= 2 * 4096 * 4096 * 4 / K.hbm_bytes_per_cycle


def test_an_uncertain_time_is_at_least_that_of_arguments_and_results(tmp_path):
    prediction = predict(write_dump(tmp_path, {"TLP": listing(call("nowhere"))}, HLO))
    assert prediction.uncertain
    assert prediction.cycles == pytest.approx(2 * 4096 * 4096 * 4 / K.hbm_bytes_per_cycle)


# ---- hostile dumps

WORDS = st.sampled_from(
    "{ } ;; /* */ ( ) [ ] , = : \n %s1_s1 %s2_s1 %p1_p0 !%p1_p0 %7 sld sst smov 5 -1 0 99999 sphi "
    "sadd.s32 ssub.s32 smul.u32 sshll.u32 sdivrem.u32 spop.drf scmp.lt.s32.totalorder pneg sbr.rel "
    "target $region5 [smem:[ ]] #allocation1 #allocation1_spill + $0x1 dma.hbm_to_vmem dma.general "
    "/*size_in_granules=*/ /*dst_syncflagno=*/ dma.done.wait vsyncadd vsyncpa vwait.ge vdelay "
    "inlined_call /* %k = custom-call() */ vadd.f32 scalar_select reloc scalar_lea.smem".split(" ")
)
LINES = st.sampled_from(
    [
        "%s1_s1 = smov 3",
        "%s1_s1 = sadd.s32 %s1_s1, %s2_s1",
        "%s2_s1 = sphi %s1_s1, %s2_s1",
        "%s2_s1 = smul.u32 %s2_s1, %s2_s1",
        "%s2_s1 = sshll.u32 %s2_s1, %s1_s1",
        "%s1_s1 = sdivrem.u32 %s1_s1, %s2_s1",
        "%7 = sdivrem.s32 %s1_s1, %s2_s1  ;;  %s1_s1 = spop.drf %7",
        "%p1_p0 = scmp.lt.s32.totalorder %s1_s1, %s2_s1",
        "%p1_p0 = pneg %p1_p0",
        "%p1_p0 = smov 5  ;;  %s1_s1 = pneg %s1_s1",
        "%5 = sbr.rel (%p1_p0) target = $region5",
        "%5 = sbr.rel (!%p1_p0) target = $region6",
        "%5 = sbr.rel target = $region6",
        "%s1_s1 = sld [smem:[#allocation1 + %s2_s1]]",
        "%9 = sst [smem:[%s1_s1]] (%p1_p0), %s2_s1",
        "%9 = sst [smem:[#allocation1_spill]] %s2_s1",
        "%s2_s1 = sld [smem:[#allocation1_spill]]",
        "%7 = dma.hbm_to_smem /*size_in_granules=*/%s1_s1, /*smem=*/%s2_s1, "
        "/*dst_syncflagno=*/%s1_s1",
        "%7 = dma.general /*size_in_granules=*/%p1_p0, /*dst_syncflagno=*/[#allocation1]",
        "%7 = dma.done.wait (%p1_p0), [#allocation1], %s1_s1",
        "%7 = vsyncadd %s1_s1, %s2_s1",
        "%7 = vsyncpa %p1_p0, 0",
        "%7 = vdelay 99999999",
        "%7 = inlined_call %s1_s1 /* %k = custom-call() */",
        "%s1_s1 = scalar_select %p1_p0, %s2_s1, [#allocation3]",
        "",
    ]
)


def run(*texts):
    """Replays listings without the safety net of `predict`."""
    engine = Engine(K, {}, 3_000, steady.replay)
    addresses = AddressMap()
    top, *others = (
        Program(name, number, parse(text), addresses, top_level=not number)
        for number, (name, text) in enumerate(zip(("TLP", "k"), texts, strict=False))
    )
    engine.programs = {program.name: program for program in others}
    try:
        return steady.replay(engine, top, 0), engine.reasons
    except OutOfSteps as stopped:
        return stopped.time, engine.reasons


@given(st.lists(WORDS, max_size=40), st.lists(WORDS, max_size=40))
def test_scrambled_words_are_replayed_or_refused_without_any_other_error(first, second):
    text = listing(" ".join(first), (" ".join(second), "Start region 5"))
    if parse(text).length:
        assert run(text, text) == run(text, text)


@given(
    st.lists(LINES, min_size=3, max_size=30),
    st.lists(LINES, min_size=3, max_size=12),
    st.integers(0, 29),
    st.integers(0, 29),
)
@settings(max_examples=100, deadline=None)
def test_any_sequence_of_instructions_is_replayed_in_bounded_steps(top, kernel, five, six):
    def build(lines):
        noted = [
            (
                line,
                " :: ".join(f"Start region {r}" for r, at in ((5, five), (6, six)) if at == place),
            )
            for place, line in enumerate(lines)
        ]
        return listing(*noted)

    time, reasons = run(build(top), build(kernel))
    assert time >= 0
    assert (time, reasons) == run(build(top), build(kernel))


@given(st.binary(max_size=400), st.binary(max_size=400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_garbage_files_give_a_prediction_or_a_timing_error(tmp_path, listing_bytes, hlo_bytes):
    dump = write_dump(tmp_path / "dump", {"TLP": listing("", call("k"))})
    (dump / "1001-k-01-final_bundles.txt").write_bytes(b"  0x0   :  { " + listing_bytes)
    (dump / "1000-TLP-hlo.txt").write_bytes(hlo_bytes)
    assert isinstance(predict(dump), Prediction)
    (dump / "1000-TLP-01-final_bundles.txt").write_bytes(listing_bytes)
    try:
        predict(dump)
    except TimingError:
        pass


def test_names_cannot_become_code(tmp_path):
    name = "k');__import__('os').mkdir('owned');('"
    top = listing(call(name), f"%700 = inlined_call %s1_s1 /* %{name} = custom-call(%a) */")
    dump = write_dump(tmp_path / "dump", {"TLP": top})
    (dump / "1001-k-01-final_bundles.txt").write_text(listing("", entry=name))
    predict(dump)
    module = Program("TLP", 0, parse(top), AddressMap())
    for index in range(len(module.blocks)):
        assert "import" not in module.source(index)


def test_generated_code_has_only_numbers_and_the_names_of_the_machine(real_dumps):
    allowed = set(
        "def block R E t b c d U P if else is not and or True False return wait dma add reset "
        "store call fill operand arguments get mem divide shift callees doubtful unmodelled "
        "unknown_branch sparse_core_wait sshll sshrl sshra".split()
    )
    for dump in real_dumps.values():
        for path in sorted(dump.glob("*final_bundles.txt")):
            program = Program("p", 1, parse(path.read_text()), AddressMap())
            for index in range(len(program.blocks)):
                words = set(re_words(program.source(index)))
                assert words <= allowed


def re_words(source):
    return [
        word
        for word in "".join(
            char if char.isalnum() or char == "_" else " " for char in source
        ).split()
        if not word.isdigit() and not (word[0] == "v" and word[1:].isdigit())
    ]


def test_a_hang_in_the_listing_costs_a_bounded_number_of_steps(kernel_dump):
    inner = loop(1 << 30, "%60 = sst [smem:[#allocation9 + %s13_s1]] %s13_s1", region=6, first=11)
    prediction = predict(kernel_dump(*loop(1 << 30, *inner)), max_steps=20_000)
    assert prediction.uncertain
    assert prediction.counters["replay_steps"] <= 20_000 + 10


# ---- constants


def test_constants_have_a_source_and_can_be_replaced(kernel_dump):
    dump = kernel_dump(*[""] * 10)
    slower = dataclasses.replace(K, clock_hz=K.clock_hz / 2)
    launch = K.launch_seconds * 1e3
    usual = predict(dump)
    assert predict(dump, constants=slower).ms - launch == pytest.approx(2 * (usual.ms - launch))
    assert K.clock_hz == 1.75e9
    assert K.hbm_bytes_per_cycle * K.clock_hz == pytest.approx(1.4e12)


def test_random_operands_lower_the_clock(kernel_dump):
    dump = kernel_dump(*[""] * 10)
    launch = K.launch_seconds * 1e3
    zeros, usual = predict(dump, random_data=False), predict(dump)
    assert usual.cycles == zeros.cycles
    assert zeros.ms - launch == pytest.approx(zeros.cycles / K.clock_hz * 1e3)
    assert usual.ms - launch == pytest.approx(K.random_data_slowdown * (zeros.ms - launch))
