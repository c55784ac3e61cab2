"""Workloads of the user's own: what a file may say, what is wrong with bad ones, and evaluation."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import pytest

import jaxbench_env
import workloads
from jaxbench_env.evaluator import baseline as baselines
from jaxbench_env.evaluator import estimate, tracing
from jaxbench_env.evaluator.build import installed_versions
from jaxbench_env.evaluator.judge.worker import named
from workloads import registry

FILES = Path(__file__).resolve().parents[1] / "fixtures" / "workloads"
SOFTMAX, MATMUL = FILES / "scaled_softmax.py", FILES / "relu_matmul.py"

HEAD = "import jax, jax.numpy as jnp, numpy as np\nfrom jax import lax\n"
CONFIG = "CONFIG = {'n': 256}\n"
INPUTS = """
def create_inputs(dtype=jnp.bfloat16):
    return (jax.random.normal(jax.random.key(0), (CONFIG['n'], 128), dtype=dtype),)
"""
WORKLOAD = "def workload(x):\n    return x * 2\n"


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(HEAD + textwrap.dedent(text))
        return path

    return write_file


@pytest.fixture
def unregistered():
    """Takes back what a test registers: other tests look at every registered workload."""
    known, specs = dict(registry._WORKLOADS), dict(gym.registry)
    yield
    registry._WORKLOADS.clear()
    registry._WORKLOADS.update(known)
    for name in gym.registry.keys() - specs.keys():
        del gym.registry[name]


def test_a_file_becomes_a_workload():
    workload = workloads.load(SOFTMAX)
    assert workload.id == "scaled_softmax" and workload.model == "a test"
    assert list(workload.presets) == ["v6e"] and workload.check_presets == ("v6e",)
    assert {k: str(s) for k, s in workload.presets["v6e"].args.items()} == {
        "x": "bfloat16[512,1024]",
        "bias": "bfloat16[1024]",
    }
    assert str(workload.output("v6e")) == "bfloat16[512,1024]"
    assert workload.min_hbm_bytes() == 2 * (2 * 512 * 1024 + 1024)
    assert workload.flops_useful(workload.sizes["v6e"]) == pytest.approx(8 * 512 * 1024, rel=0.3)
    text = workload.task_text()
    assert SOFTMAX.read_text().rstrip() in text and "checked at preset `v6e`" in text
    assert workload.messages()[1]["content"] == text


def test_presets_static_arguments_and_tolerance():
    workload = workloads.load(MATMUL)
    assert workload.check_presets == ("tiles", "varied")
    assert workload.arguments == ("x", "w", "shift")
    assert [str(p.args["x"]) for p in workload.presets.values()] == [
        "bfloat16[512,1024]",
        "bfloat16[256,512]",
        "bfloat16[96,192]",
    ]
    assert dict(workload.presets["varied"].config) == {
        "name": "relu_matmul",
        "M": 96,
        "K": 192,
        "N": 384,
        "shift": 1,
    }
    assert workload.tolerance == workloads.Tolerance(rel=0.03)
    assert workload.flops(workload.sizes["tiles"]) == pytest.approx(2 * 256 * 512 * 512, rel=0.01)
    x, w = workload.inputs("varied", "nominal", 5)
    out = np.asarray(workload.reference(workload.presets["varied"].config, x, w), np.float32)
    wide = x.astype(np.float32) @ w.astype(np.float32)
    np.testing.assert_allclose(out, np.maximum(wide / 2, 0), atol=0.05)


def test_the_same_file_is_the_same_workload_until_it_changes(write):
    path = write(CONFIG + INPUTS + WORKLOAD)
    first = workloads.get(str(path))
    assert workloads.load(path) is first and workloads.get(path) is first
    path.write_text(path.read_text().replace("x * 2", "x * 3"))
    second = workloads.load(path)
    assert second is not first and second.version != first.version and second.id == first.id


def test_a_file_may_do_as_it_likes(write, capsys):
    """Print, draw from numpy's global generator, hold dataclasses, ints, truth values."""
    path = write("""
        import dataclasses
        print("hello")
        CONFIG = {"name": "not an id", "n": np.int64(64), "f": lambda x: x, "rtol": 0.05}

        @dataclasses.dataclass
        class Shape:
            rows: "int" = 1

        def create_inputs(dtype=jnp.bfloat16):
            values = np.random.normal(size=(CONFIG["n"], 128)).astype(np.float32)
            if np.asarray(jnp.ones(2)).sum() != 2:  # cannot be traced
                raise AssertionError
            return [jnp.asarray(values, dtype), np.arange(64), np.arange(128) % 2 == 0]

        def workload(*inputs):
            x, order, mask = inputs
            return jnp.where(mask, x[order], 0.0) * CONFIG["f"](2)
        """)
    workload = workloads.load(path.rename(path.with_name("2 My-file.py")))
    assert capsys.readouterr().out == ""
    assert workload.id == "workload_2_my_file"
    assert workload.tolerance.rel == 0.05
    assert workload.arguments == ("inputs_0", "inputs_1", "inputs_2")
    assert [str(s) for s in workload.presets["v6e"].args.values()] == [
        "bfloat16[64,128]",
        "int32[64]",
        "bool[128]",
    ]
    assert dict(workload.presets["v6e"].config) == {"name": "not an id", "n": 64, "rtol": 0.05}
    x, order, mask = workload.inputs("v6e", "shifted", 1)
    assert order.tolist() == [*range(64)] and mask.sum() == 64 and x.std() > 0


