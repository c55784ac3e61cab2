"""What a parsed listing consists of; `bundles.py` makes these from text."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path

#: Classes that slots are counted by, in the order of `Listing.histogram`. The matrix unit has
#: three: "matmul" and "matmul_f32" multiply packed and 32-bit rows, "mxu" is everything else.
SLOT_CLASSES = (
    "mxu",
    "xlu",
    "eup",
    "vpu",
    "load",
    "store",
    "scalar",
    "spill_load",
    "spill_store",
    "matmul",
    "matmul_f32",
)

_EUP = ("vpow", "vexp", "vrcp", "vrsqrt", "vlog", "vtanh", "verf", "vsin", "vcos")
_CONTROL = ("vtrace", "vsettm", "vsetiar")


@dataclass(frozen=True, slots=True)
class Reg:
    """An SSA value of kind "s" (scalar), "p" (predicate), "" (of an effect) or a vector one."""

    kind: str
    number: int
    negated: bool = False
    physical: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Address:
    """A sum of at most one allocation, some registers and a constant, in words."""

    allocation: str = ""
    registers: tuple[Reg, ...] = ()
    offset: int = 0

    @property
    def is_spill(self) -> bool:
        """Whether this is a spill slot, which only its own loads and stores use."""
        return self.allocation.endswith("_spill") and not self.registers


Operand = int | Reg | Address | None


@dataclass(slots=True)
class Instruction:
    """One instruction that can steer time.

    Attributes:
        op: Opcode, for instance "scmp.ge.s32.totalorder".
        dest: The SSA value it defines.
        guard: Predicate under which it has an effect.
        old: Value of `dest` when the guard does not hold.
        args: Positional operands; of `sld` and `sst` the address comes first.
        named: Operands by name (DMAs).
        target: Region number of a branch.
        callee: Program called by an `inlined_call`.
        operand: Operand index of an `inlined_call_operand`.
        path: Source and destination memory of a DMA, where the listing says so.
        window_bytes: Bytes of the window (else of the whole array) that a DMA moves, 0 if not said.
        run_bytes: Bytes of one contiguous run of the window, 0 if not said.
        flags: Exact notes that change the meaning: "remainder" and "both" of
            divisions, "sparse-core-wait", "core-id".
    """

    op: str
    dest: Reg | None = None
    guard: Reg | None = None
    old: Operand = None
    args: tuple[Operand, ...] = ()
    named: dict[str, Operand] = field(default_factory=dict)
    target: int | None = None
    callee: str = ""
    operand: int = -1
    path: tuple[str, str] | None = None
    window_bytes: int = 0
    run_bytes: int = 0
    flags: frozenset[str] = frozenset()


@dataclass
class Listing:
    """One parsed program.

    Attributes:
        name: Name of the HLO instruction it implements, or "" where the listing does not say.
        length: Number of bundles.
        bundles: Instructions by bundle address.
        regions: Bundle address at which each region starts.
        malformed: Reasons to distrust the listing; empty for everything that libtpu writes itself.
        unknown: Forms that this parser was not written for, as another libtpu may write them.
        labels: Two letters before a bundle: "LB" where a backward branch goes to, "PF" a forward
            one.
        prefix: For each of `SLOT_CLASSES`, the instructions before each bundle.
        path: The file that it was read from.
    """

    name: str = ""
    length: int = 0
    bundles: dict[int, list[Instruction]] = field(default_factory=dict)
    regions: dict[int, int] = field(default_factory=dict)
    malformed: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    labels: dict[int, str] = field(default_factory=dict)
    prefix: list[array] = field(default_factory=list)
    path: Path | None = None

    def histogram(self, start: int, end: int) -> list[int]:
        """Instructions of each of `SLOT_CLASSES` in the bundles from `start` up to `end`."""
        return [counts[end] - counts[start] for counts in self.prefix]


def classify(op: str) -> int:
    """Index into `SLOT_CLASSES` of a vector opcode."""
    if op.startswith("vmatmul"):
        return 10 if ".f32" in op else 9
    if ".mxu" in op or op.startswith("vmat"):
        return 0
    if ".xlu" in op or op.startswith(("vrot", "vxpose", "vperm")):
        return 1
    if op.endswith(".eup") or op.startswith(_EUP):
        return 2
    if op.startswith("vld"):
        return 4
    if op == "vst" or op.startswith("vst."):
        return 5
    return 6 if op.startswith(_CONTROL) else 3
