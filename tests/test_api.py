import json
from pathlib import Path

import pytest

import workloads
from jaxbench_env import evaluate, evaluate_many
from jaxbench_env.evaluator import baseline as baselines
from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.build import Versions, installed_versions
from jaxbench_env.evaluator.evaluator import PROTOCOL, Evaluator
from jaxbench_env.evaluator.timing import Constants
from workloads.data import published


def test_many_results_come_in_order(attempts, capsys):
    order = ["no_kernel", "ok", "syntax_error", "wrong_signature", "rejected"]
    results = evaluate_many([("rms_norm", attempts[name]) for name in order], seed=1)
    assert [r.status for r in results] == order
    assert capsys.readouterr().err == ""


def test_progress_is_shown_if_asked_for(attempts, capsys):
    evaluate_many([("rms_norm", attempts["rejected"])] * 2, progress=True)
    assert "2/2" in capsys.readouterr().err


def test_mistakes_of_the_caller_raise_before_anything_runs(attempts):
    with pytest.raises(workloads.UnknownWorkload):
        evaluate_many([("rms_norm", attempts["ok"]), ("no_such", "")])
    with pytest.raises(TypeError):
        evaluate_many([("rms_norm", None)])
    with pytest.raises(TypeError):
        evaluate("rms_norm", 3)


def test_a_baseline_is_compiled_once_and_kept(monkeypatch):
    workload = workloads.get("rms_norm")
    monkeypatch.setattr(baselines, "shipped", lambda versions: {})
    monkeypatch.setattr(baselines, "_known", {})
    first = Evaluator().baseline(workload)
    monkeypatch.setattr(baselines, "_known", {})
    monkeypatch.setattr(baselines, "build", None)  # a second compile would raise
    assert Evaluator().baseline(workload) == first
    monkeypatch.setattr(baselines, "_known", {})
    monkeypatch.setattr(store, "code_version", lambda: "another predictor")
    assert baselines.kept(workload, "v6e", installed_versions(), PROTOCOL) is None
    assert first.ms > workload.roofline_ms()


TABLES = sorted((Path(baselines.__file__).parent / "data").glob("*.json"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_shipped_table_is_complete_and_up_to_date(path):
    table = json.loads(path.read_text())
    assert path.name == baselines.data_file(Versions(**table["versions"]))
    assert list(table["workloads"]) == list(workloads.ids())
    for name, row in table["workloads"].items():
        workload = workloads.get(name)
        assert row["fingerprint"] == baselines.fingerprint(workload, "v6e", PROTOCOL), name
        baseline = baselines.Baseline.from_dict(row["baseline"])
        assert baseline.hbm_used >= workload.min_hbm_bytes()
        least = workload.min_hbm_bytes() / workloads.chip("v6e").hbm_bytes_per_second * 1e3
        assert baseline.ms > 0.99 * least


def test_both_supported_compilers_have_a_table():
    assert len(TABLES) == 2


def test_predictions_stay_near_the_published_times():
    """Programs of another compiler, so only the order of magnitude of all and the bulk count."""
    table = json.loads(TABLES[0].read_text())["workloads"]
    slowdown = Constants.load().random_data_slowdown  # not of those measured with zero weights
    ratios = [
        row["baseline"]["ms"]
        / published(name).baseline_ms
        / (slowdown if published(name).zero_weights else 1)
        for name, row in table.items()
        if published(name).baseline_ms and not row["baseline"]["uncertain"]
    ]
    assert len(ratios) > 35
    assert all(0.4 < ratio < 1.6 for ratio in ratios)
    assert sum(0.85 < ratio < 1.15 for ratio in ratios) > 0.8 * len(ratios)


def test_a_damaged_cache_file_is_made_again(monkeypatch):
    folder = store.cache_directory() / "baselines"
    store.save("baselines", "damaged", {"ms": 1})
    (folder / "damaged.json").write_text('{"ms": ')
    assert store.load("baselines", "damaged") is None
    assert not list(folder.glob("*.tmp"))
