"""Running sums along every row."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "sums", "rows": 128, "columns": 512}


def create_inputs(key=None):
    """A matrix."""
    return (jax.random.normal(key, (CONFIG["rows"], CONFIG["columns"]), jnp.float32),)


def workload(x):
    """Each element is the sum of those up to it."""
    return jnp.cumsum(x, axis=-1)
