import ast
import sys

import pytest

import workloads
from baselines import kernels
from jaxbench_env.evaluator.audit import audit


def test_every_kernel_belongs_to_a_workload():
    assert kernels.ids()
    assert set(kernels.ids()) <= set(workloads.ids())


@pytest.mark.parametrize("name", kernels.ids())
def test_a_kernel_defines_workload_with_the_arguments_of_its_workload(name):
    tree = ast.parse(kernels.source(name))
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    arguments = functions["workload"].args.args
    workload = workloads.get(name)
    assert len(arguments) == len(workload.presets["v6e"].args) + len(workload.static_arguments)


@pytest.mark.parametrize("name", kernels.ids())
def test_a_kernel_passes_the_audit(name):
    assert audit(kernels.source(name)) is None


def test_reading_a_kernel_does_not_import_it():
    kernels.source(kernels.ids()[0])
    assert not [name for name in sys.modules if name.startswith("baselines.kernels.")]


@pytest.mark.parametrize("name", ["", "__init__", "../kernels/gemm", "gemm.py", "no such thing"])
def test_an_unknown_id_names_the_known_ones(name):
    with pytest.raises(KeyError) as error:
        kernels.source(name)
    assert all(known in str(error.value) for known in kernels.ids())


def test_a_misspelt_id_suggests_the_nearest():
    with pytest.raises(kernels.NoKernel, match="no kernel for 'gem'; did you mean 'gemm'?"):
        kernels.source("gem")
