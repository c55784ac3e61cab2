"""`jaxbench report` and `jaxbench eval --html`."""

import csv
import json
import sys

import pytest
from click.testing import CliRunner
from made_up_runs import TEMPLATE, packs, typical, verdict, write

from jaxbench_env import Status, api
from jaxbench_env.cli import main


def invoke(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture
def folder(tmp_path):
    return typical(tmp_path / "x", ("gemm", "rms_norm"), 6, 0.6)


def test_it_prints_markdown_or_json(folder):
    done = invoke("report", folder)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("# Report\n") and "(published)" in done.stdout
    summary = json.loads(invoke("report", folder, "--json").stdout)
    assert summary["facts"]["target"] == "v6e" and summary["rows"][0]["samples"] == 12


def test_it_writes_files(folder, tmp_path):
    pytest.importorskip("matplotlib")
    done = invoke("report", folder, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {str(tmp_path / "out" / name) for name in names} == {*done.stdout.split()}
    assert {"report.md", "report.html", "progress.png", "workloads.csv"} <= names
    rows = list(csv.reader((tmp_path / "out" / "overview.csv").open()))
    assert len({len(row) for row in rows}) == 1 and rows[1][0] == "iterative, made-up-1"
    for name in (name for name in names if name.endswith(".png")):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_so_and_writes_the_rest(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = invoke("report", folder, "--out", tmp_path / "out")
    assert done.exit_code == 0 and "pip install 'jaxbench-env[plots]'" in done.stderr
    assert ".png" not in done.stdout and "![" not in (tmp_path / "out" / "report.md").read_text()


def test_a_torn_last_line_is_passed_over(folder):
    with (folder / "candidates.jsonl").open("a") as file:
        file.write('{"workload": "ge')
    done = invoke("report", folder, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["rows"][0]["samples"] == 12
    assert "x: candidates.jsonl ends in an unfinished line" in done.stderr


def test_what_is_no_run_is_an_error(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "run.json").write_text('{"schema": 1, "lr": 0.1}')
    write(tmp_path / "young", [])
    (folder / "candidates.jsonl").write_text("{]\n")
    for name, said in (
        ("empty", "there is no run.json"),
        ("nowhere", "there is no run.json"),
        ("foreign", "run.json lacks policy"),
        ("young", "no verdicts yet in young"),
        ("x", "line 1 is damaged"),
    ):
        done = invoke("report", tmp_path / name)
        assert done.exit_code == 2 and said in done.stderr, (name, done.output)


def test_what_does_not_compare_is_an_error(folder, tmp_path):
    typical(tmp_path / "made", ("gemm",), 2, 1.0, proposer=TEMPLATE)
    done = invoke("report", folder, tmp_path / "made")
    assert done.exit_code == 2 and "made is synthetic" in done.stderr


def test_runs_of_one_name_are_told_apart(tmp_path):
    for seed in (0, 1):
        typical(tmp_path / str(seed) / "x", ("gemm",), 3, 0.5, seed=seed)
    paths = [tmp_path / "0" / "x", tmp_path / "1" / "x", tmp_path / "1" / ".." / "0" / "x"]
    summary = json.loads(invoke("report", *paths, "--json").stdout)
    assert summary["rows"][0]["runs"] == [str(path) for path in paths[:2]]


def test_eval_writes_a_page(tmp_path, monkeypatch):
    text = "def workload(a, b):\n    return a @ b\n"
    (tmp_path / "kernel.py").write_text(text)
    result = verdict(Status.NO_KERNEL, None, "gemm", text, line=2)
    monkeypatch.setattr(api, "evaluate", lambda *a, **k: result)
    page = tmp_path / "page.html"
    done = invoke("eval", "gemm", tmp_path / "kernel.py", "--html", page)
    assert done.exit_code == 1 and "Status: no_kernel" in done.stdout
    index, data = packs(page.read_bytes())
    assert index["workloads"][0]["id"] == "gemm"
    assert [*data["pack0"]["sources"].values()] == [text]
    nowhere = invoke("eval", "gemm", tmp_path / "kernel.py", "--html", tmp_path / "no" / "p.html")
    assert nowhere.exit_code == 2 and "cannot write" in nowhere.stderr
