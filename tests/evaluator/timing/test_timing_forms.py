"""What another libtpu might write is never a silent wrong number.

Real listings are changed in one place. The result must be the same, uncertain, or an error.
"""

import re
import shutil

import pytest
from timing_listings import listing, loop

from jaxbench_env.evaluator.timing import TimingError, predict

COMPILER = "libtpu 9.8.7"

#: A change of text by class of line or operand: what is replaced, and by what.
MUTATIONS = {
    # but the last, which nothing follows that would tell
    "bundle deleted": (r"(?m)^ *(?:0x)?[0-9a-f]+ .{0,8}: .*\{.*\n(?= *0x)", ""),
    "address": (r"(?m)^( *0x[0-9a-f]+)", r"\g<1>0"),
    "header": (r"(?m)^( *(?:0x)?[0-9a-f]+ .{0,8}): ", r"\1| "),
    "opening brace": (r"(?m)^( *0x[0-9a-f]+ .{0,8}: [> ]*)\{", r"\1["),
    "closing brace": (r" \}(?= |\n)", " "),
    "label deleted": (r"(?m)(0x[0-9a-f]+) (?:LB|PF):", r"\1   :"),
    "label renamed": (r"(?m)(0x[0-9a-f]+) (?:LB|PF):", r"\1 XX:"),
    "label swapped": (r"(?m)(0x[0-9a-f]+) LB:", r"\1 PF:"),
    "branch renamed": (r"sbr\.rel", "sbr.abs"),
    "branch replaced": (r"sbr\.rel", "sjump"),
    "branch deleted": (r"%\d+ = sbr\.rel[^;}]*", ""),
    "branch target renamed": (r"target = \$region", "to $region"),
    "branch target garbled": (r"target = \$region", "target = $label"),
    "branch target deleted": (r" target = \$region\d+", ""),
    "branch target elsewhere": (r"target = \$region\d+", "target = $region987654"),
    "branch condition garbled": (r"(sbr\.rel) \(!?%p\d+_p\d+\)", r"\1 (%p1 & %p2)"),
    "branch condition of another kind": (r"(sbr\.rel) \(!?%p(\d+)_p\d+\)", r"\1 (%q\2_q1)"),
    "region mark renamed": (r"Start region (\d+)", r"Begin region \1"),
    "empty region mark renamed": (r"Start/End empty region", "Empty region"),
    "condition of a DMA garbled": (r"(dma\.hbm_to_vmem[^;}(]*)\(!?%p[^)]*\)", r"\1(%p1 & %p2)"),
    "DMA renamed": (r"dma\.(hbm|vmem)_to", "dma2.\\1_to"),
    "DMA deleted": (r"%\d+ = dma\.hbm_to_vmem[^;}]*", ""),
    "DMA between other memories": (r"dma\.hbm_to_vmem", "dma.hbm_to_newmem"),
    "DMA size renamed": (r"size_in_granules=", "size_in_lines="),
    "DMA size deleted": (r", /\*size_in_granules=\*/[^,]+", ""),
    "DMA size garbled": (r"(/\*size_in_granules=\*/)(\d+)", r"\1<\2>"),
    "DMA size changed": (r"(/\*size_in_granules=\*/)(\d+)", r"\g<1>1\2"),
    "DMA flag renamed": (r"dst_syncflagno=", "dst_flag="),
    "DMA flag garbled": (r"(/\*dst_syncflagno=\*/)", r"\1@"),
    "DMA stride renamed": (r"steps_per_stride=", "steps_per_run="),
    "wait renamed": (r"dma\.done\.wait", "dma.wait"),
    "wait deleted": (r"%\d+ = dma\.done\.wait[^;}]*", ""),
    "wait amount garbled": (r"(dma\.done\.wait[^;}]*, )(\S+)", r"\1<\2>"),
    "take renamed": (r"vsyncadd", "vsyncsub"),
    "take garbled": (r"(vsyncadd[^;}]*, )(\S+)", r"\1<\2>"),
    "call renamed": (r"inlined_call ", "outlined_call "),
    "vector delay": (r"(?m)(0x[0-9a-f]+ .{0,8}: [> ]*\{ )", r"\1%1 = vdelay %s1_s1  ;;  "),
    "new instruction with an effect": (
        r"(?m)(0x[0-9a-f]+ .{0,8}: [> ]*\{ )",
        r"\1%1 = tensor.copy %s1_s1  ;;  ",
    ),
    "slots parted otherwise": ("  ;;  ", "  ||  "),
    "addition renamed": (r"sadd\.s32", "sinc.s32"),
    "comparison renamed": (r"scmp\.(\w\w)", r"scomp.\1"),
    "phi renamed": (r"sphi", "smerge"),
    "text after a bundle": (r"(?m)(0x[0-9a-f]+ .*\})$", r"\1 stall 100"),
    "line between bundles": (r"(?m)^( *0x[0-9a-f]+ .*\})$", r"\1\n.wait 100"),
}


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize(
    "sample",
    [
        "jax_0_10_2/manual",
        pytest.param("jax_0_12_0/emit", marks=pytest.mark.slow),
        pytest.param("jax_0_9_2/rms_norm", marks=pytest.mark.slow),
    ],
)
def test_a_listing_changed_in_one_place_is_the_same_or_uncertain(
    real_dumps, tmp_path, sample, name
):
    pattern, replacement = MUTATIONS[name]
    expected = predict(real_dumps[sample])
    assert not expected.uncertain, expected.reasons
    dump = tmp_path / "dump"
    shutil.copytree(real_dumps[sample], dump)
    changed = 0
    for path in sorted(dump.glob("*final_bundles.txt")):
        if "<late" in path.name:
            continue  # programs of the host, which are not replayed
        text = path.read_text()
        places = list(re.finditer(pattern, text))
        for place in {0, len(places) // 2, len(places) - 1}:
            if not 0 <= place < len(places):
                continue
            match = places[place]
            mutant = text[: match.start()] + match.expand(replacement) + text[match.end() :]
            path.write_text(mutant)
            changed += 1
            try:
                prediction = predict(dump, compiler=COMPILER, max_steps=20_000)
            except TimingError:
                continue
            same = prediction.cycles == expected.cycles
            assert same or prediction.uncertain, (path.name, match.group())
        path.write_text(text)
    if not changed:
        pytest.skip("nothing of this kind in the sample")


@pytest.mark.parametrize(
    "bundle",
    [
        "%5 = sjump.rel target = $region5",
        "%5 = sbr.abs target = $region5",
        "%5 = sbr.rel %s1_s1, target = $region5",
        "%5 = dma.hbm_to_flash /*size_in_granules=*/8",
        "%5 = dma.hbm_to_vmem /*size_in_granules=*/8, /*fold=*/2",
        "%5 = tensor.start %s1_s1",
        "%5 = vdelay %s1_s1",
        "%5 = sst [smem:[#allocation4]] (%p1 | %p2), 5",
        "%5 = vsyncadd (%s1_s1), [#allocation4], 0",
    ],
)
def test_an_unknown_form_names_the_compiler(kernel_dump, bundle):
    prediction = predict(kernel_dump(bundle, *[""] * 4), compiler=COMPILER)
    assert prediction.uncertain
    assert any(COMPILER in reason for reason in prediction.reasons), prediction.reasons


def test_a_failing_replay_names_the_compiler(kernel_dump, monkeypatch):
    dump = kernel_dump(*loop(3))
    monkeypatch.setattr("jaxbench_env.evaluator.timing.machine.Engine.call", None)
    with pytest.raises(TimingError, match=COMPILER):
        predict(dump, compiler=COMPILER)


def test_the_regions_that_end_a_program_have_no_marks(tmp_path, kernel_dump):
    bundles = [
        "%p1_p1 = scmp.lt.s32.totalorder 1, 2",
        "%5 = sbr.rel (%p1_p1) target = $region77",
        *[""] * 4,
        *[""] * 50,
        "",
    ]
    dump = kernel_dump(*bundles)
    assert predict(dump).uncertain
    (path,) = dump.glob("*-k-*")
    text = listing(*bundles, entry="k")
    path.write_text(text.replace("0x38   :", "0x38 PF:"))
    prediction = predict(dump)
    assert not prediction.uncertain
    assert prediction.cycles == 1 + 6 + 1
