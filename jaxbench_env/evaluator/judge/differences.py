"""What a wrong output looks like, in words: how many elements, where, and which known mistake."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_CLOSE = 0.02  # relative RMS error that is left where a pattern explains an output
_SHIFTS = (1, 2, 8, 16, 32, 64, 128, 256, 512, 1024)
_SAMPLE = 1 << 22  # elements that whole-output patterns are tried on
_ROUNDING = 0.1  # relative RMS errors up to this can come from rounding


def describe(
    out: np.ndarray, ref: np.ndarray, bad: np.ndarray, worst: tuple[int, ...], rms_error: float
) -> str:
    """Says in one line what differs.

    Args:
        out: The output, float32.
        ref: The reference, float32, same shape.
        bad: Which elements are wrong.
        worst: Index of the worst element.
        rms_error: RMS of the error over that of the reference.
    """
    count = int(bad.sum())
    head = (
        f"{count:,} of {bad.size:,} elements differ ({count / bad.size:.1%}), worst at {worst}: "
        f"got {out[worst]:.6g}, want {ref[worst]:.6g}"
    )
    return "; ".join([head, *patterns(out, ref, bad, rms_error)])


def patterns(out: np.ndarray, ref: np.ndarray, bad: np.ndarray, rms_error: float) -> list[str]:
    """Names for the shapes that mistakes usually have; empty if it looks like none of them."""
    wrong = ~np.isfinite(out) & bad
    if wrong.any():
        kind = "NaN" if np.isnan(out[wrong]).any() else "infinity"
        return [f"{kind} in {int(wrong.sum()):,} elements", *places(wrong)]
    whole = next(_whole(out, ref), None)
    if whole is not None:
        return [whole]
    found = places(bad)
    triangle = _triangle(bad)
    if triangle:
        found = [triangle]
    if not np.any(out[bad]):
        found.append("the wrong elements are zero, as if never written")
    if not found and rms_error < _ROUNDING and bad.mean() < 0.5:
        found.append(
            f"a relative error of {rms_error:.1%} all over the output, as if accumulated in "
            "bfloat16; accumulate in float32 and round once"
        )
    return found


# ------------------------------------------------------------------------- the whole output


def _whole(out: np.ndarray, ref: np.ndarray) -> Iterator[str]:
    """Explanations of all of the output, the simplest first."""
    if not out.any():
        yield "the output is all zero"
    if out.size > 1 and np.ptp(out) == 0:
        yield "the output is one constant"
    if out.size < 8 or not np.isfinite(ref).all():
        return  # too little to tell anything from
    factor = _factor(out, ref)
    if factor is not None and abs(factor - 1) > 0.01:
        yield (
            "the sign is flipped"
            if abs(factor + 1) < 0.01
            else f"the output is the reference scaled by {factor:.4g}"
        )
    yield from _moved(out, ref)


def _sampled(out: np.ndarray, ref: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    step = max(1, out.size // _SAMPLE)
    return out.reshape(-1)[::step].astype(np.float64), ref.reshape(-1)[::step].astype(np.float64)


def _factor(out: np.ndarray, ref: np.ndarray) -> float | None:
    """The factor between both, if there is one."""
    got, want = _sampled(out, ref)
    square = np.vdot(got, got)
    inverse = np.vdot(got, want) / square if square else 0.0
    if inverse == 0 or not _same(inverse * got, want):
        return None
    return 1 / float(inverse)


def _same(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether one explains the other, and is not merely as constant as it."""
    spread = np.std(want, dtype=np.float64)
    error = np.sqrt(np.mean(np.square(got - want, dtype=np.float64)))
    return bool(spread > 0 and error < _CLOSE * spread)


