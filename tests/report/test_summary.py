"""What a report says of made-up runs, and which records it refuses."""

import dataclasses
import json

import pytest
from made_up_runs import MODEL, TEMPLATE, run, verdict, write

from jaxbench_env import Status
from jaxbench_env.report import ReportError, markdown, summarise, tables, to_csv
from jaxbench_env.report.references import published
from jaxbench_env.report.summary import OUTCOMES


def right(name, sample, speedup):
    text = f"{name} {sample}"
    status = Status.OK if speedup > 1 else Status.SLOWER
    return name, sample, text, verdict(status, speedup, name, text)


def wrong(name, sample, status=Status.INCORRECT, **fields):
    text = f"{name} {sample}"
    return name, sample, text, verdict(status, None, name, text, **fields)


def only_row(*samples, finals=(), tmp_path=None, **options):
    (row,) = summarise([run(write(tmp_path / "x", samples, finals, **options))])["rows"]
    return row


def test_the_numbers_of_a_run(tmp_path):
    row = only_row(
        *(right("gemm", 0, 0.5), right("gemm", 1, 4.0), wrong("gemm", 2)),
        *(right("rms_norm", 0, 0.8), wrong("rms_norm", 1), wrong("rms_norm", 2)),
        wrong("swiglu_mlp", 0, Status.REJECTED),
        names=("gemm", "rms_norm", "swiglu_mlp", "sparse_moe"),
        tmp_path=tmp_path,
    )
    assert row["samples"] == 7 and row["per_sample_correctness"] == pytest.approx(3 / 7)
    assert row["solved"] == 2 and row["workloads"] == 4
    assert row["geomean"] == pytest.approx(4 ** (1 / 4))
    assert row["mean"] == pytest.approx((4 + 0.8 + 1 + 1) / 4)
    assert row["fast_p"] == {"0": 0.5, "1": 0.25, "1.5": 0.25, "2": 0.25, "4": 0.0}
    # The fewest samples that a workload has is 1; one without samples is failed by any.
    assert row["pass_at_k"] == {"1": pytest.approx((2 / 3 + 1 / 3 + 0 + 0) / 4)}
    assert row["outcomes"]["faster"] == 1 and row["outcomes"]["correct"] == 2
    assert row["outcomes"]["numerics"] == 3 and row["api_misuse"] == pytest.approx(1 / 7)
    assert sum(row["outcomes"].values()) == 7 and tuple(row["outcomes"]) == OUTCOMES
    assert row["speedups"]["gemm"] == 4.0 and row["speedups"]["sparse_moe"] is None
    assert row["progress"]["solved"] == [0.5, 0.5, 0.5]
    assert row["progress"]["median_best"] == [0.25, 0.4, 0.4]


def test_what_fails_at_the_published_size_is_not_the_best(tmp_path):
    samples = [right("gemm", n, 5.0 - n) for n in range(4)]

    def best(finals, folder):
        return run(write(tmp_path / folder, samples, finals)).best("gemm")

    bad = [("gemm", s[2], verdict(Status.INCORRECT, None, "gemm", s[2])) for s in samples]
    good = ("gemm", samples[1][2], verdict(Status.OK, 4.5, "gemm", samples[1][2]))
    assert best([], "none").speedup == 5.0 and not best([], "nothing").verified
    second = best([bad[0], good], "one")
    assert second.sample.sample == 1 and second.speedup == 4.5 and second.verified
    assert best(bad[:3], "three") is None  # as in a rollout, which gives up after three


def test_seeds_are_one_row_and_a_workload_has_their_median(tmp_path):
    runs = []
    for seed, speedup in enumerate((3.0, None, 2.0)):
        one = wrong("gemm", 0) if speedup is None else right("gemm", 0, speedup)
        runs.append(run(write(tmp_path / str(seed), [one], seed=seed)))
    summary = summarise(runs)
    (row,) = summary["rows"]
    assert row["seeds"] == [0, 1, 2] and row["speedups"] == {"gemm": 2.0}
    assert row["geomean"] == pytest.approx(2.0)
    assert row["geomean_range"] == pytest.approx([1.0, 3.0])
    assert "3 seeds" in markdown(summary)
    assert summarise(runs[::-1])["rows"] == summary["rows"]


def test_a_run_in_parts_counts_as_one(tmp_path):
    gemm, norm = [right("gemm", 0, 4.0), wrong("gemm", 1)], [wrong("rms_norm", 0)]
    whole = run(write(tmp_path / "whole", gemm + norm, names=("gemm", "rms_norm")))
    parts = [run(write(tmp_path / s[0][0], s, names=(s[0][0],))) for s in (gemm, norm)]
    (one,), (two,) = summarise([whole])["rows"], summarise(parts)["rows"]
    assert one.pop("runs") == ["whole"] and two.pop("runs") == ["gemm", "rms_norm"]
    assert one == two and one["geomean"] == pytest.approx(2.0)


def test_a_seed_that_lacks_a_workload_says_nothing_about_it(tmp_path):
    both = [right("gemm", 0, 4.0), right("rms_norm", 0, 2.0)]
    runs = [
        run(write(tmp_path / "0", both, names=("gemm", "rms_norm"))),
        run(write(tmp_path / "1", both[:1], names=("gemm",), seed=1)),
    ]
    assert summarise(runs)["rows"][0]["speedups"] == {"gemm": 4.0, "rms_norm": 2.0}


