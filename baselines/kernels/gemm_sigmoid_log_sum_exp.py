"""Two linear layers with a sigmoid between them, then the log-sum-exp of each row.

A step takes some rows through everything: the hidden features never leave VMEM. They are made
HIDDEN at a time; their sigmoid (one tanh) runs while the matrix unit makes the next ones, and what
they add to the second layer's result is summed in float32.

VMEM: both weights (16 and 8 MiB, one buffer), two buffers of x (4 MiB), hidden features and results
in float32 (4 MiB each), and what the compiler keeps of the products: 42 MiB.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 1024
HIDDEN = 1024
LANES = 128
VMEM_LIMIT_BYTES = 100 * 2**20

TUNABLES = {
    "BLOCK_M": (128, 256, 512, 1024),
    "HIDDEN": (256, 512, 1024, 2048),
}


def constraints(BLOCK_M, HIDDEN):
    """What must hold between the tunables at the published size."""
    k, hidden, n, buffers, item = 2048, 4096, 1024, 2, 2
    used = item * (k * hidden + hidden * n) + buffers * item * BLOCK_M * k
    # Two groups of hidden features and two results in float32.
    used += 2 * 4 * BLOCK_M * (HIDDEN + n)
    return {"blocks fit in VMEM": used <= VMEM_LIMIT_BYTES}


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _times_transposed(a, b):
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def _kernel(x_ref, w1_ref, b1_ref, w2_ref, b2_ref, out_ref, sum_ref):
    features = w1_ref.shape[0]
    group = _block(features, HIDDEN)

    def start(first):
        at = slice(first, first + group)
        return at, _times_transposed(x_ref[...], w1_ref[at])

    def finish(at, z):
        half = 0.5 * (z + b1_ref[:, at].astype(jnp.float32))
        hidden = (0.5 + 0.5 * jnp.tanh(half)).astype(x_ref.dtype)
        part = _times_transposed(hidden, w2_ref[:, at])
        sum_ref[...] = part if at.start == 0 else sum_ref[...] + part

    # A software pipeline by the order of the source, which the compiler's scheduler mostly keeps:
    # the matrix unit works on the next features during the sigmoid of these.
    started = start(0)
    for first in range(group, features, group):
        following = start(first)
        finish(*started)
        started = following
    finish(*started)

    z = sum_ref[...] + b2_ref[...].astype(jnp.float32)
    highest = jnp.max(z, axis=1, keepdims=True)
    result = highest + jnp.log(jnp.sum(jnp.exp(z - highest), axis=1, keepdims=True))
    # The rows of the result lie in the lanes, as those of the output do.
    out_ref[...] = jnp.broadcast_to(result, (z.shape[0], LANES)).T[:1].astype(out_ref.dtype)


def workload(x, w1, b1, w2, b2):
    """Log-sum-exp by row of sigmoid(x (M, K) w1 (H, K)^T + b1 (H,)) w2 (N, H)^T + b2 (N,)."""
    (m, k), (hidden, _), (n, _) = x.shape, w1.shape, w2.shape
    block_m = _block(m, BLOCK_M)

    def whole(*shape):
        return pl.BlockSpec(shape, lambda i: (0, 0), pipeline_mode=pl.Buffered(1))

    out = pl.pallas_call(
        _kernel,
        grid=(m // block_m,),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i: (i, 0)),
            *(whole(hidden, k), whole(1, hidden), whole(n, hidden), whole(1, n)),
        ],
        out_specs=pl.BlockSpec((1, block_m), lambda i: (0, i)),
        out_shape=jax.ShapeDtypeStruct((1, m), x.dtype),
        scratch_shapes=[pltpu.VMEM((block_m, n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, w1, b1.reshape(1, hidden), w2, b2.reshape(1, n))
    return out.reshape(m)
