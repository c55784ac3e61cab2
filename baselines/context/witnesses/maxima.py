"""The largest element of every row."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "maxima", "rows": 256, "columns": 512}


def create_inputs(key=None):
    """A matrix."""
    return (jax.random.normal(key, (CONFIG["rows"], CONFIG["columns"]), jnp.float32),)


def workload(x):
    """One column."""
    return jnp.max(x, axis=-1, keepdims=True)
