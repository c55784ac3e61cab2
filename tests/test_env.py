import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import jaxbench_env
import workloads
from jaxbench_env import EvalResult, KernelEnv, Status, SuiteEnv, evaluate
from jaxbench_env.evaluator.baseline import shipped
from jaxbench_env.evaluator.build import installed_versions

ID = "JAXBench/rms_norm"


def test_every_workload_is_registered():
    for name in workloads.ids():
        for alias in workloads.get(name).names:
            assert gym.spec(f"JAXBench/{alias}").kwargs == {"workload": name}
    assert gym.make("jaxbench_env:JAXBench/mamba2_scan").unwrapped.workload.id == "mamba2_scan"


@pytest.mark.parametrize("name", workloads.ids())
def test_every_workload_resets_from_what_ships(name):
    if not shipped(installed_versions()):
        pytest.skip("no baselines ship for this compiler: 50 compiles would follow")
    env = gym.make(f"JAXBench/{name}")
    observation, info = env.reset(seed=0)
    assert info["workload"] == name and observation in env.observation_space
    assert observation["times"][1] > 0 and observation["times"][2] > 0


def test_the_suite_draws_a_workload_at_every_reset():
    env = gym.make("JAXBench/suite")
    drawn = [env.reset(seed=0 if i == 0 else None)[1]["workload"] for i in range(40)]
    again = [env.reset(seed=0 if i == 0 else None)[1]["workload"] for i in range(40)]
    assert drawn == again and len(set(drawn)) > 20
    observation, info = env.reset(options={"workload": "16p"})
    assert info["workload"] == "mamba2_scan" and "# mamba2_scan" in observation["task"]
    check_env(SuiteEnv(["rms_norm", "gemm"]), skip_render_check=True)


def test_a_suite_can_be_a_part_with_weights():
    env = SuiteEnv(["gemm", "16p"], weights={"gemm": 0})
    assert {env.reset()[1]["workload"] for _ in range(5)} == {"mamba2_scan"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"subset": []}, "empty"),
        ({"weights": {"no_such": 1}}, "outside the subset"),
        ({"subset": ["gemm"], "weights": {"gemm": 0}}, "not all 0"),
        ({"subset": ["gemm"], "weights": {"gemm": -1}}, "at least 0"),
    ],
)
def test_bad_suites_are_explained(arguments, says):
    with pytest.raises(ValueError, match=says):
        SuiteEnv(**arguments)
    with pytest.raises(ValueError, match="'workload' is known"):
        SuiteEnv().reset(options={"colour": "red"})


def test_check_env_with_random_text():
    check_env(gym.make(ID).unwrapped, skip_render_check=True)


def test_check_env_with_attempts_of_every_status(attempts):
    # The one that hangs is left out: check_env steps often, and it takes a minute each time.
    texts = [text for status, text in attempts.items() if status not in ("timeout", "vmem_oom")]
    check_env(KernelEnv("rms_norm", examples=texts), skip_render_check=True)


def test_an_episode(attempts):
    env = gym.make(ID, max_attempts=3)
    observation, info = env.reset(seed=3)
    assert observation["attempt"] == 0 and observation["status"] == 0
    assert observation["task"] == workloads.get("rms_norm").task_text()
    assert info == {"workload": "rms_norm", "result": {}, "best": {}}
    assert observation["times"][1] > 0

    steps = [env.step(attempts[name]) for name in ("slower", "ok", "incorrect")]
    rewards = [step[1] for step in steps]
    assert rewards[0] < 1 < rewards[1] and rewards[2] == 1
    assert [step[2] for step in steps] == [False, False, True]
    assert not any(step[3] for step in steps)
    observation, _, _, _, info = steps[2]
    assert observation["status"] == 1 + Status.INCORRECT.rank
    assert observation["compiled"] == 1 and observation["correct"] == 0
    assert observation["errors"].max() > 0 and observation["speedup"] == 0
    assert info["best"]["attempt"] == 2 and info["best"]["source"] == attempts["ok"]
    assert info["best"]["speedup"] == pytest.approx(rewards[1])
    assert "durations" not in info["result"] and env.unwrapped.last_result.durations
    assert EvalResult.from_dict(info["result"]).to_dict(durations=False) == (
        env.unwrapped.last_result.to_dict(durations=False)
    )
    assert (
        dict(zip(jaxbench_env.env.COUNTERS, observation["counters"], strict=True))["hbm_bytes"] > 0
    )
    with pytest.raises(gym.error.ResetNeeded):
        env.step(attempts["ok"])
    env.close()
    env.close()


