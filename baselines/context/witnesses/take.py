"""Rows of a table, chosen by an array of indices."""

import jax
import jax.numpy as jnp

CONFIG = {"name": "take", "rows": 256, "columns": 256, "chosen": 64}


def create_inputs(key=None):
    """The table and the indices."""
    k1, k2 = jax.random.split(key)
    table = jax.random.normal(k1, (CONFIG["rows"], CONFIG["columns"]), jnp.float32)
    return table, jax.random.randint(k2, (CONFIG["chosen"],), 0, CONFIG["rows"], jnp.int32)


def workload(table, indices):
    """One row for each index, doubled."""
    return table[indices] * 2
