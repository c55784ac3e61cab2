"""Answers out of a recorded run: no model is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baselines.proposers.proposer import Answer, ProposerError, Request
from baselines.rollout.records import RecordsError, Run


class Replay:
    """Gives the answers of a run, to the same prompts of the same calls.

    Tokens are those of the recorded answers; nothing costs anything.
    """

    concurrency = 1

    def __init__(self, folder: Path):
        """Reads a run's directory.

        Raises:
            ProposerError: If it holds no run.
        """
        self._run = Run(folder)
        try:
            self._described = self._run.settings.get("proposer")
            lines = list(self._run.lines("calls"))
        except RecordsError as error:
            raise ProposerError(f"nothing to replay: {error}") from None
        self._calls = {(line["workload"], line["label"]): line for line in lines}

    def answer(self, request: Request) -> Answer:
        """As in `Proposer`.

        Raises:
            ProposerError: If the call was not recorded, or with another prompt.
        """
        workload = request.about.workload
        line = self._calls.get((workload, request.label))
        if line is None:
            known = sum(name == workload for name, _ in self._calls)
            raise ProposerError(
                f"{self._run.folder} has no call {request.label!r} of {workload}, but {known} "
                "others: record it with the same policy, constants, seed and budget"
            )
        if line["prompt_sha256"] != request.prompt_sha256:
            raise ProposerError(
                f"{self._run.folder} has another prompt for call {request.label!r} of {workload}: "
                "prompts, verdicts or the policy's constants differ from the recorded run's"
            )
        return Answer(
            self._run.text(line["answer_sha256"]),
            model=line["model"],
            input_tokens=line["input_tokens"],
            output_tokens=line["output_tokens"],
            finish=line["finish"],
        )

    def describe(self) -> dict[str, Any]:
        """As in `Proposer`."""
        return {"proposer": "replay", "of": self._described}

    def stop(self) -> None:
        """As in `Proposer`; an answer takes no time."""
