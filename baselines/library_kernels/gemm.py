"""The matmul kernel that jax ships."""

from jax.experimental.pallas.ops.tpu.matmul import matmul

BLOCK_M = 1024
BLOCK_N = 2048
BLOCK_K = 1024

TUNABLES = {
    "BLOCK_M": (256, 512, 1024),
    "BLOCK_N": (256, 512, 1024, 2048),
    "BLOCK_K": (256, 512, 1024, 2048),
}


def constraints(BLOCK_M, BLOCK_N, BLOCK_K):
    """What must hold between the tunables at the published size."""
    buffers, item, limit = 2, 2, 32 * 2**20
    used = buffers * item * (BLOCK_M * BLOCK_K + BLOCK_K * BLOCK_N + BLOCK_M * BLOCK_N)
    return {"blocks and accumulator fit in VMEM": used + 4 * BLOCK_M * BLOCK_N <= limit}


def workload(A, B):
    """A (M, K) times B (K, N)."""
    # The kernel rounds the grid down: it leaves out what does not fill a block.
    sizes, blocks = (*A.shape, B.shape[1]), (BLOCK_M, BLOCK_K, BLOCK_N)
    if any(size % block for size, block in zip(sizes, blocks, strict=True)):
        raise ValueError(f"{A.shape} x {B.shape} is no multiple of the blocks")
    return matmul(A, B, block_shape=(BLOCK_M, BLOCK_N), block_k=BLOCK_K)
