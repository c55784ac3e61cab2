import ast
import sys

import pytest

import workloads
from baselines import kernels
from baselines.templates import TemplateSpace
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


@pytest.mark.parametrize("name", kernels.ids())
def test_a_kernel_is_a_search_space(name):
    space = TemplateSpace(kernels.source(name))
    assert 2 <= space.size <= 500 and len(space.names) <= 6
    assert all(len(domain) > 1 for domain in space.domains)
    assert space.violations(space.default) == []
    valid = sum(1 for _ in space.actions(valid=True))
    assert valid > 1, "the constraints leave nothing to search"


@pytest.mark.parametrize("name", kernels.ids())
def test_every_value_of_a_tunable_gives_a_text_that_passes_the_audit(name):
    space = TemplateSpace(kernels.source(name))
    for tunable, domain in zip(space.names, space.domains, strict=True):
        for value in domain:
            text = space.source(space.encode({tunable: value}))
            assert audit(text) is None, f"{tunable} = {value!r}"
            assert space.values(space.action(text))[tunable] == value


@pytest.mark.parametrize("name", kernels.ids())
def test_tunables_are_explained_and_constraints_are_declared(name):
    tree = ast.parse(kernels.source(name))
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    assert ast.get_docstring(tree) and ast.get_docstring(functions["constraints"])
