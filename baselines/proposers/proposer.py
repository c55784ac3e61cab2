"""What a proposer is: it answers prompts. A language model, or what stands in for one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxbench_env import EvalResult

Message = dict[str, str]  # "role" and "content"


class ProposerError(RuntimeError):
    """A proposer cannot answer, and asking again at once would not help."""


class NotApplicable(Exception):
    """There is nothing to propose for a workload, such as where no kernel by people exists."""


class Stopped(ProposerError):
    """A proposer was stopped from outside."""


@dataclass(frozen=True)
class About:
    """What a request is about, for proposers that do not read prompts.

    Attributes:
        workload: Id of the workload.
        context: Whether the prompt explains the hardware, the API and the rules.
        parent: Text of the kernel that is to be changed, empty where there is none.
        verdict: Its verdict, where the prompt tells it.
        plan: What is to be changed, where the prompt says so.
    """

    workload: str
    context: bool = False
    parent: str = ""
    verdict: EvalResult | None = None
    plan: str = ""


@dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
        label: Its name in the episode, of which there is only one: with it goes the answer when a
            run is resumed.
        messages: The prompt in chat form.
        about: What it is about; no part of the prompt.
        kind: What is asked for: ``"write"`` a kernel, a ``"plan"``, to ``"implement"`` one, or to
            ``"judge"`` a kernel.
        temperature: Of the sampling.
    """

    label: str
    messages: tuple[Message, ...]
    about: About
    kind: str = "write"
    temperature: float = 1.0

    @property
    def text(self) -> str:
        """The prompt as it is hashed and kept: JSON of messages and temperature."""
        return json.dumps({"messages": self.messages, "temperature": self.temperature}, indent=1)

    @property
    def prompt_sha256(self) -> str:
        """SHA-256 of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        text: The answer.
        model: Who gave it.
        input_tokens: Tokens of the prompt, 0 where they are not counted.
        output_tokens: Tokens of the answer, reasoning included.
        cost: What both cost, in the currency of the prices; None where no prices are known.
        seconds: Wall time, retries and waits included.
        attempts: How often it was tried.
        finish: Why the answer ended: ``"stop"``, ``"length"``, ``"content_filter"``, ...
    """

    text: str
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0
    attempts: int = 1
    finish: str = "stop"


class Proposer(Protocol):
    """Answers prompts, one at a time, from many threads at once.

    Attributes:
        concurrency: How many of one policy's requests may be asked at the same time.
    """

    concurrency: int

    def answer(self, request: Request) -> Answer:
        """The answer to one request.

        Raises:
            ProposerError: If it cannot be had.
        """

    def describe(self) -> dict[str, Any]:
        """What decides its answers, JSON-ready: with another description a run is another run."""

    def stop(self) -> None:
        """Ends what is being asked, which raises `Stopped` there, as do all later requests."""


def answer_all(proposer: Proposer, requests: Sequence[Request]) -> list[Answer]:
    """The answers to several requests, in their order, asked together where that helps.

    Raises:
        ProposerError: If one cannot be had. Those under way are waited for, and no more begun.
    """
    threads = min(proposer.concurrency, len(requests))
    if threads <= 1:
        return [proposer.answer(request) for request in requests]
    with ThreadPoolExecutor(threads, "proposer") as pool:
        return list(pool.map(proposer.answer, requests))


@dataclass
class Scripted:
    """Gives prepared answers in turn, and keeps the requests: for tests and examples.

    Attributes:
        texts: Answers; the last one is given again when they run out.
        requests: What it was asked.
    """

    texts: Sequence[str]
    requests: list[Request] = field(default_factory=list)
    concurrency: int = field(default=1, init=False)

    def answer(self, request: Request) -> Answer:
        """As in `Proposer`."""
        self.requests.append(request)
        return Answer(self.texts[min(len(self.requests), len(self.texts)) - 1], model="scripted")

    def describe(self) -> dict[str, Any]:
        """As in `Proposer`."""
        return {"proposer": "scripted", "texts": list(self.texts)}

    def stop(self) -> None:
        """As in `Proposer`; an answer takes no time."""
