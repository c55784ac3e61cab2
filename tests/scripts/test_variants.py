"""Predicted times among variants of one kernel: what must hold whatever the constants."""

import dataclasses
import json
import sys
import tarfile
from pathlib import Path

import pytest

from jaxbench_env.evaluator import timing

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "variants" / "results.jsonl"
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
K = timing.Constants.load()


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Folders with the dumps of some variants, by the name of the variant."""
    folder = tmp_path_factory.mktemp("variants")
    with tarfile.open(Path(__file__).parent / "data" / "variants.tar.xz") as tar:
        tar.extractall(folder, **SAFELY)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def ms(dumps):
    """Predicted milliseconds of a variant, priced once."""
    known = {}

    def priced(name):
        if name not in known:
            known[name] = timing.predict(dumps[name])
        return known[name].ms

    return priced


@pytest.fixture(scope="module")
def records():
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


@pytest.fixture
def study(monkeypatch):
    """The modules of scripts/, imported as its programs import them."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from variants import run, space

    yield run, space
    for name in [name for name in sys.modules if name.split(".")[0] == "variants"]:
        del sys.modules[name]


# ---- variants priced again


def test_the_dumps_of_variants_are_followed(dumps, ms):
    assert all(ms(name) > 0 for name in dumps)
    for name in dumps:
        prediction = timing.predict(dumps[name], constants=dataclasses.replace(K, dma_latency=0))
        assert not prediction.uncertain, (name, prediction.reasons)
        assert prediction.ms <= ms(name), name


def test_twice_the_contraction_takes_twice_the_time_in_steady_state(ms):
    depth = {size: ms(f"matmul-512-512-512-2-mnk-{size}") for size in (1024, 2048, 4096, 8192)}
    first, second, third = (depth[2 * n] - depth[n] for n in (1024, 2048, 4096))
    assert second / first == pytest.approx(2, rel=0.01)
    assert third / second == pytest.approx(2, rel=0.01)


def test_one_more_buffer_is_never_slower(ms):
    rings = [ms(f"softmax-32-{buffers}") for buffers in (1, 2, 3, 4)]
    assert rings == sorted(rings, reverse=True)
    assert ms("matmul-256-256-256-2-mnk-4096") < ms("matmul-256-256-256-1-mnk-4096")
    assert ms("rms_norm-16-2-16384") < ms("rms_norm-16-1-16384")


def test_exposed_latency_goes_with_the_number_of_steps_and_of_buffers(dumps):
    def latency(name):
        """Cycles that a latency of 1000 cycles adds."""
        times = [
            timing.predict(dumps[name], constants=dataclasses.replace(K, dma_latency=cycles))
            for cycles in (4000, 3000)
        ]
        return times[0].cycles - times[1].cycles

    # 512 blocks of rows: each waits once for a load; n in flight share a latency
    assert latency("softmax-32-1") == pytest.approx(512 * 1000, rel=0.01)
    assert latency("softmax-32-2") == pytest.approx(512 * 1000 / 2, rel=0.01)
    assert latency("softmax-32-4") == pytest.approx(512 * 1000 / 4, rel=0.02)
    # 2048 steps with 128 columns of depth, 512 with 512: two in flight
    assert latency("matmul-512-512-128-2-mnk-4096") == pytest.approx(2048 * 1000 / 2, rel=0.02)
    assert latency("matmul-512-512-512-2-mnk-4096") == pytest.approx(512 * 1000 / 2, rel=0.02)


def test_larger_blocks_of_the_contraction_are_faster(ms):
    times = [ms(f"matmul-512-512-{k}-2-mnk-4096") for k in (128, 256, 512)]
    assert times == sorted(times, reverse=True)


# ---- the stored results


def test_the_stored_results_are_of_todays_kernels_and_parameters(study, records):
    run, space = study
    stored = {run.Results.key(one["kernel"], one["parameters"]): one for one in records}
    assert len(stored) == len(records)
    wanted = {run.Results.key(k, each) for k, many in space.SPACE.items() for each in many}
    assert stored.keys() == wanted, "run scripts/study_variants.py run"
    stale = {one["kernel"] for one in records if one["text"] != run.text_hash(one["kernel"])}
    assert not stale, "their texts have changed: run scripts/study_variants.py run"


def test_at_least_150_variants_of_six_kernels_compiled_and_were_followed(records):
    compiled = [one for one in records if one["status"] == "compiled"]
    assert len(compiled) >= 150
    assert len({one["kernel"] for one in compiled}) >= 6
    assert not [one for one in compiled if one["uncertain"]]


def test_the_parts_of_a_stored_time_add_up_and_none_is_negative(records):
    for one in records:
        if one["status"] != "compiled":
            continue
        parts = [one[part] for part in ("issue_ms", "transfer_ms", "latency_ms")]
        whole = one["ms"] - one.get("launch_ms", 0)
        assert sum(parts) == pytest.approx(whole, abs=1e-5), one["parameters"]
        assert min(parts) > -1e-3, one["parameters"]
        assert one["ms"] >= 0.999 * max(one["issue_ms"], one["bandwidth_ms"]), one["parameters"]


def test_more_buffers_are_never_slower_among_the_stored_results(records):
    groups = {}
    for one in records:
        if one["status"] == "compiled" and "buffers" in one["parameters"]:
            rest = {k: v for k, v in one["parameters"].items() if k != "buffers"}
            key = json.dumps([one["kernel"], rest])
            groups.setdefault(key, {})[one["parameters"]["buffers"]] = one["ms"]
    compared = 0
    for key, times in groups.items():
        ordered = [times[buffers] for buffers in sorted(times)]
        for fewer, more in zip(ordered, ordered[1:], strict=False):
            compared += 1
            assert more <= 1.02 * fewer, (key, times)
    assert compared >= 50


# ---- the study itself


def test_a_run_compiles_what_is_missing_and_nothing_twice(study, tmp_path, monkeypatch):
    run, _ = study
    monkeypatch.setenv("JAXBENCH_CACHE", str(tmp_path / "cache"))
    parameters = {"rows": 64, "buffers": 1, "total": 256}
    archive = run.dump_path("rms_norm", parameters)
    record = run.compile_variant("rms_norm", parameters, keep=archive)
    assert record["status"] == "compiled", record
    record |= {"kernel": "rms_norm", "parameters": parameters}
    record |= run.price("rms_norm", parameters)
    # four blocks, each of which waits for its load and its store
    latency = 8 * K.dma_latency / K.clock_hz * 1e3
    assert record["latency_ms"] == pytest.approx(latency, rel=0.2)
    results = run.Results(tmp_path / "results.jsonl")
    results.append(record)
    with results.path.open("a") as file:
        file.write('{"kernel": "rms_norm", "param')  # killed while it wrote
    assert run.Results(results.path).get("rms_norm", parameters) == record
