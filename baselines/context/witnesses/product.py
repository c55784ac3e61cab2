"""A matrix product."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "product", "m": 256, "k": 2048, "n": 256}


def create_inputs(key=None):
    """Two matrices."""
    k1, k2 = jax.random.split(key)
    a = jax.random.normal(k1, (CONFIG["m"], CONFIG["k"]), jnp.bfloat16)
    return a, jax.random.normal(k2, (CONFIG["k"], CONFIG["n"]), jnp.bfloat16)


def workload(a, b):
    """Rows by columns."""
    return jnp.dot(a, b, preferred_element_type=jnp.float32).astype(a.dtype)
