"""What holds for every workload, and the facts of the published suite."""

import importlib.util
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import workloads

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
FACTS = json.loads((ROOT / "tests" / "fixtures" / "workload_facts.json").read_text())
# Axes that a kernel does not tile: they may have any size at the small presets.
OUTER_AXES = {
    "B", "Hq", "Hkv", "T", "num_seqs", "max_seqs", "tokens", "pages_per_seq", "num_groups", "G",
}  # fmt: skip
OUTER_AXES_OF_FAMILY = {
    "attention": {"H"},
    "scan": {"H"},
    "moe": {"N"},  # experts
    "conv": {"D", "Do"},  # depth
}
# Sizes that follow from others: the output of a convolution, of a transposed one.
DERIVED = {"Ho", "Wo", "Do"}
# N enters the work of a triangle multiplication cubed.
TOO_LARGE = {("triangle_multiplication", "N")}


def tiled_axes(workload):
    """Names of the sizes that kernels divide into blocks."""
    outer = OUTER_AXES | OUTER_AXES_OF_FAMILY.get(workload.family, set()) | DERIVED
    if workload.id == "ragged_dot":  # here N is a feature axis and G the groups
        outer -= {"N"}
    if workload.id == "megablox_gmm":
        outer = outer - {"N"} | {"max_expert_size"}
    return [axis for axis in workload.sizes["tiles"] if axis not in outer]


every = pytest.mark.parametrize("workload", list(workloads.every()), ids=lambda w: w.id)


def test_the_registry_has_the_published_workloads():
    assert set(workloads.ids()) >= FACTS.keys()
    assert len(set(workloads.ids())) == len(list(workloads.every()))


@every
def test_a_workload_is_found_by_any_of_its_names(workload):
    full = f"{workload.number}_{workload.upstream_name}"
    for name in (workload.id, workload.number, workload.upstream_name, full):
        assert workloads.get(name) is workload


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(workloads.UnknownWorkload, match="did you mean 'mamba2_scan'?"):
        workloads.get("mamba_scan")
    with pytest.raises(KeyError, match="known ids: .*gemm"):
        workloads.get("0123456789")


def test_an_id_is_registered_once():
    with pytest.raises(ValueError, match="'gemm' is registered already"):
        workloads.register(workloads.get("gemm"))


@every
def test_tiles_keeps_every_tiled_axis_a_multiple_of_1024(workload):
    v6e, tiles = workload.sizes["v6e"], workload.sizes["tiles"]
    assert v6e.keys() == tiles.keys()
    for axis in tiled_axes(workload):
        if (workload.id, axis) in TOO_LARGE:
            continue
        assert tiles[axis] % 1024 == 0 or tiles[axis] == v6e[axis], axis
    assert all(tiles[axis] <= v6e[axis] for axis in tiles)


@every
def test_varied_has_sizes_of_three_times_a_power_of_two(workload):
    v6e, varied = workload.sizes["v6e"], workload.sizes["varied"]
    assert v6e.keys() == varied.keys()
    for axis in tiled_axes(workload):
        third, rest = divmod(varied[axis], 3)
        power = rest == 0 and third & (third - 1) == 0
        assert power or varied[axis] == v6e[axis], axis
    assert any(varied[axis] != v6e[axis] for axis in tiled_axes(workload))


@every
def test_the_checked_presets_are_small_enough_to_run_on_a_cpu(workload):
    for name in ("tiles", "varied"):
        assert workload.flops(workload.sizes[name]) < 2e10
        assert workload.presets[name].nbytes < 1 << 28


# Facts that are explained in words and the same at every preset; references show what they mean.
WORDS = {"direction", "gamma", "max_expert_size"}


def _number(value, config):
    """A fact that may be given as a formula of the sizes."""
    if not isinstance(value, str):
        return float(value)
    value = value.replace("float32 max", repr(float(np.finfo(np.float32).max)))
    return eval(value, {}, dict(config))


def _check_facts(workload, facts):
    for key in ("number", "upstream_name", "family", "model"):
        assert getattr(workload, key) == facts[key]
    v6e = workload.presets["v6e"]
    assert list(workload.arguments) == facts["args"]
    described = {k: v for k, v in facts["v6e"]["args"].items() if k in v6e.args}
    assert {name: (list(s.shape), s.dtype) for name, s in v6e.args.items()} == {
        name: (spec["shape"], spec["dtype"]) for name, spec in described.items()
    }
    output = workload.output("v6e")
    assert (list(output.shape), output.dtype) == (
        facts["v6e"]["output"]["shape"],
        facts["v6e"]["output"]["dtype"],
    )
    for name, value in {**facts["v6e"]["config"], **facts["v6e"]["published_config"]}.items():
        if name in ("clamp", "hardtanh"):  # an interval; configurations hold numbers only
            assert [v6e.config[f"{name}_min"], v6e.config[f"{name}_max"]] == value
        elif name not in WORDS:
            assert v6e.config[name] == pytest.approx(_number(value, v6e.config), rel=1e-12)
    assert workload.flops(workload.sizes["v6e"]) == facts["flops"]
    # Where the published form does not depend on its inputs, the default one has more to do.
    repaired = workload.published_reference is not None
    useful = facts["flops"] if repaired else facts["flops_useful"]
    assert workload.flops_useful(workload.sizes["v6e"]) == useful
    assert workload.min_hbm_bytes() == facts["hbm_bytes_min"]


@pytest.mark.parametrize("name", FACTS)
def test_the_published_facts_hold(name):
    _check_facts(workloads.get(name), FACTS[name])


