"""`jaxbench rollout`: what it takes, shows and says."""

import json

import pytest
from click.testing import CliRunner

import jaxbench_env.evaluator.service.client as client
from baselines.testing import verdict
from jaxbench_env.cli import main


class MadeUp:
    target, verify, allow_library_kernels = "v6e", "presets", False

    def __init__(self, target="v6e"):
        self.target = target

    def evaluate(self, workload, source, *, seed=None, stop=None, watch=None):
        return verdict(source, None, workload.id)


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    monkeypatch.setattr(client, "SharedEvaluator", MadeUp)


def run(*arguments):
    return CliRunner().invoke(main, ["rollout", *map(str, arguments)])


def test_a_run_ends_with_a_summary(tmp_path):
    arguments = ("--policy", "expert", "--workloads", "gemm,rms_norm,gemm", "--no-verify-best")
    done = run(*arguments, "--out", tmp_path / "x", "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["ended"] == "done" and summary["evaluations"] == 2
    assert {row["workload"] for row in summary["workloads"]} == {"gemm", "rms_norm"}
    settings = json.loads((tmp_path / "x" / "run.json").read_text())
    assert settings["policy"] == "expert" and settings["constants"] == {"library": False}
    assert settings["versions"]["jax"] and settings["protocol"] > 0
    again = run(*arguments, "--out", tmp_path / "x")
    assert again.exit_code == 0 and "geometric mean (floor 1)" in again.stdout


def test_a_limit_says_how_to_go_on(tmp_path):
    done = run(
        *("--policy", "expert", "--workloads", "gemm,rms_norm", "--no-verify-best"),
        *("--out", tmp_path, "--max-evaluations", 1, "--workers", 1),
    )
    assert done.exit_code == 0
    assert "Not done (max-evaluations). The same command resumes the run" in done.stdout


def test_a_dry_run_shows_prompts_and_leaves_nothing(tmp_path):
    done = run("--policy", "best_of_n", "--workloads", "gemm", "--dry-run", "--out", tmp_path / "x")
    assert done.exit_code == 0 and done.stdout.count("===== gemm: sample 0 (write)") == 1
    assert "Write the kernel." in done.stdout and not (tmp_path / "x").exists()
    rows = json.loads(
        run("--policy", "iterative", "--workloads", "gemm", "--dry-run", "--json").stdout
    )
    assert [row["label"] for row in rows] == ["chain 0, turn 0"]
    assert [message["role"] for message in rows[0]["messages"]] == ["system", "user"]


def test_a_dry_run_of_autocomp_shows_plan_and_implementation():
    done = run(
        *("--policy", "autocomp", "--set", "context_bytes=0", "--workloads", "gemm"),
        *("--dry-run", "--json"),
    )
    kinds = [row["kind"] for row in json.loads(done.stdout)]
    assert set(kinds) == {"plan", "implement"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "autocmp"], "did you mean 'autocomp'"),
        (["--policy", "iterative", "--workloads", "gem"], "gemm"),
        (["--policy", "iterative", "--workloads", ","], "no workloads"),
        (["--policy", "iterative", "--set", "turn=3"], "sets no constant of iterative"),
        (["--policy", "iterative", "--set", "turns=few"], "turns is a whole number such as 8"),
        (["--policy", "autocomp", "--set", "repair=yes"], "repair is true or false"),
        (["--policy", "autocomp", "--set", "context_bytes=-5"], "at least 0, not '-5'"),
        (["--policy", "autocomp", "--set", "temperature=nan"], "at least 0, not 'nan'"),
        (
            ["--policy", "autocomp", "--set", "codes=0", "--workloads", "gemm", "--dry-run"],
            "codes is at least 1",
        ),
        (["--policy", "expert", "--out", "/dev/null/x"], "Not a directory: '/dev/null/x'"),
        (
            "--policy expert --set library=true --evaluator recorded --out x".split(),
            "no recorded verdicts on library kernels",
        ),
        (["--policy", "iterative"], "--out is missing"),
        (["--policy", "iterative", "--out", "x"], "needs --proposer"),
        (["--policy", "iterative", "--out", "x", "--proposer", "openai"], "needs --model"),
        (["--policy", "iterative", "--out", "x", "--proposer", "replay"], "needs --replay-of"),
        (
            [
                "--policy",
                "iterative",
                "--out",
                "x",
                "--proposer",
                "openai",
                "--model",
                "m",
                "--extra",
                "[]",
            ],
            "--extra is a JSON object",
        ),
        (
            [
                "--policy",
                "iterative",
                "--out",
                "x",
                "--proposer",
                "openai",
                "--model",
                "m",
                "--max-cost",
                "3",
            ],
            "--max-cost needs --price-in and --price-out",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_explained(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2 and said in done.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_passes_over_what_a_policy_has_nothing_for():
    done = run(
        "--policy", "expert", "--set", "library=true", "--workloads", "rms_norm", "--dry-run"
    )
    assert done.exit_code == 0 and "asks for nothing" in done.stdout


def test_a_text_without_a_recorded_verdict_ends_the_run_with_words(tmp_path):
    done = run(
        *("--policy", "best_of_n", "--proposer", "template", "--workloads", "rms_norm"),
        *("--evaluator", "recorded", "--budget", 1, "--out", tmp_path),
    )
    assert done.exit_code == 3 and "no recorded verdict for this text" in done.stdout
    assert "Traceback" not in done.output


def test_recorded_verdicts_need_no_compiler(tmp_path):
    arguments = ("--policy", "template_search", "--workloads", "rms_norm", "--out", tmp_path)
    done = run(*arguments, "--evaluator", "recorded", "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["workloads"]
    assert row["done"] and row["correct"] == row["evaluations"] >= 3 and row["best_speedup"] > 1
    settings = json.loads((tmp_path / "run.json").read_text())
    assert settings["evaluator"] == "recorded" and settings["versions"] is None
    other = run(*arguments)
    assert other.exit_code == 2 and 'evaluator is "predicted" and was "recorded"' in other.stderr
