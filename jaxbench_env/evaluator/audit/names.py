"""What a kernel text may name: modules, their members, builtins. Data for `audit`.

A module that is not a key of `MODULES` cannot be imported or reached. Its value says which of its
members may be used: `Only` the listed ones, or `AllBut` the listed ones (for the numeric modules,
whose public members are operations on arrays, and which grow from version to version).
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass

PALLAS = "jax.experimental.pallas"
PALLAS_TPU = "jax.experimental.pallas.tpu"


@dataclass(frozen=True)
class Only:
    """The members that may be used; every other is refused."""

    names: frozenset[str]

    def allows(self, name: str) -> bool:
        """Whether the member may be used."""
        return name in self.names


@dataclass(frozen=True)
class AllBut:
    """The members that are refused; every other public one may be used."""

    names: frozenset[str] = frozenset()

    def allows(self, name: str) -> bool:
        """Whether the member may be used; never a primitive (``add_p``): its rules can be set."""
        return name not in self.names and not name.startswith("_") and not name.endswith("_p")


def _only(names: str) -> Only:
    return Only(frozenset(names.split()))


def _all_but(names: str) -> AllBut:
    return AllBut(frozenset(names.split()))


MODULES: dict[str, Only | AllBut] = {
    "jax": _only(
        "Array NamedSharding P Ref ShapeDtypeStruct checkpoint checkpoint_policies "
        "closure_convert custom_gradient custom_jvp custom_vjp default_matmul_precision ds "
        "empty_ref eval_shape float0 free_ref freeze grad hessian jacfwd jacobian jacrev jit jvp "
        "linear_transpose linearize make_mesh named_call named_scope new_ref "
        "numpy_dtype_promotion numpy_rank_promotion remat typeof value_and_grad vjp vmap"
    ),
    "jax.ad_checkpoint": AllBut(),
    "jax.custom_batching": AllBut(),
    "jax.custom_derivatives": AllBut(),
    "jax.dtypes": AllBut(),
    "jax.experimental": Only(frozenset()),
    PALLAS: _all_but(
        "debug_check debug_print enable_debug_checks enable_poison_buffers fuser lower_as_mlir "
        "mosaic_gpu ops pallas_export_experimental tpu_sc triton"
    ),
    PALLAS_TPU: _all_but(
        "core force_tpu_interpret_mode reset_tpu_interpret_mode_state set_tpu_interpret_mode"
    ),
    "jax.flatten_util": AllBut(),
    # platform_dependent would let the text that is checked differ from the text that is timed.
    "jax.lax": _all_but("platform_dependent"),
    "jax.lax.linalg": AllBut(),
    "jax.nn": AllBut(),
    "jax.nn.initializers": AllBut(),
    "jax.numpy": _all_but("from_dlpack fromfile load printoptions save savez set_printoptions"),
    "jax.numpy.fft": AllBut(),
    "jax.numpy.linalg": AllBut(),
    "jax.ops": AllBut(),
    "jax.random": AllBut(),
    "jax.ref": AllBut(),
    "jax.scipy": AllBut(),
    "jax.scipy.linalg": AllBut(),
    "jax.scipy.special": AllBut(),
    "jax.sharding": AllBut(),
    "jax.tree": AllBut(),
    # The registry reads attributes by name, as register_dataclass does (see DECORATORS).
    "jax.tree_util": _all_but("default_registry"),
    "jax.typing": AllBut(),
    "collections": _only(
        "ChainMap Counter OrderedDict UserDict UserList defaultdict deque namedtuple"
    ),
    "collections.abc": AllBut(),
    # Not make_dataclass: it builds code from strings.
    "dataclasses": _only(
        "FrozenInstanceError InitVar KW_ONLY MISSING asdict astuple dataclass field fields "
        "is_dataclass replace"
    ),
    "enum": _only("Enum Flag IntEnum IntFlag StrEnum auto member nonmember unique"),
    # Not update_wrapper: it writes the attributes of its first argument. wraps only decorates.
    "functools": _only(
        "cache cached_property cmp_to_key lru_cache partial partialmethod reduce total_ordering "
        "wraps"
    ),
    "itertools": AllBut(),
    "math": AllBut(),
    "numbers": AllBut(),
    "numpy": _only(
        "abs absolute add all allclose amax amin any append arange arccos arccosh arcsin arcsinh "
        "arctan arctan2 arctanh argmax argmin argsort argwhere around array array_equal "
        "array_split asarray ascontiguousarray astype atleast_1d atleast_2d atleast_3d average "
        "bincount bitwise_and bitwise_count bitwise_invert bitwise_not bitwise_or bitwise_xor "
        "block bool bool_ broadcast_arrays broadcast_shapes broadcast_to can_cast cbrt ceil "
        "clip column_stack complex128 complex64 concat concatenate conj copy copysign cos cosh "
        "count_nonzero cross cumprod cumsum cumulative_sum deg2rad diag diag_indices diagonal "
        "diff digitize divide divmod dot double dsplit dstack dtype e einsum empty empty_like "
        "equal euler_gamma exp exp2 expand_dims expm1 eye fabs fill_diagonal finfo fix "
        "flatnonzero flip fliplr flipud float16 float32 float64 float_power floating floor "
        "floor_divide fmax fmin fmod frexp full full_like gcd generic geomspace greater "
        "greater_equal half hsplit hstack hypot identity iinfo imag indices inexact inf inner "
        "insert int16 int32 int64 int8 int_ intc integer interp intersect1d intp invert isclose "
        "isdtype isfinite isin isinf isnan isscalar issubdtype ix_ kron lcm ldexp left_shift "
        "less less_equal lexsort linspace log log10 log1p log2 logaddexp logaddexp2 logical_and "
        "logical_not logical_or logical_xor logspace matmul matrix_transpose max maximum mean "
        "median meshgrid mgrid min minimum mod modf moveaxis multiply nan nan_to_num nanmax "
        "nanmean nanmin nansum ndarray ndenumerate ndim ndindex negative newaxis nextafter "
        "nonzero not_equal number ogrid ones ones_like outer packbits pad partition "
        "permute_dims pi positive pow power prod promote_types ptp put_along_axis quantile "
        "rad2deg radians ravel ravel_multi_index real reciprocal remainder repeat reshape "
        "resize result_type right_shift rint roll rollaxis rot90 round searchsorted select "
        "setdiff1d shape sign signbit signedinteger sin sinc single sinh size sort split sqrt "
        "square squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot "
        "tile trace transpose tri tril tril_indices triu triu_indices true_divide trunc ubyte "
        "uint uint16 uint32 uint64 uint8 union1d unique unpackbits unravel_index "
        "unsignedinteger unstack vander var vdot vecdot vectorize vsplit vstack where zeros "
        "zeros_like"
    ),
    "numpy.linalg": _only(
        "cholesky det eigh inv matrix_norm matrix_power multi_dot norm qr slogdet solve svd trace "
        "vector_norm"
    ),
    "operator": _all_but("attrgetter methodcaller"),
    # Not get_type_hints or ForwardRef: they evaluate strings.
    "typing": _only(
        "AbstractSet Annotated Any AnyStr Callable ClassVar Concatenate Container DefaultDict "
        "Deque Dict Final FrozenSet Generic Hashable Iterable Iterator List Literal Mapping "
        "MutableMapping MutableSequence NamedTuple NewType NoReturn Optional ParamSpec Protocol "
        "Required Self Sequence Set Sized SupportsFloat SupportsIndex SupportsInt TYPE_CHECKING "
        "Tuple Type TypeAlias TypeVar TypeVarTuple TypedDict Union Unpack cast final overload "
        "runtime_checkable"
    ),
}
"""Importable modules and their members."""

LIBRARY_MODULES = (f"{PALLAS}.ops.tpu", "tokamax")
"""Finished kernels, by prefix: for the expert baseline only."""

REASONS: dict[str, str] = {
    "jax._src": "jax's private modules are off limits; use the public ones",
    "jax.clear_caches": "a kernel must not touch jax's caches",
    "jax.config": "a kernel runs with the evaluator's settings; remove the line",
    "jax.debug": "callbacks into Python are not allowed; remove the debugging code",
    "jax.default_backend": "the text is traced without a device; remove the question for one",
    "jax.device_count": "the text is traced without a device; remove the question for one",
    "jax.device_get": "the text is traced without a device; work on the arrays given",
    "jax.device_put": "the text is traced without a device; work on the arrays given",
    "jax.devices": "the text is traced without a device; remove the question for one",
    "jax.experimental.host_callback": "callbacks into Python are not allowed",
    "jax.experimental.io_callback": "callbacks into Python are not allowed",
    "jax.lax.platform_dependent": "one program must serve every platform; write that one",
    "jax.profiler": "timing is the evaluator's part; remove it",
    "jax.pure_callback": "callbacks into Python are not allowed",
    f"{PALLAS}.debug_print": "printing from a kernel is not allowed; remove it",
    f"{PALLAS}.mosaic_gpu": "kernels are compiled for a TPU; use jax.experimental.pallas.tpu",
    f"{PALLAS}.ops": "finished kernels of a library do not count; write the kernel",
    f"{PALLAS}.triton": "kernels are compiled for a TPU; use jax.experimental.pallas.tpu",
    "tokamax": "finished kernels of a library do not count; write the kernel",
    "functools.update_wrapper": "use @functools.wraps(f) on a function of your own",
    "numpy.random": "use jax.random, or inputs as they are given",
    "os": "no files, no processes, no environment",
    "sys": "no access to the interpreter",
    "time": "timing is the evaluator's part; remove it",
}
"""What to say about some names that are refused, beside that they are."""

DECORATORS = {
    "functools.wraps": "@functools.wraps(f)",
    "functools.total_ordering": "@functools.total_ordering",
    "dataclasses.dataclass": "@dataclass or @dataclass(...)",
    "jax.tree_util.register_dataclass": "@jax.tree_util.register_dataclass, fields with metadata",
}
"""Functions that write to their argument or read its attributes by name, and may therefore only
decorate what the text itself defines -> how to write that."""

BUILTINS = frozenset(
    "__name__ abs all any ascii bin bool bytearray bytes callable chr classmethod complex dict "
    "divmod enumerate filter float format frozenset hash hex int isinstance issubclass iter len "
    "list map max min next object oct ord pow print property range repr reversed round set slice "
    "sorted staticmethod str sum super tuple type zip True False None NotImplemented "
    "Ellipsis __debug__".split()
) | {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception)
}
"""Builtin names that may be used."""

FORBIDDEN_BUILTINS = frozenset(vars(builtins)) - BUILTINS
"""Builtin names that are refused where they mean the builtin (and not a local variable)."""

METHODS = frozenset({"__init__", "__post_init__", "__call__"})
"""Methods with double underscores that a class may define."""

PRIVATE_ATTRIBUTES = frozenset({"_replace", "_asdict", "_fields", "_make"})
"""Attributes with a leading underscore that may be read: the public part of named tuples."""

ATTRIBUTES = frozenset(
    "ag_code ag_frame as_python_traceback client co_code co_consts cr_code cr_frame ctypes "
    "def_abstract_eval def_custom_bind def_effectful_abstract_eval def_impl def_partition defjvps "
    "dump dumps f_back f_builtins f_code f_globals f_locals format_map func_code func_globals "
    "gi_code gi_frame mro obj raw_frames register_lowering tb_frame tb_next tofile "
    "unsafe_buffer_pointer".split()
)
"""Attributes that are refused on every object: ways to frames, files, memory and modules (``obj``
of an AttributeError), and methods that change the library."""

LIBRARY_MUTATORS = frozenset("bind clear_cache defjvp defvjp defbwd register".split())
"""Methods that are refused on imported objects: they would change the library."""

REMOVED: dict[str, str] = {
    f"{PALLAS_TPU}.TPUCompilerParams": "pltpu.CompilerParams(...)",
    f"{PALLAS_TPU}.TPUMemorySpace": "pltpu.MemorySpace (pltpu.VMEM, pltpu.SMEM, pltpu.HBM)",
    f"{PALLAS_TPU}.TPUInterpretParams": "pltpu.InterpretParams(...)",
    f"{PALLAS_TPU}.ANY": "pl.ANY",
    f"{PALLAS_TPU}.repeat": "jnp.tile (pltpu.repeat tiled the whole array, unlike jnp.repeat)",
    f"{PALLAS_TPU}.delay": "pl.delay",
    f"{PALLAS_TPU}.run_scoped": "pl.run_scoped",
    f"{PALLAS_TPU}.create_tensorcore_mesh": "pltpu.TensorCoreMesh(...)",
    f"{PALLAS}.load": "indexing, ref[...]; with a mask pltpu.load(ref.at[...], mask=...)",
    f"{PALLAS}.store": "indexing, ref[...] = x; with a mask pltpu.store(ref.at[...], x, mask=...)",
    f"{PALLAS}.swap": "indexing: read ref[...], then assign to it",
    f"{PALLAS}.dot": "jnp.dot(..., preferred_element_type=jnp.float32)",
    f"{PALLAS}.core_map": "pl.kernel(body, out_type=..., mesh=...)",
    f"{PALLAS}.reciprocal": "pltpu.reciprocal",
}
"""Names that some jax version removed or renamed -> what to write instead."""