@every
def test_the_facts_of_the_whole_suite_hold(workload):
    path = SHARED / "workloads.json"
    if not path.exists():
        pytest.skip("the file with the facts of all published workloads is not here")
    facts = {entry["id"]: entry for entry in json.loads(path.read_text())["workloads"]}
    entry = facts[workload.id]
    _check_facts(workload, {**entry, "v6e": entry["presets"]["v6e"]})


@every
@pytest.mark.parametrize("draw", workloads.DRAWS)
def test_inputs_are_a_function_of_preset_draw_and_seed(workload, draw):
    first = workload.inputs("varied", draw, 7)
    again = workload.inputs("varied", draw, 7)
    for array, twin, spec in zip(
        first, again, workload.presets["varied"].args.values(), strict=True
    ):
        assert array.tobytes() == twin.tobytes()
        assert array.shape == spec.shape and array.dtype == spec.np_dtype
        assert np.isfinite(array.astype(np.float32)).all()


@every
def test_inputs_differ_between_seeds_and_between_draws(workload):
    drawn = [
        workload.inputs("varied", draw, seed) for draw in workloads.DRAWS for seed in (0, 1, 2)
    ]
    for i, name in enumerate(workload.presets["varied"].args):
        assert len({arrays[i].tobytes() for arrays in drawn}) >= 3, name
    whole = {b"".join(array.tobytes() for array in arrays) for arrays in drawn}
    assert len(whole) == len(drawn)


@every
def test_no_input_is_constant(workload):
    for draw in workloads.DRAWS:
        for array in workload.inputs("varied", draw, 0):
            values = array.astype(np.float32)
            assert values.size == 1 or values.std() > 0.05 * np.abs(values).mean()


def test_an_unknown_draw_or_preset_is_refused():
    with pytest.raises(ValueError, match="unknown draw 'usual'; draws are nominal"):
        workloads.get("gemm").inputs("varied", "usual", 0)
    with pytest.raises(KeyError):
        workloads.get("gemm").inputs("small", "nominal", 0)


@every
def test_presets_cannot_be_changed(workload):
    with pytest.raises(TypeError):
        workload.presets["v6e"].config["B"] = 1
    with pytest.raises(TypeError):
        workload.presets["v6e"] = None
    with pytest.raises(AttributeError):
        workload.id = "other"


@every
def test_the_task_text_says_all_that_a_kernel_needs_to_know(workload):
    text = workload.task_text()
    assert f"`workload({', '.join(workload.arguments)})`" in text
    for name, preset in workload.presets.items():
        for argument, spec in preset.args.items():
            assert f"{argument}: {spec}" in text
        assert f"-> {workload.output(name)}" in text
        assert str(dict(preset.config)) in text
    assert workload.reference_source().strip() in text
    assert workloads.chip("v6e").describe() in text
    assert f"{workload.roofline_ms():.3f} ms" in text


@every
def test_the_messages_are_a_system_and_a_user_message(workload):
    system, user = workload.messages()
    assert (system["role"], user["role"]) == ("system", "user")
    assert "Pallas" in system["content"]
    assert user["content"] == workload.task_text()


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match="unknown target 'v99'; known targets: v6e"):
        workloads.get("gemm").task_text("v99")


def test_the_chip_is_as_its_maker_describes_it():
    chip = workloads.chip("v6e")
    assert chip.bf16_flops_per_second == pytest.approx(918e12, rel=0.01)
    assert chip.hbm_bytes_per_second == pytest.approx(1640e9, rel=0.02)
    assert chip.vmem_bytes == 128 << 20
    assert chip.mxus == 2 and chip.mxu_size == 256


@every
def test_the_roofline_is_the_larger_of_compute_and_traffic(workload):
    chip = workloads.chip("v6e")
    compute = workload.flops_useful(workload.sizes["v6e"]) / chip.bf16_flops_per_second
    traffic = workload.min_hbm_bytes() / chip.hbm_bytes_per_second
    assert workload.roofline_ms() == pytest.approx(1e3 * max(compute, traffic))


def _golden_folder():
    folder = os.environ.get("JAXBENCH_GOLDEN")
    return Path(folder) if folder else SHARED / "golden"


def _provider():
    spec = importlib.util.spec_from_file_location(
        "golden_provider", ROOT / "tests" / "golden_provider.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get


@every
@pytest.mark.parametrize("mode", ["f32", "bf16"])
def test_the_golden_vectors_are_met(workload, mode):
    """Outputs of the published suite, held to the tolerances that the files themselves state."""
    path = _golden_folder() / f"{workload.id}.npz"
    if not path.exists():
        pytest.skip("no golden vectors here; set JAXBENCH_GOLDEN to their folder")
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    meta = json.loads(str(arrays["meta"]))
    inputs = {name: arrays[name] for name in meta["args"]}
    want = arrays["golden_f32" if mode == "f32" else "out_bf16"].astype(np.float64)
    if mode == "bf16":
        for name in meta["args"]:
            if inputs[name].dtype == np.float32 and name not in meta["keep_float32_in_bf16_run"]:
                inputs[name] = arrays.get(f"{name}__bf16", inputs[name]).astype(ml_dtypes.bfloat16)
    got = np.asarray(_provider()(workload.id)(**inputs)).astype(np.float64)
    assert got.shape == want.shape and np.isfinite(got).all()
    error, rms = np.abs(got - want), np.sqrt(np.mean(want * want))
    if not rms:  # a published form that is zero for any input
        assert error.max() <= 1e-3 * meta[f"tol_{mode}"]
        return
    assert (error / (rms + np.abs(want))).max() <= meta[f"tol_{mode}"]
    if mode == "bf16":
        assert np.sqrt(np.mean(error * error)) / rms <= meta["tol_bf16_rms"]
