"""One rollout with the real compiler and judge."""

from pathlib import Path

import workloads
from baselines.iterative import Iterative
from baselines.proposers import Scripted
from baselines.rollout import setup
from baselines.rollout.engine import Rollout
from baselines.rollout.records import Records, Run
from jaxbench_env import EvalResult, Evaluator


def test_three_turns_of_feedback(tmp_path, attempts):
    texts = [attempts["trace_error"], attempts["compile_error"], attempts["ok"]]
    proposer = Scripted([f"Here it is:\n```python\n{text}```" for text in texts])
    chosen, evaluator = [workloads.get("rms_norm")], Evaluator()

    def make(episode):
        return Iterative(episode, chain_count=1, turns=3)

    settings = setup.settings(make, chosen, proposer, evaluator, "predicted", 144, 0)

    def rollout(proposer):
        records = Records(Path(tmp_path), settings)
        made = Rollout(records, make, chosen, evaluator, proposer, verify_best=False)
        (outcome,) = made.run()
        assert made.ended == "done", made.error
        records.close()
        return outcome

    outcome = rollout(proposer)
    lines = list(Run(tmp_path).lines("candidates"))
    results = [EvalResult.from_dict(line["result"]) for line in lines]
    assert [result.status.value for result in results] == ["trace_error", "compile_error", "ok"]
    assert outcome.best.candidate.sample == 2 and outcome.best.result.speedup > 1
    prompts = [request.messages[1]["content"] for request in proposer.requests]
    assert "TPUCompilerParams" in prompts[1] and "It is not right yet" in prompts[1]
    assert results[1].details.strip() in prompts[2]
    protocols = {line["protocol"] for line in lines}
    assert protocols == {Run(tmp_path).settings["protocol"]} == {results[0].provenance.protocol}
    # Recorded verdicts make the same prompts, so nothing is asked or evaluated again.
    assert rollout(Scripted([])).to_dict() == outcome.to_dict()
