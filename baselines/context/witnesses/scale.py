"""Scales every element and adds a bias to every column."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "scale", "rows": 512, "columns": 1024, "scale": 0.5}


def create_inputs(key=None):
    """A matrix and a row."""
    k1, k2 = jax.random.split(key)
    x = jax.random.normal(k1, (CONFIG["rows"], CONFIG["columns"]), jnp.float32)
    return x, jax.random.normal(k2, (CONFIG["columns"],), jnp.float32)


def workload(x, bias):
    """Scales and shifts."""
    return x * CONFIG["scale"] + bias
