"""Each sentence about a profile has a profile that triggers it, and nothing else."""

import dataclasses

import pytest

from jaxbench_env.advice import MAX_SENTENCES, advice
from jaxbench_env.evaluator.result import EvalResult, Stage, Status, Times
from jaxbench_env.evaluator.timing import Loop
from jaxbench_env.feedback import feedback

#: A kernel about which there is nothing to say: everything is in use and nothing is full.
COUNTERS = {
    "bundles": 7.9e5,
    "dma_count": 320.0,
    "dma_wait_share": 0.04,
    "hbm_bytes": 541e6,
    "hbm_bytes_min": 541e6,
    "hbm_bandwidth_share": 0.7,
    "kernel_share": 1.0,
    "steps": 66.0,
    "bundles_per_step": 11_921.0,
}
SLOTS = {"mxu": 0.71, "vpu": 0.58, "xlu": 0.13, "eup": 0.19, "load": 0.38, "store": 0.42}
LOOP = Loop(
    program="kernel.1",
    share=0.93,
    iterations=256,
    bundles=2968.0,
    wait_share=0.0,
    slots=SLOTS,
    spills=4474.0,
    spill_share=0.76,
    bound="mxu",
    lines=(55, 97, 111),
    unit_lines={"mxu": 97, "vpu": 55, "store": 117, "load": 92},
)
RESULT = EvalResult(
    status=Status.OK,
    stage=Stage.CORRECT,
    speedup=2.0,
    times=Times(candidate_ms=0.5, baseline_ms=1.0, roofline_ms=0.3),
    counters=COUNTERS,
    loop=LOOP,
    programs={"kernel.1": 0.5, "TLP": 0.0001},
    kernels=("kernel.1",),
)


def result(loop=None, slots=None, programs=None, **counters):
    changed = {**LOOP.slots, **(slots or {})}
    return dataclasses.replace(
        RESULT,
        counters={**COUNTERS, **counters},
        loop=dataclasses.replace(LOOP, **{"slots": changed, **(loop or {})}),
        programs=programs or RESULT.programs,
    )


FULL_OF_SPILLS = result(loop={"bound": "store", "lines": (26,)}, slots={"store": 0.9, "mxu": 0.31})
CASES = {
    "outside": (
        result(kernel_share=0.69, programs={"kernel.1": 0.35, "copy.3": 0.12, "TLP": 0.03}),
        "31% of the time is spent outside the kernel, most of it in copy.3 (0.120 ms)",
    ),
    "traffic": (
        result(dma_wait_share=0.3, hbm_bytes=2048e6),
        "2,048 MB move through HBM where 541 MB would do if every array moved once, and 30% of",
    ),
    "latency": (
        result(dma_wait_share=0.62, hbm_bandwidth_share=0.31, hbm_bytes=17e6, hbm_bytes_min=17e6),
        "62% of the time waits for HBM, which runs at 31% of its bandwidth: transfers of 53 kB on",
    ),
    "memory": (
        result(
            dma_wait_share=0.6,
            hbm_bandwidth_share=0.79,
            loop={"bound": "hbm", "wait_share": 0.75},
        ),
        "HBM is the limit: it moves 541 MB, little more than the least, at 79%",
    ),
    "spills": (
        FULL_OF_SPILLS,
        "76% of the vector loads and stores of the hottest loop (line 26) move spilled registers, "
        "4,474 in an iteration, and its vector store slots are 90% full; the matrix units are busy "
        "for 31% of it (line 97)",
    ),
    "vector": (
        result(loop={"bound": "vpu"}, slots={"vpu": 0.88, "mxu": 0.0}),
        "The vector ALUs bound the hottest loop (line 55): 88% of their slots are filled; compute",
    ),
    "stores": (
        result(loop={"bound": "store", "spill_share": 0.1}, slots={"store": 0.9, "mxu": 0.31}),
        "The vector store slots bound the hottest loop (line 117): 90% of their slots are filled; "
        "the matrix units are busy for 31% of it (line 97); keep what is accumulated",
    ),
    "matrix": (
        result(slots={"mxu": 0.99}),
        "The matrix units are the limit: they are busy for 99% of the hottest loop (line 97)",
    ),
    "waiting": (
        result(
            loop={"bound": "latency", "lines": (9, 12)},
            slots={"mxu": 0.0, "vpu": 0.24, "load": 0.1, "store": 0.1},
        ),
        "No unit is busy for half of the hottest loop (lines 9 and 12), the vector ALUs most with "
        "24%: its operations wait for one another",
    ),
    "steps": (
        result(steps=4098.0, bundles_per_step=210.0),
        "Each of 4,098 grid steps issues only 210 bundles",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_profile_earns_its_sentence_and_no_other(case):
    profile, sentence = CASES[case]
    found = advice(profile)
    assert len(found) == 1 and found[0].startswith(sentence)
    assert found[0] in feedback(profile, "").splitlines()


def test_a_profile_without_a_flaw_earns_nothing():
    assert advice(RESULT) == []


@pytest.mark.parametrize(
    "silent",
    [
        {"status": Status.INCORRECT, "speedup": None},
        {"times": dataclasses.replace(RESULT.times, uncertain=True)},
        {"counters": {}},
    ],
)
def test_nothing_is_said_of_a_wrong_kernel_or_a_doubtful_time(silent):
    assert advice(FULL_OF_SPILLS)
    assert advice(dataclasses.replace(FULL_OF_SPILLS, **silent)) == []


def test_at_most_three_sentences_the_weightiest_first():
    everything = result(
        kernel_share=0.2,
        dma_wait_share=0.5,
        hbm_bytes=5e9,
        hbm_bandwidth_share=0.4,
        steps=5000.0,
        bundles_per_step=100.0,
        loop={"bound": "vpu", "share": 0.4},
        slots={"vpu": 0.9},
    )
    found = advice(everything)
    assert len(found) == MAX_SENTENCES
    assert found[0].startswith("80% of the time is spent outside the kernel")


def test_a_loop_that_takes_little_of_the_time_is_not_mentioned():
    assert (
        advice(dataclasses.replace(FULL_OF_SPILLS, loop=dataclasses.replace(LOOP, share=0.2))) == []
    )


def test_lines_that_the_compiler_does_not_tell_are_not_invented():
    loop = dataclasses.replace(FULL_OF_SPILLS.loop, lines=(), unit_lines={})
    [sentence] = advice(dataclasses.replace(FULL_OF_SPILLS, loop=loop))
    assert "line" not in sentence
