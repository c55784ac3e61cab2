"""The proposer against a real server that speaks the protocol and fails in every way."""

import json
import threading
import time

import pytest
from click.testing import CliRunner
from endpoint import REPLY, Endpoint

from baselines.proposers import About, ProposerError, Request, Stopped, answer_all
from baselines.proposers.rates import Rates
from baselines.testing import verdict
from jaxbench_env import Status
from jaxbench_env.cli import main
from jaxbench_env.evaluator.service import client

pytest.importorskip("openai")
from baselines.proposers.openai import OpenAIProposer  # noqa: E402


def request(label="sample 0"):
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write."})
    return Request(label, messages, About("rms_norm"))


def proposer(endpoint, **options):
    defaults = {"backoff": 0.01, "timeout": 5.0, "price_in": 0.5, "price_out": 3.0}
    return OpenAIProposer("local", base_url=endpoint.url, **{**defaults, **options})


def test_an_answer_comes_with_tokens_and_cost():
    with Endpoint() as endpoint:
        answer = proposer(endpoint, api_key="secret", extra={"top_k": 5}).answer(request())
    assert answer.text == REPLY and answer.finish == "stop" and answer.attempts == 1
    assert (answer.input_tokens, answer.output_tokens) == (1000, 200)
    assert answer.cost == pytest.approx((1000 * 0.5 + 200 * 3.0) / 1e6)
    (body,) = endpoint.bodies
    assert body["messages"] == list(request().messages)
    assert (body["model"], body["temperature"], body["top_k"]) == ("local", 1.0, 5)
    assert endpoint.headers[0]["authorization"] == "Bearer secret"


def test_without_prices_the_cost_is_not_known():
    with Endpoint() as endpoint:
        assert proposer(endpoint, price_in=None).answer(request()).cost is None


def test_endpoint_and_key_come_from_the_environment(monkeypatch):
    with Endpoint() as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
        made = OpenAIProposer("local")
        made.answer(request())
    assert endpoint.headers[0]["authorization"] == "Bearer from the environment"
    assert made.describe()["base_url"] == endpoint.url
    assert "environment" not in str(made.describe())


@pytest.mark.parametrize(
    "trouble",
    [
        ("status", 429, {}, {"error": {"message": "slow down"}}),
        ("status", 500, {}, {"error": {"message": "oops"}}),
        ("status", 503, {}, {"error": {"message": "busy"}}),
        ("slow", 1.5),
        "cut",
        "nonsense",
    ],
    ids=lambda step: str(step[1] if step[0] == "status" else step),
)
def test_trouble_is_tried_again(trouble):
    with Endpoint(trouble, trouble) as endpoint:
        answer = proposer(endpoint, timeout=0.5).answer(request())
    assert answer.text == REPLY and answer.attempts == 3


def test_retry_after_is_honoured():
    limited = ("status", 429, {"Retry-After": "0.6"}, {"error": {"message": "slow down"}})
    with Endpoint(limited) as endpoint:
        proposer(endpoint).answer(request())
    first, second = endpoint.times
    assert second - first >= 0.6


def test_it_gives_up_after_its_attempts():
    broken = ("status", 500, {}, {"error": {"message": "oops"}})
    with Endpoint(*[broken] * 9) as endpoint:
        with pytest.raises(ProposerError, match="after 3 tries.*oops"):
            proposer(endpoint, attempts=3).answer(request())
    assert len(endpoint.bodies) == 3


@pytest.mark.parametrize("code", [401, 403, 404, 422])
def test_what_no_other_try_would_mend_is_an_error_at_once(code):
    with Endpoint(("status", code, {}, {"error": {"message": "no such thing"}})) as endpoint:
        with pytest.raises(ProposerError, match="local at http.*no such thing"):
            proposer(endpoint).answer(request())
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize(
    ("error", "finish"),
    [
        ({"message": "maximum context length is 8192 tokens"}, "context_length"),
        (
            {
                "message": "The input token count (1200000) exceeds the maximum number of tokens "
                "allowed (1048576)."
            },
            "context_length",
        ),
        ({"message": "Prompt is too long"}, "context_length"),
        ({"message": "blocked", "code": "content_filter"}, "content_filter"),
    ],
)
def test_a_prompt_that_is_refused_is_an_empty_answer(error, finish):
    with Endpoint(("status", 400, {}, {"error": error})) as endpoint:
        answer = proposer(endpoint).answer(request())
    assert (answer.text, answer.finish) == ("", finish)


def test_a_body_that_is_too_large_is_an_empty_answer():
    with Endpoint(("status", 413, {}, {"detail": "Request Entity Too Large"})) as endpoint:
        assert proposer(endpoint).answer(request()).finish == "context_length"


@pytest.mark.parametrize("named", ["inf", "nan", "1e400"])
def test_a_time_to_wait_that_is_no_number_is_passed_over(named):
    busy = ("status", 429, {"Retry-After": named}, {"error": {"message": "slow down"}})
    with Endpoint(busy) as endpoint:
        assert proposer(endpoint).answer(request()).attempts == 2


