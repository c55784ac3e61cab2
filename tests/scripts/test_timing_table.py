"""The stored comparison of predicted with published times."""

import csv
import math
from pathlib import Path

import numpy as np
from scipy import stats

import workloads
from workloads.data import published

TABLE = Path(__file__).parents[2] / "docs" / "timing.csv"


def rows():
    with TABLE.open() as file:
        return [row for row in csv.DictReader(file) if "jax 0.9.2" in row["compiler"]]


def test_it_has_every_program_once_with_its_published_time():
    programs = [(row["workload"], row["program"]) for row in rows()]
    assert len(set(programs)) == len(programs)
    assert {name for name, kind in programs if kind == "baseline"} == {*workloads.ids()}
    assert sum(kind == "expert" for _, kind in programs) == 8
    for row in rows():
        known = getattr(published(row["workload"]), f"{row['program']}_ms")
        assert row["published_ms"] == ("" if known is None else str(known))


def test_predictions_are_as_near_as_the_page_says():
    pairs = [
        (float(row["predicted_ms"]), float(row["published_ms"]))
        for row in rows()
        if row["comparable"] == "true" and row["uncertain"] == "false"
    ]
    errors = np.abs([math.log(told / known) for told, known in pairs])
    assert len(pairs) >= 40
    assert stats.spearmanr(*zip(*pairs, strict=True)).statistic > 0.995
    assert np.median(errors) < 0.03 and np.quantile(errors, 0.9) < 0.1


def test_speedups_of_experts_are_near_the_published_ones():
    by = {(row["workload"], row["program"]): row for row in rows()}
    ratios = {}
    for (name, kind), row in by.items():
        base = by[name, "baseline"]
        if kind == "expert" and base["comparable"] == "true":
            told = float(base["predicted_ms"]) / float(row["predicted_ms"])
            ratios[name] = told / (float(base["published_ms"]) / float(row["published_ms"]))
    assert len(ratios) == 6
    assert all(abs(math.log(ratio)) < 0.15 for ratio in ratios.values()), ratios
