"""What autocomp may choose from: ways to make a right kernel, and ways to make it faster.

Each is one short statement that holds for Pallas kernels on this chip.
"""

#: Ways from plain JAX to a kernel.
TRANSLATIONS = (
    "Move the matrix products into one pl.pallas_call: a grid over blocks of the output, "
    "bfloat16 operands, preferred_element_type=jnp.float32.",
    "Move the elementwise and row-wise parts into one pl.pallas_call over blocks of whole rows,"
    " with statistics in float32.",
    "Fuse what follows a product in the reference (bias, activation, scale, residual) into the "
    "kernel that computes the product, on its float32 block before it is stored.",
    "Replace a softmax over a long axis by a running maximum and a running sum in VMEM scratch,"
    " rescaled whenever the maximum grows, so that the scores never reach HBM.",
    "Turn a recurrence along the sequence into chunks: products inside a chunk, and a small "
    "state in VMEM scratch that is handed from one grid step to the next.",
    "Express a convolution as a sum of matrix products over shifted views, one for each tap, "
    "accumulated in float32.",
    "Turn gathers by index, page or expert into blocks whose index maps read a "
    "scalar-prefetched table (pltpu.PrefetchScalarGridSpec).",
)

#: Ways that hold for most machines.
GENERIC = (
    "Use larger blocks, so that each step does more work for its fixed cost.",
    "Use smaller blocks, so that what lives at once fits the fast memory and the registers.",
    "Change the order of the grid so that the operand that is dearest to fetch stays in place.",
    "Fuse two kernels into one, so that what passes between them never leaves fast memory.",
    "Split one kernel into two where a part of it forces bad blocks on the rest.",
    "Skip blocks whose result is known beforehand, such as those that a causal mask blanks out.",
    "Apply masks only in the blocks that the mask's border crosses.",
    "Take what does not change out of the loop: masks, casts, constants, reciprocals.",
    "Multiply by a reciprocal that is computed once instead of dividing every element.",
    "Reassociate the algebra so that the smaller product or sum is computed first.",
    "Fold a scale or a bias into an operand that is smaller than the result.",
    "Recompute a cheap intermediate instead of storing and loading it.",
    "Keep a running result in a local value during a step and store it once at the end.",
    "Unroll a short inner loop so that its iterations overlap.",
    "Reorder independent statements so that one's long operations run beside the other's.",
)

#: Ways that hold for this chip.
TPU = (
    "Feed the matrix units bfloat16 operands and accumulate in float32 "
    "(preferred_element_type=jnp.float32).",
    "Contract the whole K axis in one grid step, so that no accumulator is loaded and stored "
    "once per step.",
    "Keep the accumulator in a VMEM scratch buffer over the steps of the innermost grid axis, "
    "and store the output in the last of them.",
    "Make the last axis of every block a multiple of 128 and the one before a multiple of 16 "
    "for bfloat16, 8 for float32.",
    "Make both free axes of a product's blocks multiples of 256, the width of a matrix unit.",
    "Choose the contraction so that no operand is transposed in the kernel: lax.dot_general "
    "takes any contracting axes.",
    "Raise vmem_limit_bytes in pltpu.CompilerParams (up to about 100 MiB) to make room for "
    "larger blocks.",
    "Give a block that every step shares a constant index map, so that it is fetched once.",
    'Mark grid axes whose steps are independent as "parallel" in dimension_semantics, others as'
    ' "arbitrary".',
    "Give an operand that hardly changes a single buffer (pipeline_mode=pl.Buffered(1)), and "
    "spend the memory on larger blocks of the others.",
    "Split a block's epilogue into column slices that are written in source order between the "
    "products of the next slices, so that vector and matrix units work at the same time.",
    "Work on a slice of the block of a few dozen registers at a time, so that values do not "
    "spill (there are 64 vector registers of 8 x 128 words).",
    "Reduce along the last axis as late as possible: add whole registers first, and cross lanes"
    " once.",
    "Keep row statistics broadcast over 128 lanes instead of in columns of width one.",
    "Evaluate fewer transcendentals: exp2 with the scale folded into the operand, one "
    "reciprocal per row, tanh or a logistic instead of several exponentials.",
    "Do elementwise work in bfloat16 where the tolerance allows it: a vector register holds "
    "twice as many elements.",
    "Store bfloat16 results as early as possible, so that less float32 is moved.",
    "Start copies from HBM by hand (pltpu.make_async_copy) some steps ahead, where the next "
    "blocks depend on data.",
    "Read page tables, lengths and group offsets by scalar prefetch, and let index maps choose "
    "the blocks.",
    "Move transposes, pads and casts of whole arrays from plain JAX into the kernel, where they"
    " cost no trip through HBM.",
    "Reshape outside the kernel so that small axes are merged and the last axis is wide.",
    "Process several heads, groups or batches in one grid step where each alone is too small.",
)
