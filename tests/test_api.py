import pytest

import workloads
from jaxbench_env import evaluate, evaluate_many
from jaxbench_env.evaluator import baseline as baselines
from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.evaluator import Evaluator


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
    first = Evaluator().baseline(workload)
    monkeypatch.setattr(baselines, "_known", {})
    monkeypatch.setattr(baselines, "build", None)  # a second compile would raise
    assert Evaluator().baseline(workload) == first
    assert first.ms > workload.roofline_ms()


def test_a_damaged_cache_file_is_made_again(monkeypatch):
    folder = store.cache_directory() / "baselines"
    store.save("baselines", "damaged", {"ms": 1})
    (folder / "damaged.json").write_text('{"ms": ')
    assert store.load("baselines", "damaged") is None
    assert not list(folder.glob("*.tmp"))
