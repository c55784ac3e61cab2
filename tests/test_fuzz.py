"""Any text is an attempt: no step raises, and every verdict is the text's own fault."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from jaxbench_env import KernelEnv, Status

SCRIPT = Path(__file__).parents[1] / "scripts" / "fuzz_texts.py"


def load():
    spec = importlib.util.spec_from_file_location("fuzz_texts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [0])
def test_fifty_texts_get_a_verdict(seed, attempts):
    env = KernelEnv("rms_norm", max_attempts=50)
    env.reset(seed=seed)
    seen = Counter()
    for _, text in load().texts([attempts["wrong_signature"], attempts["ok"]], 50, seed):
        observation, reward, *_, info = env.step(text)
        assert observation in env.observation_space and reward >= 0
        assert info["result"]["status"] != Status.EVALUATOR_ERROR, (text, info["result"])
        seen[info["result"]["status"]] += 1
    assert seen["syntax_error"] > 5 and len(seen) >= 3
