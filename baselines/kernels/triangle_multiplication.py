"""Triangle multiplication in three kernels: projections, a product per channel, normalised output.

The product wants the channels outermost, and everything else wants them in the lanes. A pair of
rows i shares 32-bit words: one product gives the projections of both with the channels in the
sublanes, the two rows of a channel below each other, so that rounding to bfloat16 packs them.
Strided stores of these words then turn the channels outermost; they work on 128 lanes, and so the
arrays between the kernels have the columns in tiles of 128. The same way back leads from the
product to the output. The pair also fills the 256-deep matrix unit.

Nine arrays of 604 MB pass through HBM (read activations, write left and right; read both, write
the product; read it and the activations, write the result). That is 3.9 ms at 1.4 TB/s; the matrix
unit needs 1.7 ms.

Shortcut: the normalisation divides rows, so it waits until after the output projection.

VMEM at C = 128: two buffers of 12 MiB in the first and the last kernel and of 13.5 MiB in the
product, where 4.5 MiB of float32 wait to be rounded.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

BLOCK_I = 32  # rows i of one step of the first and the last kernel
BLOCK_J = 512  # rows k or j of one step of them
ROWS = 768  # rows of a product that are rounded at once
UNROLL = 4  # pairs of rows i whose steps the compiler interleaves
VMEM_LIMIT_BYTES = 64 * 2**20

TUNABLES = {
    "BLOCK_I": (16, 32, 64),
    "BLOCK_J": (128, 256, 512, 768),
    "ROWS": (256, 512, 768),
    "UNROLL": (1, 2, 4),
}


def constraints(BLOCK_I, BLOCK_J, ROWS, UNROLL):
    """What must hold between the tunables at the published size."""
    n, channels, buffers, item = 1536, 128, 2, 2
    moved = buffers * item * 3 * channels * BLOCK_I * BLOCK_J
    product = buffers * item * 3 * n * n + 4 * ROWS * n
    return {
        "blocks of the projections fit in VMEM": moved + UNROLL * 2**20 <= VMEM_LIMIT_BYTES,
        "three matrices fit in VMEM": product <= VMEM_LIMIT_BYTES,
    }


def _block(size, preferred, unit=128):
    # A block is whole or a multiple of the unit: of the tile in the axis that it divides.
    fitting = [block for block in range(unit, preferred + 1, unit) if size % block == 0]
    return max(fitting, default=size)


_dot = functools.partial(lax.dot_general, preferred_element_type=jnp.float32)
_ROWS_BY_COLUMNS, _ROWS_BY_ROWS = (((1,), (0,)), ((), ())), (((1,), (1,)), ((), ()))


def _pair(ref, p):
    """Rows 2 p and 2 p + 1 of activations (i, k, C) beside each other: (k, 2 C)."""
    return jnp.concatenate([ref[2 * p], ref[2 * p + 1]], axis=1)


def _for_pairs(act_ref, body):
    def some(index, carry):
        for p in range(UNROLL):
            body(index * UNROLL + p)
        return carry

    lax.fori_loop(0, act_ref.shape[0] // (2 * UNROLL), some, 0)


def _store(ref, p, values):
    """Values (2 C, k) become the p-th words of all channels in (k / 128, C x i / 2, 128)."""
    tiles, rows, lanes = ref.shape
    channels = values.shape[0] // 2
    words = pltpu.bitcast(values, jnp.uint32)
    for n in range(tiles):
        at = pl.ds(p, channels, stride=rows // channels)
        ref[n : n + 1, at] = words[None, :, n * lanes : (n + 1) * lanes]


def _load(ref, p, channels):
    """The p-th words of all channels, (C, k)."""
    tiles, rows, _ = ref.shape
    at = pl.ds(p, channels, stride=rows // channels)
    return jnp.concatenate([ref[n : n + 1, at][0] for n in range(tiles)], axis=1)


def _project(act_ref, mask_ref, weight_ref, left_ref, right_ref):
    def pair(p):
        products = _dot(weight_ref[...], _pair(act_ref, p), _ROWS_BY_ROWS).astype(jnp.bfloat16)
        mask = mask_ref[p].astype(jnp.float32)
        odd = lax.broadcasted_iota(jnp.int32, (16, mask.shape[1]), 0) % 2 == 1
        mask = jnp.where(odd, mask[1:], mask[:1]).astype(jnp.bfloat16)
        products = (products.reshape(-1, *mask.shape) * mask).reshape(products.shape)
        left, left_gate, right, right_gate = jnp.split(products, 4, axis=0)
        # sigmoid(x) = (1 + tanh(x / 2)) / 2; both halves are in the weights.
        _store(left_ref, p, left * (1 + jnp.tanh(left_gate)))
        _store(right_ref, p, right * (1 + jnp.tanh(right_gate)))

    _for_pairs(act_ref, pair)


def _multiply(left_ref, right_ref, out_ref, *, rows):
    blocks, tiles, words, lanes = left_ref.shape

    def matrix(ref, at):
        columns = [ref[at, n].reshape(-1, lanes) for n in range(tiles)]
        return pltpu.bitcast(jnp.concatenate(columns, axis=1), jnp.bfloat16)

    right = matrix(right_ref, slice(None))
    for block in range(0, blocks, rows // (2 * words)):
        at = slice(block, block + rows // (2 * words))
        product = _dot(matrix(left_ref, at), right, _ROWS_BY_ROWS).astype(jnp.bfloat16)
        product = pltpu.bitcast(product, jnp.uint32).reshape(-1, words, tiles * lanes)
        for n in range(tiles):
            out_ref[at, n] = product[:, :, n * lanes : (n + 1) * lanes]


def _project_out(words_ref, act_ref, weight_ref, gate_weight_ref, out_ref):
    channels = act_ref.shape[2]

    def pair(p):
        words = _load(words_ref, p, channels)
        # The upper half of a float32 is a bfloat16.
        rows = (words << 16, words & jnp.uint32(0xFFFF0000))
        rows = [lax.bitcast_convert_type(x, jnp.float32) for x in rows]
        mean_square = [jnp.mean(x * x, axis=0, keepdims=True) for x in rows]
        product = _dot(weight_ref[...], pltpu.bitcast(words, jnp.bfloat16), _ROWS_BY_COLUMNS)
        gate = 1 + jnp.tanh(_dot(_pair(act_ref, p), gate_weight_ref[...], _ROWS_BY_COLUMNS))
        for n in range(2):
            at = slice(n * channels, (n + 1) * channels)
            normed = product[at] * lax.rsqrt(mean_square[n] + CONFIG["eps"])
            out_ref[2 * p + n] = (normed.T * gate[:, at]).astype(out_ref.dtype)

    _for_pairs(act_ref, pair)


def workload(
    pair_act,
    mask,
    left_proj_w,
    right_proj_w,
    left_gate_w,
    right_gate_w,
    center_scale,
    out_proj_w,
    out_gate_w,
):
    """Outgoing edges: pair_act (N, N, C), mask (N, N, 1), weights (C, C)."""
    n, _, channels = pair_act.shape
    block_i, block_j = _block(n, BLOCK_I, 16), _block(n, BLOCK_J)
    limit = pltpu.CompilerParams(
        dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES
    )
    grid = (n // block_i, n // block_j)
    pixels = pl.BlockSpec((block_i, block_j, channels), lambda i, j: (i, j, 0))
    mask = mask.reshape(n // 2, 2, n)
    lanes = min(n, 128)
    words = (None, block_j // lanes, channels * block_i // 2, lanes)
    words = pl.BlockSpec(words, lambda i, j: (i, j, 0, 0))
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    array = (n // block_i, n // lanes, channels * block_i // 2, lanes)
    array = jax.ShapeDtypeStruct(array, jnp.uint32)

    # W2: row 2 c takes the first row of a pair to its channel c, row 2 c + 1 the second.
    two = jnp.eye(2, dtype=jnp.float32)
    weights = [
        jnp.einsum("rs,cd->drsc", two, 0.5 * w).reshape(2 * channels, 2 * channels)
        for w in (left_proj_w, left_gate_w, right_proj_w, right_gate_w)
    ]
    weights = jnp.concatenate(weights, axis=0).astype(pair_act.dtype)
    left, right = pl.pallas_call(
        _project,
        grid=grid,
        in_specs=[pixels, pl.BlockSpec((block_i // 2, 2, block_j), lambda i, j: (i, 0, j)), whole],
        out_specs=[words, words],
        out_shape=[array, array],
        compiler_params=limit,
    )(pair_act, mask, weights)

    matrix = (n // block_i, n // lanes, block_i // 2, lanes)
    matrix = pl.BlockSpec(matrix, lambda c: (0, 0, c, 0))
    product = pl.pallas_call(
        functools.partial(_multiply, rows=_block(n, ROWS, block_i)),
        grid=(channels,),
        in_specs=[matrix, matrix],
        out_specs=matrix,
        out_shape=array,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
    )(left, right)

    out_weight = center_scale[:, None].astype(jnp.float32) * out_proj_w
    out_weight = jnp.einsum("rs,cd->rdcs", two, 0.5 * out_weight)
    gate_weight = jnp.einsum("rs,cd->rcsd", two, 0.5 * out_gate_w)
    return pl.pallas_call(
        _project_out,
        grid=grid,
        in_specs=[words, pixels, whole, whole],
        out_specs=pixels,
        out_shape=jax.ShapeDtypeStruct(pair_act.shape, pair_act.dtype),
        compiler_params=limit,
    )(
        product,
        pair_act,
        out_weight.reshape(2 * channels, 2 * channels).astype(pair_act.dtype),
        gate_weight.reshape(2 * channels, 2 * channels).astype(pair_act.dtype),
    )
