"""The proposer without a model: what it knows, what it does not, and that its mistakes fail."""

import re
from dataclasses import replace

import pytest

import workloads
from baselines import kernels
from baselines.proposers import About, NotApplicable, Request
from baselines.proposers.template import TemplateProposer
from baselines.proposers.template.mistakes import MISTAKES, possible
from baselines.proposers.template.proposer import _kernel
from baselines.templates import is_template
from baselines.testing import verdict
from jaxbench_env import Evaluator, Status
from jaxbench_env.evaluator.audit import audit
from jaxbench_env.evaluator.estimate import numerics_seconds

SURE = {"fresh": 0.0, "fresh_context": 0.0, "slip": 0.0, "slip_context": 0.0}
TUNABLE = [name for name in kernels.ids() if is_template(kernels.source(name))]


def ask(proposer, label="sample 0", kind="write", **about):
    about = About("gemm", **about)
    return proposer.answer(Request(label, (), about, kind)).text


def state(text):
    return _kernel("gemm").read(text)


def right(parent, **counters):
    return replace(verdict(parent, Status.OK), counters=counters)


@pytest.fixture(autouse=True)
def fresh_kernels():
    _kernel.cache_clear()
    yield
    _kernel.cache_clear()


def test_the_same_call_gets_the_same_answer():
    texts = {ask(TemplateProposer(seed), f"sample {n}") for seed in (1, 2) for n in range(20)}
    again = {ask(TemplateProposer(seed), f"sample {n}") for seed in (1, 2) for n in range(20)}
    assert texts == again and len(texts) > 20


def test_without_documents_constraints_are_broken_and_mistakes_made():
    states = [state(ask(TemplateProposer(), f"sample {n}")) for n in range(200)]
    space = _kernel("gemm").space
    assert any(space.violations(s.point) for s in states)
    assert sum(bool(s.mistakes) for s in states) > 190


def test_with_documents_constraints_hold_and_mistakes_are_rarer():
    states = [state(ask(TemplateProposer(), f"sample {n}", context=True)) for n in range(200)]
    space = _kernel("gemm").space
    assert not any(space.violations(s.point) for s in states)
    assert 120 < sum(bool(s.mistakes) for s in states) < 190


def test_the_kernels_own_values_are_not_looked_at(monkeypatch):
    def answers():
        _kernel.cache_clear()
        proposer, parent, found = TemplateProposer(), "", []
        for turn in range(30):
            about = {"parent": parent, "verdict": verdict(parent) if parent else None}
            parent = ask(proposer, f"turn {turn}", context=turn % 2 == 0, **about)
            found.append(parent)
        return found

    plain = answers()
    text = kernels.source("gemm")
    other = re.sub(r"(?m)^BLOCK_([MN]) = \d+", r"BLOCK_\1 = 256", text)
    assert other != text
    monkeypatch.setattr(kernels, "source", lambda name: other)
    assert answers() == plain


def test_feedback_mends_the_mistake_that_shows():
    proposer = TemplateProposer(mend=1.0, slip=0.0)
    text = ask(proposer)
    for turn in range(20):
        before = state(text)
        if not before.mistakes:
            break
        failed = verdict(text, Status.TRACE_ERROR)
        text = ask(proposer, f"turn {turn}", parent=text, verdict=failed)
        assert state(text).mistakes == before.mistakes[1:]
    assert not state(text).mistakes


def test_too_much_vmem_leads_to_a_smaller_block():
    proposer = TemplateProposer(**SURE)
    kernel = _kernel("gemm")
    text = kernel.text(replace(state(ask(proposer)), point=(2, 2)))
    failed = verdict(text, Status.VMEM_OOM)
    for n in range(10):
        after = state(ask(proposer, f"turn {n}", parent=text, verdict=failed)).point
        assert sum(after) < 4


@pytest.mark.parametrize(
    ("counters", "larger"),
    [
        ({"dma_wait_share": 0.5}, True),
        ({"bundles_per_step": 100.0}, True),
        ({"vector_spills": 500.0, "load_ops": 1000.0}, False),
    ],
)
def test_the_profile_says_where_to_go(counters, larger):
    proposer = TemplateProposer(**SURE)
    text = _kernel("gemm").text(replace(state(ask(proposer)), point=(1, 1)))
    for n in range(10):
        about = {"parent": text, "verdict": right(text, **counters)}
        after = state(ask(proposer, f"turn {n}", **about)).point
        assert (sum(after) > 2) == larger


def test_a_plan_says_what_its_implementation_does():
    proposer = TemplateProposer(**SURE)
    plan = ask(proposer, "plan", "plan", context=True)
    assert re.fullmatch(
        r"Write it as one kernel\. Set (BLOCK_[MN] to index \d \(\d+\)(, )?)+\.", plan
    )
    first = ask(proposer, "code", "implement", plan=plan, context=True)
    assert [f"index {index} " in plan for index in state(first).point] == [True, True]
    plan = ask(proposer, "plan 2", "plan", parent=first, context=True)
    second = ask(proposer, "code 2", "implement", parent=first, plan=plan, context=True)
    changed = [a != b for a, b in zip(state(first).point, state(second).point, strict=True)]
    assert sum(changed) == 1


def test_completeness_is_the_share_of_time_in_pallas():
    judged = ask(
        TemplateProposer(), kind="judge", parent="x", verdict=right("x", kernel_share=0.62)
    )
    assert judged.endswith("Score: 6")


def test_a_workload_without_a_kernel_is_an_error():
    with pytest.raises(NotApplicable, match="no kernel for 'nothing'"):
        TemplateProposer().answer(Request("a", (), About("nothing")))


@pytest.mark.parametrize("name", TUNABLE)
def test_mistakes_are_texts_that_the_audit_lets_through(name):
    text = kernels.source(name)
    assert len(possible(text)) >= 5
    for mistake in MISTAKES:
        wrong = mistake.make(text)
        assert wrong is None or audit(wrong) is None, mistake.name


STATUSES = {
    "api": {Status.TRACE_ERROR},
    "layout": {Status.COMPILE_ERROR},
    "unsupported": {Status.UNSUPPORTED, Status.COMPILE_ERROR, Status.TRACE_ERROR},
    "signature": {Status.WRONG_SIGNATURE, Status.TRACE_ERROR},
    "numerics": {Status.INCORRECT, Status.TRACE_ERROR},
}
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(m, marks=() if m.name == "old load" else SLOW, id=m.name) for m in MISTAKES],
)
def test_a_mistake_really_fails(mistake):
    cheapest = sorted(TUNABLE, key=lambda name: numerics_seconds(workloads.get(name)))
    texts = ((name, mistake.make(kernels.source(name))) for name in ("rms_norm", *cheapest))
    name, text = next(((name, text) for name, text in texts if text is not None), (None, None))
    if name is None:
        pytest.skip("no kernel of this package has a place for it")
    result = Evaluator().evaluate(workloads.get(name), text)
    assert result.status in STATUSES[mistake.kind], result.message
