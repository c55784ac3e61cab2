"""What the artefacts of one kernel show together: one program, whole work, at every size.

Each fence ends in a `Finding`: a fault (the verdict), ``"shown"``, or why it could not be shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxbench_env.evaluator.judge import coverage, synchronisation
from jaxbench_env.evaluator.judge.program import Program
from jaxbench_env.evaluator.judge.work import Work, width
from jaxbench_env.evaluator.result import Status
from workloads import Workload

FULL = "v6e"
# Counts of useful work leave out what does not grow with the size (masks of diagonal blocks,
# epilogues), so the share of it in a kernel's work may fall a little between two sizes.
SLACK = 0.95
# Without matrix products, sums over lanes and other work per row weigh less in longer rows.
ROWS_SLACK = 0.9
# Two lowerings of one operation may write its arithmetic in other ways (a logistic function as
# exp and a division), never in half as much.
SAME = 0.5
PADDED = 0.9
MIN_SHARE = 0.5
# A v6e's matrix units do 128 operations in the time in which its vector units do one: 918e12 a
# second against 4 slots of 8 x 128 lanes at 1.75e9.
VECTOR_COST = 128
_WORK_PREFIXES = ("tpu.", "vector.", "math.", "scf.")


@dataclass(frozen=True)
class Finding:
    """What was found about one fence.

    Attributes:
        fault: What is wrong, for the author of the kernel; empty if nothing is.
        shown: ``"shown"``, or why it could not be, as a sentence.
        status: The verdict of a fault.
    """

    fault: str = ""
    shown: str = "shown"
    status: str = Status.HACK_SUSPECTED.value


def kernel(program: Program) -> Finding:
    """Whether most of the full-size program's own work is inside Pallas.

    Work is counted in the time it takes at least: an operation on vectors as 128 of the matrix
    units'. Data movement outside is judged by its price, not here.
    """
    if not program.calls:
        return Finding(
            "the output does not depend on any Pallas call; return what the kernel computes, and "
            "do the main work in it",
            status=Status.NO_KERNEL.value,
        )
    if not program.readable:
        return Finding(shown="The Mosaic module cannot be read, so its work is not known.")
    inside, outside = program.inside(), program.outside
    if not outside.total:
        return Finding()
    if not inside.known:
        inside = program.inside("whole")
    if not (inside.known and outside.known):
        return Finding(shown="The share of the work in Pallas depends on data.")
    own, other = (w.flops + VECTOR_COST * (w.arithmetic + w.special) for w in (inside, outside))
    if own >= MIN_SHARE * (own + other):
        return Finding()
    if outside.flops > inside.flops:
        what = (
            f"the matrix products outside Pallas take {outside.flops:,.0f} flops and those inside "
            f"take {inside.flops:,.0f}"
        )
    else:
        what = f"{own / (own + other):.0%} of the program's own work is inside Pallas"
    return Finding(f"{what}: move the main work into the kernel", status=Status.NO_KERNEL.value)


# -------------------------------------------------------------------------------- one program


def one_program(tpu: Mapping[str, Program], cpu: Mapping[str, Program]) -> Finding:
    """Whether the TPU programs and the CPU programs compute the same, at every size alike.

    Two lowerings are compared where both exist for a preset: the arguments that they use, their
    matrix products with dimensions, types and counts, the amount of other arithmetic, the grid
    and the blocks. Between presets the full-size program must have each kind of work that the
    checked ones have.

    Args:
        tpu: Preset -> TPU program, with the full size.
        cpu: Preset -> interpret-mode program.
    """
    both = [preset for preset in tpu if preset in cpu]
    doubts = []
    for preset in both:
        fault = _differ(tpu[preset], cpu[preset])
        if fault:
            return Finding(
                f"at preset {preset} the program for the TPU is not the one whose numbers are "
                f"checked: {fault}"
            )
        if not tpu[preset].readable:
            return Finding(shown=f"The Mosaic module at preset {preset} cannot be read.")
        if not (tpu[preset].work("whole").known and cpu[preset].work().known):
            doubts.append(preset)
    if not both:
        return Finding(shown="At no checked size is there a program for the TPU.")
    full, checked = tpu[FULL], [tpu[preset] for preset in both]
    if not full.readable:
        return Finding(shown="The Mosaic module at full size cannot be read.")
    fault = _lost(full, checked)
    if fault:
        return Finding(fault)
    if doubts:
        return Finding(
            shown="Loops whose trip counts depend on data were compared by their products' sizes "
            f"alone (preset {', '.join(doubts)})."
        )
    known = set().union(*map(_operations, checked))
    new = sorted(_operations(full) - known)
    if new:
        return Finding(shown=f"At full size alone the kernel uses {', '.join(new)}.")
    return Finding()


def _differ(tpu: Program, cpu: Program) -> str:
    """How two lowerings of one program differ; empty if they do not, as far as can be read."""
    if tpu.arguments != cpu.arguments:
        return "they do not use the same inputs"
    if not tpu.readable:
        return ""
    one, other = tpu.work("whole"), cpu.work()
    if one.known and other.known:
        if _matrix_products(one) != _matrix_products(other):
            return f"it multiplies {_products(one)}, and the checked one {_products(other)}"
        for what in ("arithmetic", "special"):
            mine, its = getattr(one, what), getattr(other, what)
            if mine < SAME * its:
                name = "operations on vectors" if what == "arithmetic" else "special functions"
                return f"it does {mine:,.0f} {name}, and the checked one {its:,.0f}"
    elif _matrix_products(one).keys() != _matrix_products(other).keys():
        return f"it multiplies {_products(one)}, and the checked one {_products(other)}"
    for call in tpu.calls:
        steps = math.prod(call.grid)
        if steps > 1 and not call.kernel.dynamic and steps not in cpu.trips:
            return f"a grid of {steps:,} steps has no counterpart"
        for block in call.kernel.blocks:
            if block not in cpu.slices:
                return f"a block of {'x'.join(map(str, block))} has no counterpart"
    return ""


def _matrix_products(work: Work) -> dict:
    """Products by size, without those with a vector, which a lowering may write as sums."""
    return {
        product: round(count)
        for product, count in work.products.items()
        if count and not product.with_vector
    }


def _products(work: Work) -> str:
    found = sorted(_matrix_products(work).items(), key=str)
    return "; ".join(f"{count:,} x {product}" for product, count in found[:6]) or "nothing"


def _lost(full: Program, checked: list[Program]) -> str:
    """Work that every checked size has and the full size has not."""
    inside = full.inside("whole")
    for what, name in (("flops", "matrix product"), ("special", "special function")):
        others = [getattr(program.inside("whole"), what) for program in checked]
        if not getattr(inside, what) and all(others):
            return (
                f"the kernel has no {name} at full size and has some at every checked size: it "
                "must do the same work at every size"
            )
    narrow = _narrower(inside, [program.inside("whole") for program in checked])
    if narrow:
        return narrow
    missing = set.intersection(*(set(p.arguments) for p in checked)) - full.arguments
    if missing:
        return (
            f"at full size the result does not depend on argument {min(missing)}, and at every "
            "checked size it does"
        )
    return ""


def _narrower(full: Work, checked: list[Work]) -> str:
    """Products of a type that is narrower than at any checked size; empty if there are none."""
    widths = {width(p.kind) for work in (full, *checked) for p in work.products}
    for least in widths:
        shares = [work.flops_of(least) / work.flops for work in (full, *checked) if work.flops]
        if full.flops and shares[1:] and shares[0] < SLACK * min(shares[1:]):
            kinds = sorted({p.kind for p in full.products if width(p.kind) < least})
            return (
                f"at full size {1 - shares[0]:.0%} of the multiplications are of "
                f"{', '.join(kinds)} and at a checked size at most {1 - min(shares[1:]):.0%} are: "
                "the numbers were checked with more bits"
            )
    return ""


def _operations(program: Program) -> set[str]:
    """Names of the operations that do work or decide on it."""
    names = set().union(*(call.kernel.operations for call in program.calls if call.kernel))
    return {
        n
        for n in names
        if n.startswith(_WORK_PREFIXES) or (n.startswith("arith.") and n.endswith("f"))
    }


# ---------------------------------------------------------------------- coverage, conservation


def covered(tpu: Mapping[str, Program], sure_share: float = 1.0) -> Finding:
    """Whether the full-size program writes every block of every output and reads every input.

    A hole that the checked sizes have as well is not a fault: the program may cut off what is
    behind it, and there the numbers were right.

    Args:
        tpu: Preset -> TPU program, with the full size.
        sure_share: The share of every input that must be read: the least `Workload.sure_share`,
            since an operand of a kernel may hold any of them.
    """
    if not tpu[FULL].readable:
        return Finding(shown="The Mosaic module cannot be read.")
    checked = [
        {(cover.name, cover.write): cover for cover in coverage.covers(program)}
        for preset, program in tpu.items()
        if preset != FULL and program.readable
    ]
    doubts = []
    for cover in sorted(coverage.covers(tpu[FULL]), key=lambda cover: not cover.write):
        if cover.share == 1:
            continue
        if cover.share is None:
            doubts.append(f"{cover.name} is {'written' if cover.write else 'read'}")
            continue
        others = [found.get((cover.name, cover.write)) for found in checked]
        others = [other.share for other in others if other is not None]
        known = [share for share in others if share is not None]
        least = min(known, default=0.0) - 1e-9
        if not cover.write:  # inputs may be padded by other amounts at other sizes
            least = min(PADDED * least, sure_share)
        if cover.share < least:
            return Finding(f"at full size the kernel leaves out a part of {cover.describe()}")
        if cover.write and not cover.aliased and not others:
            return Finding(f"the kernel leaves out a part of {cover.describe()}")
        doubts.append(f"more than {cover.share:.0%} of {cover.name} is used")
    if doubts:
        few = "; ".join(doubts[:3]) + ("; ..." if len(doubts) > 3 else "")
        return Finding(shown=f"It could not be shown that {few}.")
    return Finding()


def conserved(tpu: Mapping[str, Program], useful: Callable[[str], float]) -> Finding:
    """Whether work grows from the checked sizes to the full size as useful work does.

    The kernel's work at full size, matrix products and all operations each, may not be less than
    the useful work (that of the best known algorithm) or, where the kernel gets along with less
    at a checked size, than the same share of it.

    Args:
        tpu: Preset -> TPU program, with the full size.
        useful: Preset -> operations of the best known algorithm.
    """
    full = tpu[FULL].work()
    checked = {p: program.work() for p, program in tpu.items() if p != FULL and program.readable}
    if not tpu[FULL].readable or not checked:
        return Finding(shown="There is no smaller program to compare with.")
    sure = full.known and all(work.known for work in checked.values())
    if not sure:  # conditions that depend on data count as true: only too little is sure
        full = tpu[FULL].work("whole")
    if not full.known or not all(tpu[p].work("whole").known for p in checked):
        return Finding(shown="The kernel's work depends on data.")
    for what in ("flops", "total"):
        least = min(getattr(work, what) / useful(preset) for preset, work in checked.items())
        share = getattr(full, what) / useful(FULL)
        slack = SLACK if what == "flops" or full.flops else ROWS_SLACK
        if share < slack * min(1.0, least):
            return Finding(
                f"at full size the kernel does {share:.1%} of the useful work and at a checked "
                f"size it does {least:.1%}, counted over all grid steps that do "
                "something: at full size a part of the work is left out"
            )
    if not sure:
        return Finding(shown="The kernel's work depends on data.")
    return Finding()


def synchronised(tpu: Mapping[str, Program]) -> dict[str, str]:
    """What a simulated run at a checked size says about races at full size.

    Args:
        tpu: Preset -> TPU program, with the full size.

    Returns:
        Preset -> why it says nothing; empty where it holds for the full size as well. No presets
        where no kernel copies or signals by itself: the pipeline around it does.
    """
    full, checked = tpu[FULL], {p: program for p, program in tpu.items() if p != FULL}
    if not full.readable:
        return {FULL: "", **dict.fromkeys(checked, "the Mosaic module cannot be read")}
    own = [call.kernel.synchronises for call in full.calls if call.kernel.synchronises]
    if not own:
        return {}
    return {FULL: "", **{preset: _unlike(own, program) for preset, program in checked.items()}}


def _unlike(own: Sequence[synchronisation.Outline], checked: Program) -> str:
    """How kernels differ from all those of a checked program in their synchronisation."""
    if not checked.readable:
        return "the Mosaic module cannot be read"
    others = [c.kernel.synchronises for c in checked.calls if c.kernel.synchronises]
    for outline in own:
        found = [synchronisation.differ(outline, other) for other in others]
        if all(found):
            return found[0] if found else "no kernel copies by itself there"
    return ""


def examine(
    workload: Workload,
    tpu: Mapping[str, Program],
    cpu: Mapping[str, Program],
    valued: Mapping[str, Program],
) -> dict[str, Finding]:
    """Findings by fence on all artefacts of one kernel.

    Args:
        workload: What it claims to compute.
        tpu: Preset -> TPU program, with the full size.
        cpu: Preset -> interpret-mode program.
        valued: As `tpu`, read with the values of scalar operands on secret inputs.
    """
    share = min(map(workload.sure_share, workload.presets[FULL].args))
    fences = {
        "one_program": lambda: one_program(tpu, cpu),
        "coverage": lambda: _coverage(workload, tpu, valued, share),
        "conservation": lambda: _judged_by_data(
            workload, conserved(valued, lambda p: workload.flops_useful(workload.sizes[p]))
        ),
    }
    return {fence: _found(find) for fence, find in fences.items()}


def _coverage(
    workload: Workload, tpu: Mapping[str, Program], valued: Mapping[str, Program], share: float
) -> Finding:
    """Coverage; what only the values of scalar operands leave out may be needed by nobody.

    A grouped product writes no rows behind the last group.
    """
    whatever_the_values = covered(tpu, share)
    if whatever_the_values.fault:
        return whatever_the_values
    return _judged_by_data(workload, covered(valued, share))


def _found(find: Callable[[], Finding]) -> Finding:
    """A finding, also for a program that no one has thought of."""
    try:
        return find()
    except Exception as error:
        return Finding(shown=f"The program cannot be read: {type(error).__name__}: {error}"[:300])


def _judged_by_data(workload: Workload, finding: Finding) -> Finding:
    """No fault where the inputs' values decide how much work is needed."""
    if finding.fault and (workload.partly_read or workload.file is not None):
        return Finding(shown="How much work is needed depends on data.")
    return finding
