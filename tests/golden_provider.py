"""The workloads in the form that the golden vectors' checker calls."""

import functools

import workloads


def get(workload_id):
    """Returns the published reference of a workload, to be called with its arguments by name."""
    workload = workloads.get(workload_id, variant="published")
    constants = workload.presets["varied"].config  # shapes come from the arguments

    @functools.wraps(workload.reference)
    def call(**arrays):
        import jax
        import jax.numpy as jnp

        names = list(workload.presets["v6e"].args)
        # Static arguments are part of the configuration, where the call names none of its own.
        config = {**constants, **{name: arrays[name] for name in workload.static_arguments}}
        with jax.default_matmul_precision("highest"):
            return jax.jit(functools.partial(workload.reference, config))(
                *(jnp.asarray(arrays[name]) for name in names)
            )

    return call
