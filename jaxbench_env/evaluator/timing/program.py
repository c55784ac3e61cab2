"""Control flow of one parsed program: basic blocks, live scalar values, compilation to Python."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jaxbench_env.evaluator.timing import values
from jaxbench_env.evaluator.timing.constants import MatrixUnits
from jaxbench_env.evaluator.timing.effects import (
    Key,
    defined,
    key_of,
    memories,
    operand_keys,
    steers,
    used,
)
from jaxbench_env.evaluator.timing.listing import (
    SLOT_CLASSES,
    Address,
    Instruction,
    Listing,
    Operand,
    Reg,
)
from jaxbench_env.evaluator.timing.lowering import TICKS, Lowering

DELAY_SLOTS = 4  # bundles after a branch that are executed either way
MAX_BLOCK = 1024  # bundles; longer stretches are split, so that code stays small
LINES_PER_STEP = 256  # generated lines that run at the price of one step
MAX_PHIS = 64  # fed by one value
LEAVE = -1  # successor of the last block
LOST = -2  # successor that the listing does not define

_SPACES = ("hbm", "vmem", "smem", "sflag", "cmem")
_NAMESPACE = {"U": values.UNKNOWN, "divide": values.divide, "shift": values.shift}


class AddressMap:
    """Base addresses of the allocations of all programs of one executable."""

    SPACING = 1 << 18  # words; all of SMEM
    LIMIT = (1 << 29) // SPACING

    def __init__(self) -> None:
        """Starts with no allocation placed."""
        self._bases: dict[tuple[int, str], int] = {}

    def base(self, program: int, allocation: str) -> int | None:
        """Base address of an allocation of a program; None when there is no room left."""
        key = (program, allocation)
        if key not in self._bases:
            if len(self._bases) >= self.LIMIT - 1:
                return None
            self._bases[key] = (len(self._bases) + 1) * self.SPACING
        return self._bases[key]


@dataclass
class Block:
    """A basic block with the delay slots of its branch.

    Attributes:
        start: First bundle.
        end: Bundle after the last one.
        branch: The branch that ends it, if any.
        branch_at: Bundle of the branch.
        taken: Index of the block that the branch goes to, or `LOST`.
        falls: Index of the block that follows, or `LEAVE`.
        code: Compiled function (registers, engine, time) -> (next block, time); made on first use.
        cost: Steps that running it takes from the budget, known once it is compiled.
    """

    start: int
    end: int
    branch: Instruction | None
    branch_at: int
    taken: int
    falls: int
    code: Callable | None = None
    cost: int = 1


class Program:
    """One program, ready to be replayed.

    Attributes:
        name: HLO name, for reports.
        number: Distinguishes the allocations of programs.
        blocks: Basic blocks in the order of the listing; execution starts at block 0.
        headers: Indices of the blocks that a backward branch goes to.
        size: Number of entries of the register table.
        counter: Register table index and bound of the counter of its longest counted loop.
        callees: Names of the programs that it calls.
        remarks: Opcodes that reports refer to by index.
        matrix: The matrix units it runs on.
        transfers: DMAs of the blocks that were compiled, by the index their code mentions.
    """

    def __init__(
        self,
        name: str,
        number: int,
        listing: Listing,
        addresses: AddressMap,
        top_level: bool = False,
        matrix: MatrixUnits = MatrixUnits(),  # noqa: B008 - immutable
        core: int | None = None,
    ):
        """Finds blocks and live values; code is made when a block first runs."""
        self.name, self.number, self.listing, self.matrix = name, number, listing, matrix
        self._definitions: dict[Key, list[Instruction]] = {}
        self._dividers: dict[int, Instruction] = {}
        halts: set[Reg] = set()
        for address in sorted(listing.bundles):
            for one in listing.bundles[address]:
                if one.op == "shalt.err" and one.guard is not None:
                    halts.add(one.guard)
                key = defined(one)
                if key is not None:
                    self._definitions.setdefault(key, []).append(one)
                elif one.op.startswith("sdivrem") and one.dest is not None:
                    self._dividers[one.dest.number] = one
        self._label_pops()
        self.blocks, self.headers = _blocks(listing)
        self._addresses = sorted(listing.bundles)
        self._only_vector: dict[int, bool] = {}
        self._number_values()
        self.counter = self._counted_loop()
        self._lowering = Lowering(
            slots=self._slots,
            shared=self._shared,
            phis=self._phis,
            dividers=self._dividers,
            base=lambda allocation: addresses.base(number, allocation),
            space=self._space,
            source_operand=self._source_operand,
            top_level=top_level,
            core=core,
            halts=frozenset(halts),
        )
        self.callees, self.remarks = self._lowering.callees, self._lowering.remarks
        self.transfers = self._lowering.transfers

    def _label_pops(self) -> None:
        """Divisions that give both results are popped twice: the quotient, then the remainder."""
        pops: dict[int, list[Instruction]] = {}
        for address in sorted(self.listing.bundles):
            for one in self.listing.bundles[address]:
                source = one.args[0] if one.op.startswith("spop") and one.args else None
                divider = self._dividers.get(source.number) if isinstance(source, Reg) else None
                if divider is not None and "both" in divider.flags:
                    pops.setdefault(source.number, []).append(one)
        for found in pops.values():
            if len(found) == 2:
                for one, what in zip(found, ("quotient", "remainder"), strict=True):
                    one.flags = frozenset({what})

    # ---- which values matter

    def _live(self) -> set[Key]:
        """Values that branches, DMAs, flags, stores or calls depend on."""
        live: set[Key] = set()
        work: list[Key] = []

        def need(keys: list[Key]) -> None:
            for key in keys:
                if key not in live:
                    live.add(key)
                    work.append(key)

        for instructions in self.listing.bundles.values():
            for one in instructions:
                if steers(one):
                    need(used(one, self._dividers))
        while work:
            for one in self._definitions.get(work.pop(), ()):
                need(used(one, self._dividers))
        return live

    def _number_values(self) -> None:
        """Gives live values a register table index and finds those that outlive their block."""
        live = self._live()
        self._phis: dict[Key, list[Key]] = {}
        keys: list[Key] = []
        for key, definitions in self._definitions.items():
            if key not in live:
                continue
            keys.append(key)
            if any(one.op in ("sphi", "pphi") for one in definitions):
                keys.append(("next", *key))
                for one in definitions:
                    for operand in one.args:
                        for source in operand_keys(operand):
                            fed = self._phis.setdefault(source, [])
                            if len(fed) < MAX_PHIS:
                                fed.append(key)
                            else:
                                self.listing.malformed.add("a value feeds too many phis")
        self._slots = {key: index for index, key in enumerate(keys)}
        self.size = len(keys)
        home: dict[int, int] = {}
        self._shared = {self._slots[key] for key in keys if key[0] in ("next", "spill")}
        for index, block in enumerate(self.blocks):
            for one in self._instructions(block.start, block.end):
                touched = used(one, self._dividers)
                key = defined(one)
                if key is not None:
                    touched = [*touched, key]
                for each in touched:
                    slot = self._slots.get(each)
                    if slot is not None and home.setdefault(slot, index) != index:
                        self._shared.add(slot)

    def _instructions(self, start: int, end: int) -> list[Instruction]:
        addresses = self._range(start, end)
        return [one for address in addresses for one in self.listing.bundles[address]]

    def _range(self, start: int, end: int) -> list[int]:
        return self._addresses[
            bisect_left(self._addresses, start) : bisect_left(self._addresses, end)
        ]

    # ---- where addresses come from

    def _definition(self, operand: Operand) -> Instruction | None:
        if not isinstance(operand, Reg):
            return None
        definitions = self._definitions.get(key_of(operand))
        return definitions[0] if definitions else None

    def _origins(self, operand: Operand) -> Iterator[Instruction | Address]:
        """What an address is made from, nearest first; bounded, and each value once."""
        stack, seen = [operand], set()
        while stack and len(seen) < 64:
            source = stack.pop()
            if isinstance(source, Address):
                if source.allocation:
                    yield source
                stack += source.registers[::-1]
                continue
            one = self._definition(source)
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            yield one
            stack += one.args[::-1]

    def _space(self, operand: Operand) -> str:
        """Memory that an address points into, from the way it was made; "" if not told."""
        for origin in self._origins(operand):
            if isinstance(origin, Address):
                return "vmem"
            for space in _SPACES:
                if origin.op.endswith("." + space):
                    return space
            if origin.op == "scalar_parameter_address":
                return "hbm"
        return ""

    def _source_operand(self, operand: Operand) -> int:
        """Index of the program operand that an address points into, or -1."""
        for origin in self._origins(operand):
            if isinstance(origin, Instruction) and origin.op.startswith("inlined_call_operand"):
                return origin.operand
        return -1

    def route(self, dma: Instruction) -> tuple[str, str, int]:
        """Source and destination memory of a DMA ("?" if not told) and the program's operand."""
        ends = [end if end in _SPACES else "?" for end in memories(dma, self._space)]
        for name in ("hbm", "src", "dst"):
            operand = self._source_operand(dma.named.get(name))
            if operand >= 0:
                return ends[0], ends[1], operand
        return ends[0], ends[1], -1

    # ---- code

    def compile(self, index: int) -> Callable:
        """Compiles block `index` on first use."""
        block = self.blocks[index]
        if block.code is None:
            namespace = {**_NAMESPACE, "P": self}
            source = self.source(index)
            block.cost += source.count("\n") // LINES_PER_STEP
            exec(compile(source, "<block>", "exec"), namespace)
            block.code = namespace["block"]
        return block.code

    def source(self, index: int) -> str:
        """Python source of block `index`; see `lowering.py` for why it is safe to run."""
        block = self.blocks[index]
        low = self._lowering
        low.begin_block(index)
        lines: list[str] = []
        for address in self._range(block.start, block.end):
            lines += low.bundle(self.listing.bundles[address], address - block.start)
            if address == block.branch_at and block.branch.guard is not None:
                # the predicate is read here: delay slots may already compute the next one
                lines.append(f"b = {low.condition(block.branch)}")
        lines.append(f"t += {round(self.cycles(block) * TICKS)}")
        if block.branch is None:
            lines.append(f"return ({block.falls}, t)")
        elif block.branch.guard is None:
            lines.append(f"return ({block.taken}, t)")
        else:
            lines += [
                f"if b is True: return ({block.taken}, t)",
                f"if b is False: return ({block.falls}, t)",
                f"return (E.unknown_branch({index}, P), t)",
            ]
        return "def block(R, E, t):\n" + "".join(f"  {line}\n" for line in lines)

    def cycles(self, block: Block) -> float:
        """Cycles of a block that waits for nothing: its bundles, or its multiplications."""
        bundles = block.end - block.start
        if not self.matrix.queue:
            return bundles
        counts = dict(
            zip(SLOT_CLASSES, self.listing.histogram(block.start, block.end), strict=True)
        )
        return max(bundles, self.matrix.busy(counts["matmul"], counts["matmul_f32"]))

    def only_vector_work(self, index: int) -> bool:
        """Whether the branch of block `index` skips over nothing but vector work."""
        if index not in self._only_vector:
            self._only_vector[index] = self._skips_only_vector_work(index)
        return self._only_vector[index]

    def _skips_only_vector_work(self, index: int) -> bool:
        block = self.blocks[index]
        if block.taken <= index or block.falls < 0:
            return False
        skipped = self._instructions(block.end, self.blocks[block.taken].start)
        return not any(
            one.op.startswith("sbr") or steers(one) or defined(one) in self._slots
            for one in skipped
        )

    def _counted_loop(self) -> tuple[int, int] | None:
        """Register table index and bound of the counter of the longest counted loop."""
        best, found = 0, None
        for index, block in enumerate(self.blocks):
            branch = block.branch
            if branch is None or branch.guard is None or not 0 <= block.taken <= index:
                continue
            test = self._definition(branch.guard)
            if test is None or not branch.guard.negated or not test.op.startswith("scmp.ge"):
                continue
            counter, bound = (*test.args, None, None)[:2]
            length = index - block.taken + 1
            if isinstance(counter, Reg) and isinstance(bound, int) and bound > 0 and length > best:
                slot = self._slots.get(key_of(counter))
                if slot is not None:
                    best, found = length, (slot, bound)
                    self._shared.add(slot)
        return found


