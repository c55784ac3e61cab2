"""A judge that lives long does not grow with the candidates it has seen."""

import pytest

import workloads
from jaxbench_env.evaluator.judge import numerics, pool
from jaxbench_env.evaluator.judge.worker import named
from workloads import DRAWS

RMS_NORM = workloads.get("rms_norm")


@pytest.fixture
def one_draw(monkeypatch):
    """Room for one draw and a half."""
    monkeypatch.setattr(numerics, "_draws", type(numerics._draws)())
    size = numerics._nbytes(numerics.expected(RMS_NORM, "varied", DRAWS[0], 0))
    monkeypatch.setattr(numerics, "MAX_KEPT_BYTES", 3 * size // 2)
    return size


def test_draws_are_kept_up_to_a_limit_and_the_last_used_longest(one_draw, monkeypatch):
    monkeypatch.setattr(numerics, "MAX_KEPT_BYTES", 5 * one_draw // 2)
    first, *_ = (numerics.expected(RMS_NORM, "varied", DRAWS[0], seed) for seed in (0, 1))
    assert numerics.expected(RMS_NORM, "varied", DRAWS[0], 0) is first
    numerics.expected(RMS_NORM, "varied", DRAWS[0], 2)
    assert [seed for *_, seed in numerics._draws] == [0, 2]


def test_a_draw_that_would_push_out_all_others_is_not_kept(one_draw):
    numerics.expected(RMS_NORM, "varied", DRAWS[0], 1)
    assert [seed for *_, seed in numerics._draws] == [0]


def test_a_judge_that_holds_too_much_memory_is_replaced(monkeypatch):
    judges = pool.Pool()
    request = {"do": "inputs", **named(RMS_NORM), "preset": "varied", "draw": DRAWS[0], "seed": 0}
    try:
        judges.ask("numerics", request)
        [first] = judges._all
        assert 50 << 20 < first.resident_bytes() < pool.MAX_RESIDENT_BYTES
        monkeypatch.setattr(pool, "MAX_RESIDENT_BYTES", 50 << 20)
        judges.ask("numerics", request)
        assert not judges._all and not first.alive and first.requests == 2
    finally:
        judges.close()