def test_a_step_is_a_function_of_seed_and_text(attempts):
    env = gym.make(ID)
    runs = []
    for _ in range(2):
        env.reset(seed=11)
        runs.append(env.step(attempts["incorrect"]))
    (first, *_, info_1), (second, *_, info_2) = runs
    assert info_1 == info_2
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_one_attempt_is_the_single_turn_case():
    env = gym.make(ID, max_attempts=1)
    env.reset(seed=0)
    assert env.step("")[2]


def test_rewards_can_be_chosen(attempts):
    for name, value in (("paper", 1.0), ("staged", 0.1), (lambda outcome: -7.0, -7.0)):
        env = gym.make(ID, reward=name)
        env.reset(seed=0)
        assert env.step(attempts["no_kernel"])[1] == value


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"max_attempts": 0}, "at least one attempt"),
        ({"reward": "speedpu"}, "did you mean 'speedup'"),
        ({"target": "v9"}, "unknown target"),
        ({"render_mode": "rgb_array"}, "render_mode"),
    ],
)
def test_bad_arguments_are_explained(kwargs, says):
    with pytest.raises(ValueError, match=says):
        KernelEnv("rms_norm", **kwargs)
    with pytest.raises(workloads.UnknownWorkload, match="did you mean 'rms_norm'"):
        KernelEnv("rmsnorm")


def test_an_action_that_is_no_text_is_a_mistake_of_the_program():
    env = gym.make(ID).unwrapped
    with pytest.raises(gym.error.ResetNeeded):
        env.step("")
    env.reset()
    with pytest.raises(TypeError, match="source text"):
        env.step(b"bytes")
    with pytest.raises(ValueError, match="unknown options"):
        env.reset(options={"colour": "red"})


@pytest.mark.parametrize(
    "text", ["", "\0", "\ud800", "x" * 2_000_000, "(" * 100_000, "0" * 150_000]
)
def test_any_text_is_an_attempt(text):
    env = gym.make(ID).unwrapped
    env.reset(seed=0)
    observation, reward, _, _, info = env.step(text)
    assert observation in env.observation_space
    assert reward == 1.0 and info["result"]["status"] in (
        "syntax_error",
        "rejected",
        "wrong_signature",
    )


def test_rendering(attempts, capsys):
    env = gym.make(ID, render_mode="ansi")
    env.reset(seed=0)
    assert "No attempt yet" in env.render()
    env.step(attempts["no_kernel"])
    assert "no_kernel" in env.render() and "attempt 1 of 8" in env.render()
    env = gym.make(ID, render_mode="human")
    env.reset(seed=0)
    assert "rms_norm: attempt 0 of 8" in capsys.readouterr().out


def _directories():
    return len(list(Path(tempfile.gettempdir()).glob("jaxbench-[!st]*")))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_work_as_they_are(mode, attempts):
    evaluate("rms_norm", attempts["no_kernel"])  # this process's own sandbox stays
    before = _directories()
    envs = gym.make_vec(ID, num_envs=2, vectorization_mode=mode)
    try:
        observations, _ = envs.reset(seed=0)
        assert observations["task"] == (workloads.get("rms_norm").task_text(),) * 2
        step = envs.step((attempts["ok"], attempts["no_kernel"]))
        observations, rewards, _, _, infos = step
        assert rewards[0] > 1 == rewards[1]
        assert observations["status"].tolist() == [1 + Status.OK.rank, 1 + Status.NO_KERNEL.rank]
        assert "no_kernel" in observations["feedback"][1]
        assert infos["result"]["speedup"][0] > 1
        assert infos["result"]["_speedup"].tolist() == [True, False]
    finally:
        envs.close()
    # The workers' own sandboxes end with them.
    deadline = time.monotonic() + 20
    while _directories() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _directories() <= before
