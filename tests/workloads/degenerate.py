"""What the tests of degenerate kernels share: cases, the pass rule, and outputs that are wrong.

Everything is computed in float32, so that nothing but what a kernel leaves out can make it wrong.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import workloads

PRESET = "varied"
SEEDS = (0, 1)


def cases(*ids, draws=workloads.DRAWS, seeds=SEEDS):
    """All (workload id, draw, seed) of some workloads."""
    return [(w, draw, seed) for w in ids for draw in draws for seed in seeds]


@functools.cache
def _reference(workload_id):
    workload = workloads.get(workload_id)
    return jax.jit(functools.partial(workload.reference, workload.presets[PRESET].config))


def run(workload_id, inputs, dtype=None):
    """The reference's result on the inputs, as float64."""
    arrays = [jnp.asarray(a) if dtype is None else jnp.asarray(a, dtype) for a in inputs]
    with jax.default_matmul_precision("highest"):
        return np.asarray(_reference(workload_id)(*arrays)).astype(np.float64)


@functools.lru_cache(maxsize=20)
def evaluate(workload_id, draw, seed):
    """Inputs in the workload's dtypes, as float32, the reference, and XLA's own result."""
    inputs = workloads.get(workload_id).inputs(PRESET, draw, seed)
    exact = tuple(a.astype(np.float32) for a in inputs)
    return inputs, exact, run(workload_id, exact), run(workload_id, inputs)


def rms(x):
    """Root of the mean square."""
    return float(np.sqrt(np.mean(np.square(x))))


def margin(case, out):
    """Error over what the tolerance allows; above one the output fails."""
    tolerance = workloads.get(case[0]).tolerance
    _, _, ref, xla = evaluate(*case)
    out = np.asarray(out, np.float64)
    assert out.shape == ref.shape
    error, scale = np.abs(out - ref), rms(ref)
    element = (error / (scale + np.abs(ref))).max() / tolerance.rel
    allowed = max(tolerance.xla_factor * rms(xla - ref) / scale, tolerance.floor)
    return max(element, rms(error) / scale / allowed)


def passes(case, out):
    """The rule as `workloads.Tolerance` states it."""
    return margin(case, out) <= 1


def within(case, out):
    """The largest error of an element over the limit for elements alone."""
    _, _, ref, _ = evaluate(*case)
    error = np.abs(np.asarray(out, np.float64) - ref) / (rms(ref) + np.abs(ref))
    return error.max() / workloads.get(case[0]).tolerance.rel


def constants(ref):
    """Outputs that do not depend on all that they should, by name."""
    outs = {
        "zeros": np.zeros_like(ref),
        "ones": np.ones_like(ref),
        "mean": np.full_like(ref, ref.mean()),
        "median": np.full_like(ref, np.median(ref)),
    }
    for axis, size in enumerate(ref.shape):
        if size > 1:
            mean = ref.mean(axis, keepdims=True)
            outs[f"mean of axis {axis}"] = np.broadcast_to(mean, ref.shape)
            first = np.take(ref, [0], axis)
            outs[f"first of axis {axis}"] = np.broadcast_to(first, ref.shape)
    return outs


def incomplete(ref):
    """Outputs of which a block is missing: zeros or the block's mean in its place."""
    outs = {}
    for axis, size in enumerate(ref.shape):
        if size == 1:
            continue
        parts = {"last": slice(-1, None)}
        if size > 64:
            parts = {"last 64": slice(-64, None), "middle 8": slice(size // 2, size // 2 + 8)}
        for name, part in parts.items():
            place = (*[slice(None)] * axis, part)
            for fill in (0.0, ref[place].mean()):
                out = ref.copy()
                out[place] = fill
                outs[f"{name} of axis {axis} are {fill:.3g}"] = out
    return outs


def ignoring(case, without_effect=(), only_through_its_sum=()):
    """Results with each input replaced by zeros, ones and its mean in turn.

    Args:
        case: The case.
        without_effect: Inputs that cancel.
        only_through_its_sum: Inputs whose mean says all that matters of them.
    """
    _, exact, _, _ = evaluate(*case)
    outs = {}
    for i, name in enumerate(workloads.get(case[0]).presets[PRESET].args):
        if name in without_effect:
            continue
        values = {"zeros": 0.0, "ones": 1.0, "its mean": exact[i].mean()}
        if exact[i].size == 1 or name in only_through_its_sum:
            del values["its mean"]
        for what, value in values.items():
            changed = [*exact]
            changed[i] = np.full_like(exact[i], value)
            outs[f"{name} replaced by {what}"] = run(case[0], changed)
    return outs


def passing(case, outs):
    """The names of the outputs that pass."""
    return [name for name, out in outs.items() if passes(case, out)]


def shortened(case, *, axis=1, argument="x"):
    """Results with a part of K (the axis of x) left out: 1 % at the end, a block, half."""
    _, exact, _, _ = evaluate(*case)
    names = list(workloads.get(case[0]).presets[PRESET].args)
    i = names.index(argument)
    size = exact[i].shape[axis]
    outs = {}
    for name, part in (
        ("the last 1 % of K left out", slice(size - max(8, size // 96), None)),
        ("one block of K left out", slice(128, 256)),
        ("half of K left out", slice(size // 2, None)),
    ):
        changed = [*exact]
        changed[i] = exact[i].copy()
        changed[i][(slice(None),) * axis + (part,)] = 0
        outs[name] = run(case[0], changed)
    return outs


def rearranged(case):
    """Results of the right rows in the wrong places, and of rows that were mixed up."""
    _, exact, ref, _ = evaluate(*case)
    mixed = [exact[0].reshape(-1, 128, exact[0].shape[-1]).mean(1).repeat(128, 0), *exact[1:]]
    return {
        "swapped row blocks": run(
            case[0],
            [np.concatenate([exact[0][128:256], exact[0][:128], exact[0][256:]])] + [*exact[1:]],
        ),
        "means of blocks of rows of x": run(case[0], mixed),
    }