def _blocks(listing: Listing) -> tuple[list[Block], set[int]]:
    branches: dict[int, Instruction] = {}
    for address, instructions in listing.bundles.items():
        found = [one for one in instructions if one.op.startswith("sbr")]
        if found:
            branches[address] = found[0]
        if len(found) > 1:
            listing.malformed.add("two branches in one bundle")
    regions = _places(listing, branches)
    leaders = set(range(0, max(listing.length, 1), MAX_BLOCK))
    for address, branch in branches.items():
        leaders.add(address + DELAY_SLOTS + 1)
        if branch.target in regions:
            leaders.add(regions[branch.target])
    starts = sorted(leader for leader in leaders if leader < listing.length)
    index_of = {start: index for index, start in enumerate(starts)}
    places = sorted(branches)
    blocks: list[Block] = []
    headers: set[int] = set()
    for index, start in enumerate(starts):
        following = starts[index + 1] if index + 1 < len(starts) else listing.length
        place = bisect_left(places, start)
        at = places[place] if place < len(places) else listing.length
        if at >= following:
            falls = index + 1 if following < listing.length else LEAVE
            blocks.append(Block(start, following, None, -1, LOST, falls))
            continue
        end = min(at + DELAY_SLOTS + 1, listing.length)
        if place + 1 < len(places) and places[place + 1] < end:
            listing.malformed.add("branch in the delay slots of a branch")
        branch = branches[at]
        taken = index_of[regions[branch.target]] if branch.target in regions else LOST
        if 0 <= taken <= index:
            headers.add(taken)
        blocks.append(Block(start, end, branch, at, taken, index_of.get(end, LEAVE)))
    return blocks, headers


def _places(listing: Listing, branches: dict[int, Instruction]) -> dict[int, int]:
    """Bundle at which the region of each branch starts; checked against the labels of bundles.

    Every place that a forward branch goes to is labelled "PF" and every other "LB", and nothing
    else is, so a branch or a region that is read wrongly is noticed.
    """
    regions = dict(listing.regions)
    last = listing.length - 1
    if listing.labels.get(last) == "PF" and last not in regions.values():
        # the regions that end a program have no marks of their own
        for branch in branches.values():
            if branch.target is not None:
                regions.setdefault(branch.target, last)
    expected = {}
    for at, branch in branches.items():
        place = regions.get(branch.target)
        if place is not None:
            expected[place] = "LB" if place <= at else "PF"
    if expected != listing.labels:
        listing.malformed.add("branches do not go where its labels are")
    return regions
