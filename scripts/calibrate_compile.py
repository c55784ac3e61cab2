"""Compiles one published-size program and keeps libtpu's dump; run by `calibrate_timing.py`.

    python calibrate_compile.py WORKLOAD KERNEL.py|baseline FOLDER

It runs with the compiler of the measurements, older than what the package supports, and so
needs jax and `workloads` only. FOLDER gets ``dump/``, ``hlo.txt``, ``program.mlir`` and,
last, ``meta.json`` with the versions and the seconds that the compile took.
"""

import functools
import json
import os
import shutil
import sys
import time
from pathlib import Path

TARGET = "v6e"
DUMP_FLAGS = (
    "--xla_jf_dump_to=dump --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
)
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v6e-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "LIBTPU_INIT_ARGS": DUMP_FLAGS,
}


def mesh(topology):
    """The mesh under which library kernels learn for which chip they are traced."""
    import jax

    return jax.sharding.Mesh(topology.devices, ("x",)).abstract_mesh


def main() -> None:
    """Compiles the program that the command line names."""
    name, program, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    text = None if program == "baseline" else Path(program).read_text()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    os.environ.update(ENVIRONMENT)  # before jax loads libtpu
    import importlib.metadata

    import jax
    import numpy as np
    from jax.experimental import topologies

    import workloads

    workload = workloads.get(name, variant="published")
    preset = workload.presets[TARGET]
    shapes = {name: spec.shape for name, spec in preset.args.items()}
    if text is None:
        function = functools.partial(workload.reference, preset.config)
        scalars = ()
    else:
        scope = {"CONFIG": preset.config, "__name__": "kernel"}
        exec(compile(text, program, "exec"), scope)  # our own text
        function = scope["workload"]
        if "published_shapes" in scope:
            shapes = scope["published_shapes"](shapes)
        scalars = tuple(preset.config[key] for key in workload.static_arguments)
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name="v6e:1x1", chips_per_host_bounds=(1, 1, 1), num_slices=1
    )
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    specs = [
        jax.ShapeDtypeStruct(shapes[name], np.dtype(spec.dtype), sharding=device)
        for name, spec in preset.args.items()
    ]

    def run(*arrays):
        return function(*arrays, *scalars)

    with jax.sharding.use_abstract_mesh(mesh(topology)):
        lowered = jax.jit(run).trace(*specs).lower(lowering_platforms=("tpu",))
    Path("program.mlir").write_text(lowered.as_text())
    started = time.monotonic()
    compiled = lowered.compile()
    seconds = time.monotonic() - started
    Path("hlo.txt").write_text(compiled.as_text())
    versions = {p: importlib.metadata.version(p) for p in ("jax", "jaxlib", "libtpu")}
    record = {"compile_seconds": seconds, "shapes": shapes, **versions}
    Path("meta.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
