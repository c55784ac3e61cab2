"""What differs between the chips: constants, matrix units, cores."""

import json
from importlib import resources

import pytest

import workloads
from jaxbench_env.evaluator import timing
from jaxbench_env.evaluator.timing import Constants, predict
from jaxbench_env.evaluator.timing.constants import MEASURED

OTHERS = [target for target in workloads.TARGETS if target != MEASURED]
every_target = pytest.mark.parametrize("target", workloads.TARGETS)


def table():
    return json.loads(resources.files(timing).joinpath("constants.json").read_text("utf-8"))


@every_target
def test_clock_and_matrix_units_give_the_peak_of_the_chip(target):
    k, chip = Constants.load(target), workloads.chip(target)
    rows_per_cycle = 16 / k.matmul_cycles
    adds = k.cores * k.matrix_units * rows_per_cycle * chip.mxu_size**2
    assert 2 * adds * k.clock_hz == pytest.approx(chip.bf16_flops_per_second, rel=0.003)
    assert (k.matrix_units, k.cores) == (chip.mxus, chip.cores)


@every_target
def test_the_same_share_of_the_specified_bandwidth_is_reached(target):
    k, chip = Constants.load(target), workloads.chip(target)
    reached = k.cores * k.hbm_bytes_per_cycle * k.clock_hz / chip.hbm_bytes_per_second
    measured = Constants.load(MEASURED)
    share = measured.hbm_bytes_per_cycle * measured.clock_hz / 1.64e12
    assert reached == pytest.approx(share)


def test_latencies_carry_over_in_seconds_unless_they_were_measured():
    v6e, v5p, v5e = (Constants.load(target) for target in ("v6e", "v5p", "v5e"))
    assert v5p.dma_latency / v5p.clock_hz == pytest.approx(v6e.dma_latency / v6e.clock_hz)
    assert v5e.dma_latency / v5e.clock_hz == pytest.approx(530e-9, rel=0.01)


@pytest.mark.parametrize("target", OTHERS)
def test_every_constant_of_a_target_has_a_source_and_a_place(target):
    entries = table()["targets"][target]
    assert all(entry["source"].strip() for entry in entries.values())
    assert entries.keys() <= table().keys()


def test_a_target_without_constants_is_refused():
    with pytest.raises(ValueError, match="no constants for target 'v99'; .* v6e, v5e, v5p"):
        Constants.load("v99")


# ---- matrix units

MATMULS = [f"vmatmul.bf16.gmra.mxu{unit} %v1_v1" for unit in range(4)]


def cycles(dump, target):
    return predict(dump, constants=Constants.load(target)).cycles


@pytest.mark.parametrize("target", OTHERS)
def test_multiplications_that_follow_too_closely_take_their_time(kernel_dump, target):
    usual = cycles(kernel_dump(*[""] * 64), target)
    # on four units, one bundle in four starts one on each: 16 in 64 bundles, 16 cycles each
    dense = cycles(kernel_dump(*[" ;; ".join(MATMULS), "", "", ""] * 16), target)
    sparse = cycles(kernel_dump(*[" ;; ".join(MATMULS), *[""] * 15] * 4), target)
    assert sparse == usual
    assert dense == usual + 16 * 16 - 64


def test_on_a_v6e_the_schedule_says_it_all(kernel_dump):
    dense = kernel_dump(*[" ;; ".join(MATMULS), "", "", ""] * 16)
    assert cycles(dense, "v6e") == cycles(kernel_dump(*[""] * 64), "v6e")


# ---- two cores

CORE = "%s1_s1 = sld [smem:[#allocation0]] /* core id */"
EXTRA = 50


def work_for(kernel_dump, guard, *more, core=CORE):
    """A kernel of which one core skips `EXTRA` bundles."""
    return kernel_dump(
        core,
        "%p2_p0 = scmp.ne.s32.totalorder %s1_s1, 0",
        *more,
        f"%3 = sbr.rel ({guard}) target = $region7",
        *[""] * (4 + EXTRA),
        ("", "Start region 7"),
    )


@pytest.mark.parametrize("name", ["core id", "megacore core id :: core id"])
@pytest.mark.parametrize("guard", ["%p2_p0", "!%p2_p0"])
def test_two_cores_take_as_long_as_the_slower_one(kernel_dump, guard, name):
    constants = Constants.load("v5p")
    dump = work_for(kernel_dump, guard, core=CORE.replace("core id", name))
    found = predict(dump, constants=constants)
    everything = predict(kernel_dump(*[""] * (8 + EXTRA)), constants=constants)
    assert not found.uncertain
    assert found.cycles == everything.cycles


def test_on_one_core_its_number_is_not_known(kernel_dump):
    dump = kernel_dump(CORE, "%4 = vsyncadd [#allocation1], %s1_s1")
    assert predict(dump, constants=Constants.load("v5e")).uncertain
    assert not predict(work_for(kernel_dump, "%p2_p0"), constants=Constants.load("v5p")).uncertain


@pytest.mark.parametrize("guard, sure", [("%p5_p1", True), ("!%p5_p1", False)])
def test_what_only_a_halting_core_stores_is_no_doubt(kernel_dump, guard, sure):
    check = (
        "%5 = vpop.ccrf",
        "%s6_s2 = spop %5",
        "%p5_p1 = scmp.ne.s32.totalorder %s6_s2, 77",
        f"%7 = sst [smem:[#allocation2]] ({guard}), %s6_s2",
        "%8 = shalt.err (%p5_p1) /* scheckeq: BarrierMegacore cookie: 77 */",
    )
    found = predict(work_for(kernel_dump, "%p2_p0", *check), constants=Constants.load("v5p"))
    assert found.uncertain != sure


# ---- divisions that give two results


@pytest.mark.parametrize("pops, sure", [(2, True), (3, False)])
def test_a_division_gives_its_quotient_first_and_then_its_remainder(kernel_dump, pops, sure):
    dump = kernel_dump(
        "%s1_s1 = smov 17",
        "%2 = sdivrem.u32 %s1_s1, 5 /* kDivAndRem */",
        *[f"%s{3 + i}_s{3 + i} = spop.drf %2" for i in range(pops)],
        "%9 = vsyncadd [#allocation1], %s3_s3",
        "%10 = vsyncadd [#allocation2], %s4_s4",
        "%11 = dma.done.wait [#allocation1], 3",
        "%12 = dma.done.wait [#allocation2], 2",
        "%13 = vsyncadd [#allocation1], 4294967293",
        "%14 = vsyncadd [#allocation2], 4294967294",
    )
    assert predict(dump).uncertain != sure
