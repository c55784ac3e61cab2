"""What is in the distribution."""

import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("baselines", "jaxbench_env", "reward", "workloads")


def _files(folder):
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder.parent)
        caches = any(part == "__pycache__" or part.startswith(".") for part in inside.parts)
        if path.is_file() and not caches:
            yield inside.as_posix()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds the wheel from a copy: a build leaves files in the tree that it builds from."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("out")
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / package, tree / package, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    # Folders that are no packages of ours must stay out even if they look like packages.
    for name in ("tests", "scripts"):
        (tree / name).mkdir()
        (tree / name / "__init__.py").touch()
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out)]
    if int(metadata.version("setuptools").split(".")[0]) >= 77:  # what pyproject.toml asks for
        command.append("--no-isolation")
    built = subprocess.run([*command, str(tree)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_exactly_the_four_packages(wheel, names):
    assert wheel.name.startswith("jaxbench_env-")
    tops = {name.split("/")[0] for name in names}
    information = {top for top in tops if top.endswith(".dist-info")}
    assert len(information) == 1
    assert tops - information == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_a_package_is_in_the_wheel(names, package):
    """Sources in folders without __init__.py and data of unlisted kinds would be left out."""
    missing = [file for file in _files(ROOT / package) if file not in names]
    assert not missing


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(names, package):
    assert f"{package}/py.typed" in names


def test_the_licence_and_the_command_are_in_the_wheel(wheel, names):
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = [n for n in names if n.endswith(".dist-info/entry_points.txt")]
        assert "jaxbench = jaxbench_env.cli:main" in archive.read(entry_points).decode()
        (information,) = [n for n in names if n.endswith(".dist-info/METADATA")]
        assert "License-Expression: Apache-2.0" in archive.read(information).decode()
