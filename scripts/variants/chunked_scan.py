"""The project's gated linear attention in chunks, with the constants of its text replaced."""

import re

import jax
import jax.numpy as jnp

from baselines import kernels
from variants.case import Case, size

BATCH, HEADS, SEQUENCE, DEPTH = 1, 64, 4096, 64
CONFIG = {"log_eps": 1e-6, "normaliser_floor": 1e-6}
SPEC = "block = pl.BlockSpec((1, heads, dim, span), lambda b, h, s: (b, h, 0, s)"


def make(heads: int, span: int, buffers: int = 2, group: int = 2, ahead: int = 2) -> Case:
    """`heads` and `span` positions a grid step; `buffers` of query, key, value and result."""
    text = kernels.source("mamba2_scan")
    replaced = {"HEADS": heads, "SPAN": span, "GROUP": group, "AHEAD": ahead}
    for name, value in replaced.items():
        text, found = re.subn(rf"^{name} = \d+", f"{name} = {value}", text, flags=re.MULTILINE)
        if found != 1:
            raise ValueError(f"the kernel of mamba2_scan has no constant {name} any more")
    if SPEC not in text:
        raise ValueError("the kernel of mamba2_scan has other block specs; adapt SPEC here")
    if buffers != 2:
        text = text.replace(SPEC, f"{SPEC}, pipeline_mode=pl.Buffered({buffers})")
    params = "compiler_params=pltpu.CompilerParams("
    text = text.replace(params, params + "vmem_limit_bytes=120 << 20,")
    scope: dict = {"CONFIG": CONFIG}
    exec(compile(text, "mamba2_scan.py", "exec"), scope)
    x = jax.ShapeDtypeStruct((BATCH, HEADS, SEQUENCE, DEPTH), jnp.bfloat16)
    gates = jax.ShapeDtypeStruct((BATCH, HEADS, SEQUENCE), jnp.float32)
    # In chunks of 128: scores and their product with the values, state in and state out.
    flops = 2 * BATCH * HEADS * SEQUENCE * DEPTH * (2 * 128 + 2 * DEPTH)
    return Case(scope["workload"], (x, x, x, gates), flops, size(*[x] * 4, gates))
