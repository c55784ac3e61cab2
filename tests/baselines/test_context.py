import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import workloads
from baselines import kernels
from baselines.context import context_for, reference, rules, sections, select, text_of
from baselines.context.rules import every_rule
from jaxbench_env.cli import main
from jaxbench_env.evaluator.audit import names
from workloads import chip

KEPT = json.loads((Path(__file__).parents[2] / "docs" / "context_rules.json").read_text())
RULES = {rule.name: rule for rule in rules()}
FAST = "block_tiles"


@pytest.mark.parametrize("name", workloads.ids())
def test_a_context_fits_and_shows_no_kernel_of_the_family(name):
    text = context_for(name)
    assert len(text.encode()) <= 30_000
    family = workloads.get(name).family
    for other in kernels.ids():
        if workloads.get(other).family == family:
            assert kernels.source(other).strip().splitlines()[0] not in text
            assert f"### {other}:" not in text
    assert "## Rules" in text and "## API" in text and "## Kernels for other operators" in text


@pytest.mark.parametrize("budget", [0, 100, 1000, 9_999, 10**6])
def test_a_budget_is_kept(budget):
    assert len(context_for("gqa_attention", budget).encode()) <= budget


def test_all_is_used_where_it_fits():
    found = sections("gqa_attention")
    assert {*select(found, 10**6)} == {*found}
    whole = len(text_of(select(found, 10**6)).encode())
    assert {*select(found, whole)} == {*found}
    assert len(select(found, whole - 1)) < len(found)


def test_a_context_is_the_same_every_time():
    first = context_for("sparse_moe", 20_000)
    reference.entries.cache_clear()
    every_rule.cache_clear()
    assert context_for("sparse_moe", 20_000) == first


def test_what_a_workload_needs_comes_first():
    def place(workload, name):
        return [section.name for section in sections(workload)].index(name)

    assert place("paged_attention", "gathers") < place("rms_norm", "gathers")
    assert place("gemm", "product_dtype") < place("rms_norm", "product_dtype")
    assert place("mamba2_scan", "cumsum") < place("gemm", "cumsum")


def test_the_same_computation_in_another_family_is_not_shown():
    assert "gemm" not in {section.name for section in sections("ragged_dot")}
    assert "ragged_dot" not in {section.name for section in sections("gemm")}


def test_the_chip_is_the_target():
    for target in ("v6e", "v5e"):
        assert chip(target).describe() in context_for("gemm", target=target)


def test_bad_arguments_are_named():
    with pytest.raises(workloads.UnknownWorkload, match="did you mean"):
        context_for("gem")
    with pytest.raises(ValueError, match="at least 0"):
        context_for("gemm", -1)
    with pytest.raises(ValueError, match="unknown target"):
        context_for("gemm", target="v9")


def test_a_workload_of_ones_own_has_a_context():
    path = Path(__file__).parents[1] / "fixtures" / "workloads" / "scaled_softmax.py"
    assert "## Rules" in context_for(str(path))


def test_the_reference_holds_what_kernels_may_use():
    modules = {"pl": (pl, names.PALLAS), "pltpu": (pltpu, names.PALLAS_TPU)}
    entries = reference.entries()
    assert {"pl.pallas_call", "pl.BlockSpec", "pltpu.make_async_copy"} <= {e.name for e in entries}
    for entry in entries:
        if entry.name == "primitives":
            assert "dot_general" in entry.text and "sort" not in entry.text
            continue
        module, _, name = entry.name.partition(".")
        assert name in dir(modules[module][0])
        assert names.MODULES[modules[module][1]].allows(name)
        assert "<" not in entry.text.partition(":")[0], "an address or a type without a name"


def test_there_are_enough_rules():
    assert len(RULES) >= 45
    assert len({rule.text for rule in rules()}) == len(RULES)


@pytest.mark.parametrize("version", KEPT)
@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: rule.name)
def test_every_rule_was_shown(rule, version):
    """Run scripts/witness_rules.py NAME after changing a rule or its witness."""
    if rule.holds_with(version):
        seen = KEPT[version]["rules"].get(rule.name)
        assert seen, f"not tried with {version}"
        assert seen["sha256"] == rule.sha256, "the rule changed after it was tried"
        assert seen["ok"]


def test_rules_are_for_versions_of_jax():
    later = {rule.name for rule in every_rule() if not rule.holds_with("0.12.0")}
    assert later and later <= {rule.name for rule in every_rule() if rule.holds_with("0.10.2")}


@pytest.mark.parametrize(
    "name", [n if n == FAST else pytest.param(n, marks=pytest.mark.slow) for n in RULES]
)
def test_a_witness_shows_its_rule(name):
    verdict = RULES[name].check()
    assert verdict.ok, f"twin {verdict.twin}; broken {verdict.broken}"


def test_the_command_prints_the_context():
    result = CliRunner().invoke(main, ["context", "gemm", "--budget", "5000"])
    assert result.exit_code == 0 and result.output == context_for("gemm", 5000)
    data = json.loads(CliRunner().invoke(main, ["context", "gemm", "--json"]).output)
    assert data["text"] == context_for("gemm") and data["bytes"] == len(data["text"].encode())
    assert {s["kind"] for s in data["sections"]} == {"chip", "rules", "api", "examples"}
