import pytest

from baselines import library_kernels
from baselines.templates import TemplateSpace
from jaxbench_env.evaluator.audit import audit


@pytest.mark.parametrize("name", library_kernels.ids())
def test_a_library_kernel_is_a_search_space_of_legal_texts(name):
    text = library_kernels.source(name)
    space = TemplateSpace(text)
    assert 2 <= space.size <= 500 and space.violations(space.default) == []
    for tunable, domain in zip(space.names, space.domains, strict=True):
        for value in domain:
            made = space.source(space.encode({tunable: value}))
            assert audit(made, allow_library_kernels=True) is None, f"{tunable} = {value!r}"
    assert audit(text) is not None


def test_an_unknown_id_names_the_known_ones():
    with pytest.raises(library_kernels.NoKernel, match="did you mean 'gemm'.*sparse_attention"):
        library_kernels.source("gem")
