import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import workloads
from baselines.templates import TemplateAction, TemplateError, TemplateSpace
from jaxbench_env import RecordedEvaluator, Status, recorded
from jaxbench_env.canonical import canonical_hash
from jaxbench_env.evaluator.evaluator import Evaluator

ID = "JAXBench/rms_norm"


@pytest.fixture(scope="module")
def template(attempts):
    """A kernel that is right at one value and fails at the other."""
    tunables = 'PASSES = True\nTUNABLES = {"PASSES": (False, True)}\n\n\ndef constraints(PASSES):\n'
    tunables += '    return {"it passes": PASSES}\n\n\n'
    text = attempts["ok"]
    start = text.index("def workload")
    head, rest = text[:start], text[start:]
    first, body = rest.split("\n", 1)
    return f"{head}{tunables}{first}\n    assert PASSES\n{body}"


@pytest.fixture(scope="module")
def evaluator(template, tmp_path_factory):
    workload, space = workloads.get("rms_norm"), TemplateSpace(template)
    folder, rows = tmp_path_factory.mktemp("records"), []
    for action in space.actions():
        result = Evaluator().evaluate(workload, space.source(action), seed=1)
        kernel = canonical_hash(space.source(action))
        rows.append({"kernel": kernel, "values": {}, "result": recorded.shrink(result)})
    baseline = Evaluator().baseline(workload)
    head = recorded.header(workload, baseline, result.provenance)
    recorded.write(folder / "rms_norm.jsonl.gz", head, rows)
    return RecordedEvaluator(folder)


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
def test_it_passes_gymnasiums_own_check(template, evaluator):
    check_env(TemplateAction(gym.make(ID, evaluator=evaluator), template), skip_render_check=True)


def test_an_action_is_a_kernel(template, evaluator):
    env = TemplateAction(gym.make(ID, evaluator=evaluator, max_attempts=2), template)
    observation, info = env.reset(seed=0)
    names = env.observation_names
    assert len({*names}) == len(names) == observation.size
    at = dict(zip(names, observation, strict=True))
    assert at["status: none"] == 1 and at["an action was made"] == 0 and at["attempt"] == 0
    assert at["log ms: XLA"] > 0 and info["source"] == ""

    observation, reward, terminated, _, info = env.step(np.array([1]))
    at = dict(zip(names, observation, strict=True))
    assert at["status: ok"] == at["correct"] == at["action: PASSES"] == 1
    assert at["log speedup"] == pytest.approx(np.log1p(reward)) and reward > 1
    assert at["log ms: kernel"] > 0 and at["attempt"] == 0.5
    assert info["source"] == template and info["violations"] == () and not terminated

    observation, reward, terminated, _, info = env.step(np.array([0]))
    at = dict(zip(names, observation, strict=True))
    assert at["status: trace_error"] == 1 and at["correct"] == at["action: PASSES"] == 0
    assert reward == 1 and terminated and info["violations"] == ("it passes",)
    assert info["result"]["status"] == Status.TRACE_ERROR
    assert observation in env.observation_space


def test_it_is_made_in_vector_environments(template, evaluator):
    envs = gym.make_vec(
        ID,
        num_envs=2,
        vectorization_mode="sync",
        wrappers=[lambda env: TemplateAction(env, template)],
        evaluator=evaluator,
    )
    envs.reset(seed=0)
    observations, rewards, *_ = envs.step(np.array([[1], [0]]))
    assert observations.dtype == np.float32 and rewards[0] > 1 == rewards[1]
    envs.close()


def test_the_kernel_of_the_baselines_is_the_default():
    env = TemplateAction(gym.make(ID))
    assert env.action_space.names == ("BLOCK_ROWS",)
    with pytest.raises(TemplateError, match="BLOCK_ROWS below"):
        env.source([99])
    assert env.spec is not None and env.spec.additional_wrappers


def test_an_environment_of_many_workloads_has_no_tunables():
    with pytest.raises(TypeError, match="one workload"):
        TemplateAction(gym.make("JAXBench/suite"))
    with pytest.raises(TypeError, match="wrap a KernelEnv"):
        TemplateAction(gym.make("CartPole-v1"))
    with pytest.raises(TemplateError, match="has no tunables"):
        TemplateAction(gym.make(ID), "x = 1")