def _moved(out: np.ndarray, ref: np.ndarray) -> Iterator[str]:
    """Right values in wrong places."""
    if out.ndim >= 2 and min(out.shape[-2:]) > 1:
        *outer, rows, columns = out.shape
        flipped = out.reshape(*outer, columns, rows).swapaxes(-1, -2)
        if _same(flipped, ref):
            yield "the last two axes are transposed"
    for axis in reversed(range(out.ndim)):
        size = out.shape[axis]
        for shift in (s for s in _SHIFTS if 4 * s <= size or s == 1 < size - 2):
            ahead, behind = _along(axis, shift, size), _along(axis, 0, size - shift)
            for got, want, sign in ((ahead, behind, ""), (behind, ahead, "-")):
                # A few elements rule out nearly every shift.
                few = tuple(slice(0, 64) for _ in out.shape)
                if _same(out[got][few], ref[want][few]) and _same(out[got], ref[want]):
                    yield f"{_noun(axis, out.ndim)} are shifted by {sign}{shift}"
                    return


def _along(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(start, stop))


# ------------------------------------------------------------------------------------ places


def places(bad: np.ndarray) -> list[str]:
    """Axes along which the wrong elements are confined: a range, or every n-th block."""
    found = []
    for axis in range(bad.ndim):
        size = bad.shape[axis]
        others = tuple(i for i in range(bad.ndim) if i != axis)
        wrong = np.flatnonzero(bad.any(axis=others))
        if len(wrong) in (0, size):
            continue
        where = _range(wrong, size, axis, bad.ndim) or _period(wrong, size, axis, bad.ndim)
        if where:
            found.append(where)
    return found


def _noun(axis: int, ndim: int) -> str:
    """Rows and columns are the last two axes; others go by their number."""
    if ndim >= 2 and axis >= ndim - 2:
        return "rows" if axis == ndim - 2 else "columns"
    return f"indices of axis {axis}"


def _range(wrong: np.ndarray, size: int, axis: int, ndim: int) -> str:
    first, last, noun = int(wrong[0]), int(wrong[-1]), _noun(axis, ndim)
    count = last - first + 1
    if count != len(wrong):
        return ""
    if count == 1:
        return f"only index {first} of axis {axis} (size {size})"
    if last == size - 1:
        return f"only the last {count} {noun} (axis {axis}, size {size})"
    if first == 0:
        return f"only the first {count} {noun} (axis {axis}, size {size})"
    return f"only {noun} {first} to {last} (axis {axis}, size {size})"


def _period(wrong: np.ndarray, size: int, axis: int, ndim: int) -> str:
    """Blocks of one length at one distance; at least three, for two may be chance."""
    starts = wrong[np.flatnonzero(np.diff(wrong, prepend=-2) > 1)]
    ends = wrong[np.flatnonzero(np.diff(wrong, append=size + 1) > 1)] + 1
    lengths, gaps = ends - starts, np.diff(starts)
    if len(starts) < 3 or (gaps != gaps[0]).any() or (lengths[:-1] != lengths[0]).any():
        return ""
    length, gap = int(lengths[0]), int(gaps[0])
    if lengths[-1] > length or len(starts) < 0.9 * (size - starts[0]) / gap:
        return ""
    what, noun = f"every {_ordinal(gap)}", _noun(axis, ndim).replace("indices", "index")
    if length > 1 and gap % length == 0:
        what = f"every {_ordinal(gap // length)} block of {length}"
        return f"{what} {_noun(axis, ndim)} from {int(starts[0])} on (axis {axis}, size {size})"
    if length > 1:
        what = f"{length} of every {gap}"
        return f"{what} {_noun(axis, ndim)} from {int(starts[0])} on (axis {axis}, size {size})"
    singular = noun.removesuffix("s") if noun.endswith("s") else noun
    return f"{what} {singular} from {int(starts[0])} on (axis {axis}, size {size})"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def _triangle(bad: np.ndarray) -> str:
    """Whether exactly one side of the diagonal of the last two axes is wrong."""
    if bad.ndim < 2 or bad.shape[-1] != bad.shape[-2] or bad.shape[-1] < 8:
        return ""
    flat = bad.reshape(-1, *bad.shape[-2:]).any(axis=0)
    upper, lower = np.triu(flat, 1), np.tril(flat, -1)
    half = flat.shape[0] * (flat.shape[0] - 1) / 2
    for side, other, name in ((upper, lower, "upper"), (lower, upper, "lower")):
        if not other.any() and side.sum() > 0.5 * half:
            return f"only the {name} triangle of the last two axes is wrong (causal mask?)"
    return ""
