"""A language model behind an endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from baselines.proposers.proposer import Answer, ProposerError, Request, Stopped
from baselines.proposers.rates import Rates

#: Statuses that another try may not get.
RETRIED = frozenset({408, 409, 425, 429})  # and 500 and above
# As OpenAI, vLLM, Anthropic and Gemini put it. A wrong limit for answers must not read like it.
_TOO_LONG = (
    r"context.*(length|window)|length.*context|prompt is too long|input token count.*exceeds"
)
_CHARACTERS_PER_TOKEN = 3.5  # an estimate for rate limits, from below


@dataclass
class OpenAIProposer:
    """Asks a model, again where that may help, and counts tokens and costs. Thread-safe.

    Attributes:
        model: Name of the model.
        base_url: Endpoint; by default ``$OPENAI_BASE_URL``, else OpenAI's.
        api_key: By default ``$OPENAI_API_KEY``; endpoints of one's own mostly want none. It is
            shown nowhere, nor is what an endpoint's address holds beside scheme, host and path.
        price_in: Price of a million tokens of prompts, None if it is not known.
        price_out: Price of a million tokens of answers, reasoning included.
        concurrency: Requests at once.
        requests_per_minute: Rate limit, None for none.
        tokens_per_minute: Rate limit of prompts and answers, None for none.
        timeout: Seconds in which a try may hear nothing.
        attempts: Tries of one request.
        backoff: Seconds before the second try; doubled for each further one, up to a minute, less
            up to a half by chance. An endpoint that names a time (``Retry-After``) gets it.
        max_tokens: Most tokens of an answer, None for the endpoint's own limit.
        extra: Further fields of the request's body, such as ``{"reasoning_effort": "low"}``.

    Raises:
        ProposerError: If the package openai is missing, or the endpoint's address is none.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    price_in: float | None = None
    price_out: float | None = None
    concurrency: int = 8
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    timeout: float = 600.0
    attempts: int = 6
    backoff: float = 2.0
    max_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            import openai
        except ImportError:
            raise ProposerError(
                "the package openai is missing; install it with: pip install 'jaxbench-env[openai]'"
            ) from None
        self.base_url = self.base_url or os.environ.get("OPENAI_BASE_URL") or None
        # Asynchronous, because only so can a try be ended from outside.
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise ProposerError(
                "the endpoint (--base-url or $OPENAI_BASE_URL) begins with http:// or https://, "
                "as in http://localhost:8000/v1"
            )
        self._key = self.api_key or os.environ.get("OPENAI_API_KEY") or ""
        self._client = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._key or "none",
            max_retries=0,
            timeout=self.timeout,
        )
        self._openai = openai
        self._rates = Rates(self.requests_per_minute, self.tokens_per_minute)
        self._places = threading.BoundedSemaphore(self.concurrency)
        self._stop = threading.Event()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="openai", daemon=True).start()
        self._lock = threading.Lock()
        self._trying: set[Future[Any]] = set()

    def describe(self) -> dict[str, Any]:
        """As in `Proposer`. Keys and limits do not decide answers."""
        return {
            "proposer": "openai",
            "model": self.model,
            "base_url": self._address,
            "max_tokens": self.max_tokens,
            "extra": dict(self.extra),
        }

    def stop(self) -> None:
        """As in `Proposer`."""
        self._stop.set()
        with self._lock:
            for trying in self._trying:
                trying.cancel()

    def answer(self, request: Request) -> Answer:
        """As in `Proposer`.

        Raises:
            ProposerError: If no try got an answer, or the endpoint refuses the request for good.
            Stopped: After `stop`.
        """
        started = time.monotonic()
        estimate = round(len(request.text) / _CHARACTERS_PER_TOKEN)
        for attempt in range(1, self.attempts + 1):
            with self._places:
                place = self._rates.enter(estimate, self._stop)
                self._check()
                try:
                    completion = self._complete(request)
                    break
                except self._openai.APIError as error:
                    self._check()
                    refused = _refusal(error)
                    if refused:
                        completion = ("", refused, 0, 0)
                        break
                    wait = self._wait(error, attempt)
                except CancelledError:
                    raise Stopped("the proposer was stopped") from None
                except Exception as error:  # an answer that is no completion
                    what = f"{type(error).__name__}: {error}"
                    raise self._failure("", what) from None
            self._stop.wait(wait)
        text, finish, taken_in, taken_out = completion
        self._rates.leave(place, taken_in + taken_out or estimate)
        return Answer(
            text=text,
            model=self.model,
            input_tokens=taken_in,
            output_tokens=taken_out,
            cost=self._cost(taken_in, taken_out),
            seconds=time.monotonic() - started,
            attempts=attempt,
            finish=finish,
        )

    def _complete(self, request: Request) -> tuple[str, str, int, int]:
        """One try: text, reason of its end, tokens of the prompt and of the answer."""
        options: dict[str, Any] = {}
        if self.max_tokens is not None:
            options["max_tokens"] = self.max_tokens
        trying = asyncio.run_coroutine_threadsafe(
            self._client.chat.completions.create(
                model=self.model,
                messages=[{k: _printable(v) for k, v in m.items()} for m in request.messages],
                temperature=request.temperature,
                extra_body=dict(self.extra) or None,
                **options,
            ),
            self._loop,
        )
        with self._lock:
            self._trying.add(trying)
        try:
            if self._stop.is_set():  # it came too late for `stop`
                trying.cancel()
            completion = trying.result()
        finally:
            with self._lock:
                self._trying.discard(trying)
        if not getattr(completion, "choices", None):
            raise self._openai.APIConnectionError(
                message=f"no choices in the answer: {completion!r:.200}", request=None
            )
        choice, usage = completion.choices[0], completion.usage
        return (
            choice.message.content or "",
            choice.finish_reason or "",
            usage.prompt_tokens or 0 if usage else 0,
            usage.completion_tokens or 0 if usage else 0,
        )

    def _wait(self, error: Exception, attempt: int) -> float:
        """Seconds before another try.

        Raises:
            ProposerError: If there shall be none.
        """
        status = getattr(error, "status_code", None)
        again = status is None or status in RETRIED or status >= 500
        if not again or attempt == self.attempts:
            tries = f" after {attempt} tries" if attempt > 1 else ""
            raise self._failure(tries, str(error)) from None
        named = _retry_after(error)
        if named is not None:
            return named
        return min(self.backoff * 2 ** (attempt - 1), 60.0) * random.uniform(0.5, 1.0)

    def _cost(self, taken_in: int, taken_out: int) -> float | None:
        if self.price_in is None or self.price_out is None:
            return None
        return (taken_in * self.price_in + taken_out * self.price_out) / 1e6

    @property
    def _address(self) -> str:
        """The endpoint without a name, a password or a query, which may be secrets."""
        parts = urlsplit(self.base_url or "https://api.openai.com/v1")
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def _failure(self, tries: str, what: str) -> ProposerError:
        """An error to show: endpoints repeat keys that they do not know."""
        if self._key:
            what = what.replace(self._key, "<the key>")
        if self.base_url:
            what = what.replace(self.base_url, self._address)
        return ProposerError(f"{self.model} at {self._address} gives no answer{tries}: {what}")

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped("the proposer was stopped")


def _printable(text: str) -> str:
    """The text without lone surrogates, which kernels may hold and no request can."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _refusal(error: Exception) -> str:
    """Why this one prompt gets no answer, while others may: it is too long, or filtered.

    Such an answer is an empty one, and no reason to end a run.
    """
    status = getattr(error, "status_code", None)
    if status not in (400, 413):
        return ""
    text = f"{getattr(error, 'code', '')} {error}".lower()
    if status == 413 or re.search(_TOO_LONG, text):
        return "context_length"
    return "content_filter" if "content_filter" in text else ""


def _retry_after(error: Exception) -> float | None:
    """Seconds that the endpoint asks to wait; None if it does not, or not in seconds."""
    response = getattr(error, "response", None)
    try:
        named = float(response.headers["retry-after"])
        return max(0.0, named) if math.isfinite(named) else None
    except (AttributeError, KeyError, ValueError):
        return None