def test_rows_of_one_name_say_what_they_differ_in(tmp_path):
    runs = [
        run(write(tmp_path / str(beam), [right("gemm", 0, 2.0)], constants={"beam": beam, "c": 1}))
        for beam in (3, 5)
    ]
    labels = [row["label"] for row in summarise(runs)["rows"]]
    assert labels == ["iterative, made-up-1 (beam=3)", "iterative, made-up-1 (beam=5)"]


def changed(sample, **fields):
    *start, result = sample
    origin = dataclasses.replace(result.provenance, **fields)
    return *start, dataclasses.replace(result, provenance=origin)


def measured(sample):
    *start, result = sample
    times = dataclasses.replace(result.times, source="measured")
    return *start, dataclasses.replace(result, times=times)


@pytest.mark.parametrize(
    ("what", "other", "options"),
    [
        ("protocols", changed(right("gemm", 0, 2.0), protocol=1), {}),
        ("targets", changed(right("gemm", 0, 2.0), target="v5e"), {}),
        ("versions", changed(right("gemm", 0, 2.0), versions={"jax": "0.12.0"}), {}),
        ("time sources", measured(right("gemm", 0, 2.0)), {}),
        ("evaluators", right("gemm", 0, 2.0), {"evaluator": "recorded"}),
        ("versions of workload gemm", changed(right("gemm", 0, 2.0), workload_version=2), {}),
    ],
)
def test_what_does_not_compare_is_refused(tmp_path, what, other, options):
    one = run(write(tmp_path / "one", [right("gemm", 0, 2.0)]))
    two = run(write(tmp_path / "two", [other], **options))
    with pytest.raises(ReportError, match=f"different {what} .* in one.* in two.*Report them apa"):
        summarise([one, two])


def test_one_run_that_was_resumed_by_another_compiler_is_refused(tmp_path):
    samples = [right("gemm", 0, 2.0), changed(right("gemm", 1, 2.0), versions={"jax": "0.12.0"})]
    with pytest.raises(ReportError, match="different versions"):
        summarise([run(write(tmp_path / "x", samples))])


REPLAYED = {"proposer": "replay", "of": TEMPLATE}


@pytest.mark.parametrize(
    "synthetic", [{"proposer": TEMPLATE}, {"proposer": REPLAYED}, {"proposer": None}]
)
def test_synthetic_rows_never_stand_beside_a_models(tmp_path, synthetic):
    model = run(write(tmp_path / "model", [right("gemm", 0, 2.0)]))
    policy = "template_search" if synthetic["proposer"] is None else "autocomp"
    made = run(write(tmp_path / "made", [right("gemm", 0, 2.0)], policy=policy, **synthetic))
    with pytest.raises(ReportError, match="made is synthetic"):
        summarise([model, made])
    summary = summarise([made])
    text = markdown(summary) + "".join(map(to_csv, tables(summary)))
    assert "SYNTHETIC" in text and "(synthetic)" in text
    assert published()["model"] not in text
    assert "autocomp, published" not in text and "expert, published" in text


def test_kernels_by_people_stand_beside_both(tmp_path):
    sample = [right("gemm", 0, 2.0)]
    expert = run(write(tmp_path / "expert", sample, policy="expert", proposer=None, budget=144))
    for name, proposer in (("model", MODEL), ("made", TEMPLATE)):
        other = run(write(tmp_path / name, sample, proposer=proposer, budget=1))
        summary = summarise([expert, other])
        assert len(summary["rows"]) == 2
        assert not any("fewer" in note for note in summary["notes"])


def test_published_rows_stand_beside_a_models_and_are_marked(tmp_path):
    summary = summarise([run(write(tmp_path / "x", [right("gemm", 0, 2.0)], budget=3))])
    overview = tables(summary)[0]
    marked = [row for row in overview.rows if row[0].text.endswith("(published)")]
    assert len(marked) == 4
    # Every speedup has its baseline's compiler beside it.
    assert all(row[-1].text for row in overview.rows)
    workloads = tables(summary)[3]
    assert all("libtpu" in c or "compiler not stated" in c for c in workloads.columns[1:])
    assert any("fewer than 3 samples" in note for note in summary["notes"])
    assert any("Published rows are over 50" in note for note in summary["notes"])


def test_hostile_names_do_not_break_the_tables(tmp_path):
    proposer = {**MODEL, "model": "a|b<script>\n`x`"}
    summary = summarise([run(write(tmp_path / "x", [right("gemm", 0, 2.0)], proposer=proposer))])
    line = next(s for s in markdown(summary).splitlines() if s.startswith("| iterative, a"))
    assert "a\\|b\\<script\\> \\`x\\`" in line


def test_what_is_no_record_is_said(tmp_path):
    folder = write(tmp_path / "x", [right("gemm", 0, 2.0)])
    lines = folder / "candidates.jsonl"
    row = json.loads(lines.read_text())
    for damage in ({"result": {"status": "great"}}, {"result": 3}, {"workload": "rms_norm"}):
        lines.write_text(json.dumps(row | damage) + "\n")
        with pytest.raises(ReportError, match="x: "):
            run(folder)
    lines.write_text("{}\n")
    with pytest.raises(ReportError, match="docs/records.md"):
        run(folder)


def test_the_published_tables_agree_with_themselves():
    import reward

    known = published()
    columns = {"expert": 2.08, "autocomp": 1.60, "iterative_context": 1.34, "iterative": 1.00}
    for who, stated in columns.items():
        values = [of.get(who) for of in known["speedups"].values()]
        assert reward.geomean(values) == pytest.approx(stated, abs=0.01)