def test_loading_starts_no_accelerator(write):
    code = (
        "import sys, workloads; from jax._src import xla_bridge\n"
        "w = workloads.load(sys.argv[1]); w.task_text()\n"
        "assert not xla_bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", code, str(MATMUL)], check=True)


BAD = {
    "no CONFIG": (INPUTS + WORKLOAD, ["no dict `CONFIG`", "top level"]),
    "CONFIG is a list": ("CONFIG = [1]\n" + INPUTS + WORKLOAD, ["no dict `CONFIG`"]),
    "no create_inputs": (CONFIG + WORKLOAD, ["no function `create_inputs`", "dtype=jnp.bfloat16"]),
    "no workload": (CONFIG + INPUTS, ["no function `workload`", "Define `workload(*inputs)`"]),
    "not Python": (CONFIG + "def workload(x:\n", ["line 4", "not valid Python"]),
    "raises": (CONFIG + "import no_such_thing\n", ["line 4", "ModuleNotFoundError", "self-cont"]),
    "exits": (CONFIG + "raise SystemExit(3)\n", ["line 4", "SystemExit"]),
    "64 bits": (
        "jax.config.update('jax_enable_x64', True)\n" + CONFIG + INPUTS + WORKLOAD,
        ["64 bits", "float32"],
    ),
    "float64": (
        CONFIG + "def create_inputs(dtype=None):\n    return (np.ones((8, 128)),)\n" + WORKLOAD,
        ["input 0", "float64", "cast it"],
    ),
    "too many inputs": (
        CONFIG + INPUTS + "def workload():\n    return jnp.ones(3)\n",
        ["`workload()`", "1 inputs", "as many inputs"],
    ),
    "too few inputs": (
        CONFIG + INPUTS + "def workload(x, y):\n    return x + y\n",
        ["`workload(x, y)`", "'y'"],
    ),
    "other arguments": (
        CONFIG + "def create_inputs(n):\n    return (jnp.ones(n),)\n" + WORKLOAD,
        ["`create_inputs` cannot be called with ()", "'n'"],
    ),
    "create_inputs raises": (
        CONFIG + "def create_inputs(dtype=None):\n    return (jnp.ones(CONFIG['m']),)\n" + WORKLOAD,
        ["line 5", "`create_inputs` raises KeyError: 'm'"],
    ),
    "a dict of inputs": (
        CONFIG + "def create_inputs():\n    return {'x': jnp.ones(3)}\n" + WORKLOAD,
        ["returns a dict", "tuple of arrays"],
    ),
    "no array": (CONFIG + "def create_inputs():\n    return ()\n" + WORKLOAD, ["no array"]),
    "a truth value": (
        CONFIG + "def create_inputs():\n    return jnp.ones(3), True\n" + WORKLOAD,
        ["input 1", "a bool", "CONFIG"],
    ),
    "a float": (
        CONFIG + "def create_inputs():\n    return jnp.ones(3), 0.5\n" + WORKLOAD,
        ["input 1", "a float", "CONFIG"],
    ),
    "a random key": (
        CONFIG + "def create_inputs():\n    return (jax.random.key(0),)\n" + WORKLOAD,
        ["key<fry>", "key_data"],
    ),
    "an int first": (
        CONFIG + "def create_inputs():\n    return jnp.ones(3), 2, jnp.ones(3)\n" + WORKLOAD,
        ["array after a Python int", "ints last"],
    ),
    "an int unlike CONFIG": (
        CONFIG
        + "def create_inputs():\n    return jnp.ones(3), 2\n"
        + "def workload(x, n):\n    return x * n\n",
        ["`n` is 2", "CONFIG['n'] is 256"],
    ),
    "inputs of chance": (
        CONFIG
        + "def create_inputs():\n"
        + "    x = np.random.default_rng().normal(size=9).astype('float32')\n    return (x,)\n"
        + WORKLOAD,
        ["other values each time", "`seed` or `key`"],
    ),
    "branches on values": (
        CONFIG + INPUTS + "def workload(x):\n    return x if x[0, 0] > 0 else -x\n",
        ["line 8", "looks at values", "TracerBoolConversionError", "lax.cond"],
    ),
    "shapes of values": (
        CONFIG + INPUTS + "def workload(x):\n    return x[x > 0]\n",
        ["looks at values", "masks"],
    ),
    "numpy": (
        CONFIG + INPUTS + "def workload(x):\n    return jnp.asarray(np.sort(x))\n",
        ["looks at values"],
    ),
    "workload raises": (
        CONFIG + INPUTS + "def workload(x):\n    return x @ x\n",
        ["line 8", "`workload` raises TypeError", "jax.jit"],
    ),
    "whole numbers": (
        CONFIG + INPUTS + "def workload(x):\n    return jnp.argmax(x, axis=-1)\n",
        ["int32", "not a floating one"],
    ),
    "two results": (
        CONFIG + INPUTS + "def workload(x):\n    return x, x + 1\n",
        ["a tuple of 2 arrays", "Only one array"],
    ),
    "no result": (
        CONFIG + INPUTS + "def workload(x):\n    pass\n",
        ["NoneType of 0 arrays", "return the array"],
    ),
    "a constant result": (
        CONFIG + INPUTS + "def workload(x):\n    return jnp.zeros_like(x) + 1\n",
        ["does not depend on the values"],
    ),
    "a kernel": (
        CONFIG
        + INPUTS
        + "from jax.experimental import pallas as pl\n"
        + "def workload(x):\n"
        + "    def k(i, o):\n        o[...] = i[...]\n"
        + "    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)\n",
        ["calls Pallas", "plain JAX"],
    ),
    "more than HBM": (
        "CONFIG = {'n': 10**8}\n" + INPUTS + WORKLOAD,
        ["51.2 GB", "34.4 GB of HBM", "smaller"],
    ),
    "PRESETS without tiles": (
        CONFIG + "PRESETS = {'varied': {'n': 96}}\n" + INPUTS + WORKLOAD,
        ["lacks 'tiles'"],
    ),
    "an unknown preset": (
        CONFIG + "PRESETS = {'small': {'n': 96}}\n" + INPUTS + WORKLOAD,
        ["tiles and varied"],
    ),
    "an unknown key": (
        CONFIG + "PRESETS = {'tiles': {'m': 96}}\n" + INPUTS + WORKLOAD,
        ["changes m, which CONFIG does not have"],
    ),
    "a preset of functions": (
        CONFIG + "PRESETS = {'tiles': {'n': max}}\n" + INPUTS + WORKLOAD,
        ["PRESETS['tiles']", "numbers and text"],
    ),
    "an unknown tolerance": (
        CONFIG + "TOLERANCE = {'atol': 1}\n" + INPUTS + WORKLOAD,
        ["TOLERANCE", "rel, xla_factor, floor"],
    ),
    "a negative tolerance": (
        CONFIG + "TOLERANCE = {'rel': -1}\n" + INPUTS + WORKLOAD,
        ["not positive"],
    ),
    "a long file": (
        CONFIG + INPUTS + WORKLOAD + "#" * 40_000,
        ["characters", "Leave only the reference"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_told_what_is_wrong(name, write):
    text, words = BAD[name]
    path = write(text)
    with pytest.raises(workloads.WorkloadFileError) as caught:
        workloads.load(path)
    message = str(caught.value)
    assert message.startswith(str(path)), message
    assert all(word in message for word in words), message
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize(
    ("data", "words"),
    [(None, "cannot be read: No such file"), (b"\xff\xfe", "not text in UTF-8"), (b"\0", "Python")],
)
def test_what_is_no_python_file_is_refused(data, words, tmp_path):
    path = tmp_path / "mine.py"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(workloads.WorkloadFileError, match=words):
        workloads.load(path)


def test_the_estimate_grows_with_the_sizes_that_are_checked(write):
    small = workloads.load(MATMUL)
    large = workloads.load(
        write(
            "CONFIG = {'n': 1 << 20}\n" + INPUTS + "def workload(x):\n    return x @ x.T[:, :256]\n"
        )
    )
    assert estimate.numerics_seconds(small) < 5 < 40 < estimate.numerics_seconds(large)
    assert estimate.numerics_limit(small) == estimate.LEAST_LIMIT
    assert estimate.numerics_limit(large) > estimate.LEAST_LIMIT


def test_a_baseline_belongs_to_the_content_of_the_file(write, monkeypatch):
    made = []

    def make(workload, target):
        made.append(workload)
        return baselines.Baseline(1.0, False, (), 0, 0.0)

    monkeypatch.setattr(baselines, "make", make)
    path = write(CONFIG + INPUTS + WORKLOAD)
    for text in ("x * 2", "x * 2", "x * 3"):
        path.write_text(path.read_text().replace("x * 2", text))
        baselines.baseline(workloads.load(path), "v6e", installed_versions(), 1)
    assert len(made) == 2


def test_the_children_never_see_the_file(monkeypatch):
    seen = {}

    class Sandbox:
        def start(self, kind, job, files, limits):
            seen.update(job=job, files=files)

    monkeypatch.setattr(tracing, "sandbox", Sandbox)
    workload = workloads.load(SOFTMAX)
    tracing.start(workload, "the kernel", "TPU v6 lite", tracing.LIMITS)
    x, bias = workload.inputs("v6e", "nominal", tracing.PUBLIC_SEED)
    assert seen["files"] == {"v6e.0": x.tobytes(), "v6e.1": bias.tobytes()}
    sent = json.dumps(seen["job"])
    assert "create_inputs" not in sent and str(FILES) not in sent
    assert named(workload)["file"]["text"] == SOFTMAX.read_text()
    assert named(workloads.get("gemm")) == {"workload": "gemm", "variant": "default"}


def test_evaluation_of_right_and_wrong_kernels():
    source = (FILES / "scaled_softmax_kernel.py").read_text()
    result = jaxbench_env.evaluate(str(SOFTMAX), source, seed=1)
    assert result.status in ("ok", "slower"), result.message
    assert [c.preset for c in result.numerics] == ["v6e"] * 3 and not {
        "shape_specialised",
        "races_unchecked",
    } & set(result.flags)
    forgetful = source.replace('CONFIG["scale"] + bias', 'CONFIG["scale"] + 0 * bias')
    result = jaxbench_env.evaluate(SOFTMAX, forgetful, seed=1)
    assert result.status == "incorrect" and "shifted" in result.message
    assert result.provenance.workload == "scaled_softmax"


def test_a_kernel_as_the_published_ones_are_runs_unchanged_at_every_preset():
    workload = workloads.load(MATMUL)
    source = (FILES / "relu_matmul_kernel.py").read_text()
    result = jaxbench_env.evaluate(workload, source, seed=1)
    assert result.status in ("ok", "slower"), result.message
    assert {c.preset for c in result.numerics} == {"tiles", "varied"}
    stubborn = source.replace(
        "(m, k), n = x.shape, w.shape[1]", 'm, k, n = (CONFIG[i] for i in "MKN")'
    )
    assert stubborn != source
    result = jaxbench_env.evaluate(workload, stubborn, seed=1)
    assert result.status == "wrong_signature" and "at preset tiles" in result.message


def test_a_registered_workload_is_an_environment(unregistered):
    workload = jaxbench_env.register_workload(MATMUL)
    assert workloads.get("relu_matmul") is workload and workloads.ids()[-1] == "relu_matmul"
    assert jaxbench_env.register_workload(workload) is workload
    env = gym.make("JAXBench/relu_matmul", max_attempts=1)
    observation, _ = env.reset(seed=1)
    assert observation["task"] == workload.task_text()
    source = (FILES / "relu_matmul_kernel.py").read_text()
    _, reward, terminated, _, info = env.step(source.replace("jnp.maximum", "jnp.minimum"))
    assert terminated and reward == 1 and info["result"]["status"] == "incorrect"


def test_an_id_belongs_to_one_file(unregistered, write):
    first = write(CONFIG + INPUTS + WORKLOAD)
    jaxbench_env.register_workload(first)
    first.write_text(first.read_text() + "# edited\n")
    assert jaxbench_env.register_workload(first) is workloads.get("mine")
    other = write("CONFIG = {'name': 'mine', 'n': 8}\n" + INPUTS + WORKLOAD, "other.py")
    with pytest.raises(
        ValueError, match=r"'mine' is registered already by .*mine\.py; give CONFIG"
    ):
        jaxbench_env.register_workload(other)
    with pytest.raises(ValueError, match="'gemm' is registered already by the suite"):
        jaxbench_env.register_workload(write(CONFIG + INPUTS + WORKLOAD, "gemm.py"))
    with pytest.raises(ValueError, match="does not come from a file"):
        jaxbench_env.register_workload(workloads.get("gemm"))
