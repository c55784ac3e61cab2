"""A recorded run's answers are given again, and nothing else is."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "rollout"))
from made_up import MadeUp, rollout  # noqa: E402

from baselines.proposers import ProposerError  # noqa: E402
from baselines.proposers.replay import Replay  # noqa: E402
from baselines.rollout.records import Run  # noqa: E402
from jaxbench_env import Status  # noqa: E402


@pytest.fixture
def recorded(tmp_path):
    run = rollout(tmp_path / "first", MadeUp(), verify_best=False)
    run.run()
    run.records.close()
    return tmp_path / "first"


def test_a_replay_proposes_the_same(recorded, tmp_path):
    again = rollout(tmp_path / "again", MadeUp(), proposer=Replay(recorded), verify_best=False)
    again.run()
    assert again.ended == "done"
    texts = [
        {(line["sample"], line["source_sha256"]) for line in Run(folder).lines("candidates")}
        for folder in (recorded, tmp_path / "again")
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 24


def test_other_calls_and_other_prompts_are_errors(recorded, tmp_path):
    other = rollout(tmp_path / "a", MadeUp(), names=("gemm",), proposer=Replay(recorded))
    other.run()
    assert "no call 'chain 0, turn 0' of gemm" in str(other.error)
    crashing = MadeUp(statuses=(Status.CRASHED,))
    changed = rollout(tmp_path / "b", crashing, proposer=Replay(recorded))
    changed.run()
    assert "another prompt for call" in str(changed.error)


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(ProposerError, match="nothing to replay.*no run.json"):
        Replay(tmp_path)