def test_a_prompt_may_hold_any_text():
    odd = Request("sample 0", ({"role": "user", "content": "x = '\ud83d\0'"},), About("rms_norm"))
    with Endpoint() as endpoint:
        assert proposer(endpoint).answer(odd).text == REPLY
    assert endpoint.bodies[0]["messages"][0]["content"] == "x = '\\ud83d\0'"


def test_an_endpoint_without_a_scheme_is_refused_at_once():
    with pytest.raises(ProposerError, match="begins with http://") as caught:
        OpenAIProposer("local", base_url="me:pass-678@localhost:8000/v1")
    assert "pass-678" not in str(caught.value)


def test_secrets_are_shown_nowhere():
    refused = ("status", 401, {}, {"error": {"message": "no such key: sk-12345"}})
    with Endpoint(refused) as endpoint:
        url = endpoint.url.replace("http://", "http://me:pass-678@") + "?token=t-90"
        made = OpenAIProposer("local", base_url=url, api_key="sk-12345")
        with pytest.raises(ProposerError, match="no such key: <the key>") as caught:
            made.answer(request())
        shown = f"{caught.value} {made.describe()}"
        assert made.describe()["base_url"] == endpoint.url
    assert not [s for s in ("sk-12345", "pass-678", "t-90") if s in shown]
    assert "sk-12345" not in repr(made)


def test_requests_run_at_once_up_to_the_limit():
    with Endpoint(*[("slow", 0.3)] * 8) as endpoint:
        made = proposer(endpoint, concurrency=4)
        answers = answer_all(made, [request(f"sample {n}") for n in range(8)])
    assert len(answers) == 8 and endpoint.most_at_once == 4


def test_a_failure_waits_for_the_answers_under_way():
    answered = []

    class Watched:
        concurrency = 2

        def answer(self, one):
            if one.label == "sample 0":
                raise ProposerError("no")
            time.sleep(0.2)
            answered.append(one.label)

    with pytest.raises(ProposerError):
        answer_all(Watched(), [request(f"sample {n}") for n in range(50)])
    assert 1 <= len(answered) <= 3


def test_stopping_ends_what_is_being_asked():
    with Endpoint(("slow", 10)) as endpoint:
        made = proposer(endpoint, timeout=30.0)
        caught = []

        def ask():
            try:
                made.answer(request())
            except ProposerError as error:
                caught.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while not endpoint.bodies:
            time.sleep(0.01)
        made.stop()
        with pytest.raises(Stopped):
            made.answer(request())
        thread.join(5)
        assert not thread.is_alive()
    (error,) = caught
    assert isinstance(error, Stopped)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Waits(threading.Event):
    """An event whose waits move a clock on."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.waited = clock, []

    def wait(self, timeout=None):
        self.waited.append(timeout)
        self.clock.now += timeout
        return False


def test_requests_wait_for_room_in_the_minute():
    clock = Clock()
    rates, stop = Rates(requests=2, clock=clock), Waits(clock)
    rates.enter(0, stop)
    clock.now = 10.0
    rates.enter(0, stop)
    rates.enter(0, stop)
    assert stop.waited == [50.0]


def test_tokens_are_put_right_after_a_request():
    clock = Clock()
    rates, stop = Rates(tokens=100, clock=clock), Waits(clock)
    rates.leave(rates.enter(90, stop), 20)
    rates.enter(80, stop)
    assert stop.waited == []
    rates.enter(80, stop)
    assert stop.waited and clock.now == 60.0


def test_a_request_beyond_the_whole_limit_is_let_through_alone():
    clock = Clock()
    rates, stop = Rates(tokens=100, clock=clock), Waits(clock)
    rates.enter(500, stop)
    assert stop.waited == []


def test_a_rollout_with_an_endpoint_counts_tokens_and_stops_at_its_cost(tmp_path, monkeypatch):
    class MadeUp:
        target, allow_library_kernels = "v6e", False

        def __init__(self, target):
            pass

        def evaluate(self, workload, source, *, seed=None, stop=None, watch=None):
            return verdict(source, Status.INCORRECT, workload.id)

    monkeypatch.setattr(client, "SharedEvaluator", MadeUp)
    limited = ("status", 429, {"Retry-After": "0.1"}, {"error": {"message": "slow down"}})
    with Endpoint("ok", limited, "cut") as endpoint:
        arguments = [
            *("rollout", "--policy", "iterative", "--workloads", "rms_norm", "--budget", "30"),
            *("--proposer", "openai", "--model", "local", "--base-url", endpoint.url),
            *("--price-in", "1000", "--price-out", "0", "--concurrency", "2"),
            *("--out", str(tmp_path), "--no-verify-best", "--json"),
        ]
        first = CliRunner().invoke(main, [*arguments, "--max-cost", "10"])
        asked = len(endpoint.bodies)
        second = CliRunner().invoke(main, arguments)
    assert first.exit_code == second.exit_code == 0, first.output + second.output
    first, second = json.loads(first.stdout), json.loads(second.stdout)
    assert first["ended"] == "max-cost" and 10 <= first["cost"] <= 11  # one may be under way
    assert asked == first["calls"] + 2
    assert second["ended"] == "done" and second["calls"] == 30 and second["cost"] == 30
    assert (second["input_tokens"], second["output_tokens"]) == (30_000, 6_000)
    assert len(endpoint.bodies) == 32
