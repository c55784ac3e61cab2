"""Matrix product with a softmax over whole rows, whose exponentials never leave VMEM unscaled.

A panel of rows stays while the columns' weights stream past it. Each part of the columns is
exponentiated against the running maximum of its row and kept in VMEM as bfloat16, with the
maximum that it was taken against. The final scale, exp(that maximum - log sum exp), is applied a
panel later: step j of a panel stores the columns of the panel before it and puts its own in their
place. So the vector units work under the matrix unit, and one more panel only stores.

VMEM at K = N = 8192: two buffers each of the panel of x (16 MiB), weights (8 MiB) and result
(1 MiB), 50 MiB; the exponentials, 16 MiB, the maxima, 16 MiB, and float32 products.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_M = 1024
BLOCK_N = 512
PART = 256  # columns of a step that are finished while the next are multiplied
VMEM_LIMIT_BYTES = 110 * 2**20


def _block(size, preferred):
    # A block is whole or a multiple of 128: a multiple of the tile in either type and axis.
    fitting = [block for block in range(128, preferred + 1, 128) if size % block == 0]
    return max(fitting, default=size)


def _kernel(
    x_hbm,
    weight_ref,
    bias_ref,
    out_ref,
    x_ref,
    arrived,
    panel_ref,
    kept_ref,
    max_ref,
    sum_ref,
    log_ref,
    *,
    part,
):
    i, j = pl.program_id(0), pl.program_id(1)
    panels, blocks = pl.num_programs(0) - 1, pl.num_programs(1)
    rows, columns = x_ref.shape[1], weight_ref.shape[0]
    share = rows // blocks
    slot = lax.rem(i, 2)

    def copy(panel, n):
        """Of the n-th share of the rows of a panel."""
        source = x_hbm.at[pl.ds(pl.multiple_of(panel * rows + n * share, share), share)]
        to = lax.rem(panel, 2)
        target = x_ref.at[to, pl.ds(pl.multiple_of(n * share, share), share)]
        return pltpu.make_async_copy(source, target, arrived.at[to])

    def for_shares(do):
        lax.fori_loop(0, blocks, lambda n, carry: (do(n), carry)[1], 0)

    @pl.when((i == 0) & (j == 0))
    def _():
        for_shares(lambda n: copy(0, n).start())

    @pl.when((i < panels) & (j == 0))
    def _():
        for_shares(lambda n: copy(i, n).wait())

    @pl.when(i + 1 < panels)
    def _():
        copy(i + 1, j).start()

    @pl.when(j == 0)
    def _():
        total = jnp.sum(sum_ref[...], axis=1, keepdims=True)
        log_ref[...] = max_ref[...] + jnp.log(total)
        max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)

    def product(start):
        weights = weight_ref[start : start + part]
        return lax.dot_general(
            x_ref[slot], weights, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )

    def exponentials(start, z):
        """Keeps the exponentials of a part and the maximum before which they are taken."""
        z = z + bias_ref[:, start : start + part]
        before = max_ref[...]
        maximum = jnp.maximum(before, jnp.max(z, axis=1, keepdims=True))
        total = sum_ref[...] * jnp.exp(before - maximum)
        for lane in range(0, part, 128):
            e = jnp.exp(z[:, lane : lane + 128] - maximum)
            total += e
            panel_ref[j, :, start + lane : start + lane + 128] = e.astype(panel_ref.dtype)
        max_ref[...], sum_ref[...] = maximum, total
        kept_ref[j, start // part] = maximum

    def scale(start):
        """Stores a part of the panel before this one."""
        factor = jnp.exp(kept_ref[j, start // part] - log_ref[...])
        for lane in range(start, start + part, 128):
            at = slice(lane, lane + 128)
            e = panel_ref[j, :, at].astype(jnp.float32)
            out_ref[:, at] = (e * factor).astype(out_ref.dtype)

    @pl.when(i < panels)
    def _():
        products = []
        for start in range(0, columns, part):
            products.append((start, product(start)))
            scale(start)
            if len(products) > 1:
                exponentials(*products.pop(0))
        exponentials(*products.pop(0))

    @pl.when(i == panels)
    def _():
        for start in range(0, columns, part):
            scale(start)


def workload(x, weight, bias):
    """Softmax over n of x (M, K) times weight (N, K) transposed plus bias (N,)."""
    (m, k), n = x.shape, weight.shape[0]
    block_m, block_n = _block(m, BLOCK_M), _block(n, BLOCK_N)
    part = _block(block_n, PART)
    panels, blocks = m // block_m, n // block_n

    def columns(i, j):
        return jnp.where(i < panels, j, blocks - 1)

    rows = pltpu.VMEM((block_m, 128), jnp.float32)
    return pl.pallas_call(
        functools.partial(_kernel, part=part),
        grid=(panels + 1, blocks),
        in_specs=[
            pl.BlockSpec(memory_space=pl.ANY),
            pl.BlockSpec((block_n, k), lambda i, j: (columns(i, j), 0)),
            pl.BlockSpec((1, block_n), lambda i, j: (0, columns(i, j))),
        ],
        out_specs=pl.BlockSpec(
            (block_m, block_n), lambda i, j: (jnp.maximum(i - 1, 0), jnp.where(i > 0, j, 0))
        ),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((2, block_m, k), x.dtype),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.VMEM((blocks, block_m, block_n), x.dtype),
            pltpu.VMEM((blocks, block_n // part, block_m, 128), jnp.float32),
            rows,
            rows,
            rows,
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(x, weight, bias.reshape(1, n))
