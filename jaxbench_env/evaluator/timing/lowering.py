"""Turns the instructions of one basic block into the source text of a Python function.

The function of a block has the form

    def block(R, E, t):      # registers, engine, time in ticks
        R[4] = ((R[3] + 1 + 2147483648) & 4294967295) - 2147483648
        t = E.wait(t + 320, 1048576, 4096, P, 6) - 320
        t += 1216
        return (7, t)        # index of the next block

Nothing from the listing reaches the text except numbers that were parsed and printed here: SSA
values become indices, allocations become base addresses, and names stay in tables.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxbench_env.evaluator.timing.effects import (
    Key,
    defined,
    is_spill_store,
    key_of,
    memories,
    spill_key,
    steers,
    used,
)
from jaxbench_env.evaluator.timing.listing import Address, Instruction, Operand, Reg
from jaxbench_env.evaluator.timing.values import HALF, WORD

#: Time is counted in whole fractions of a cycle, so that equal states are exactly equal.
TICKS = 64

_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_BITWISE = {
    "sand": "&",
    "sor": "|",
    "sxor": "^",
    "pand": "&",
    "por": "|",
    "pxor": "^",
    "pnand": "&",  # and then negated
    "pnor": "|",
}
_WORD_TYPES = {"s32", "u32"}
_SHIFTS = {"sshll", "sshrl", "sshra"}


class Lowering:
    """Emits the source text of blocks of one program.

    Args:
        slots: Index in the register table of every live value.
        shared: Indices of the values that outlive a block; the others become Python locals.
        phis: For a value, the phis that it feeds.
        dividers: Divisions by the number of the SSA value that their result is popped from.
        base: Base address of an allocation (None: no room left).
        space: Memory that an address operand points into.
        source_operand: Index of the program operand that an address points into, or -1.
        top_level: Whether host-written words read as 1 (steady state).
        core: Which core it is, where several run the program together.
        halts: Predicates under which the program ends with an error.
    """

    def __init__(
        self,
        *,
        slots: dict[Key, int],
        shared: set[int],
        phis: dict[Key, list[Key]],
        dividers: dict[int, Instruction],
        base: Callable[[str], int | None],
        space: Callable[[Operand], str],
        source_operand: Callable[[Operand], int],
        top_level: bool,
        core: int | None = None,
        halts: frozenset[Reg] = frozenset(),
    ) -> None:
        """Takes the tables that one program shares between its blocks."""
        self._slots, self._shared, self._phis, self._dividers = slots, shared, phis, dividers
        self._base, self._space, self._source_operand = base, space, source_operand
        self._top_level, self._core = top_level, core
        self._halts = halts
        self._callees: dict[str, int] = {}
        self._remarks: dict[str, int] = {}
        self.callees: list[str] = []
        self.remarks: list[str] = []
        self.transfers: list[Instruction] = []
        self._assigned: set[int] = set()
        self._block = 0

    # ---- blocks and bundles

    def begin_block(self, index: int) -> None:
        """Forgets which locals have a value."""
        self._block = index
        self._assigned.clear()

    def bundle(self, instructions: list[Instruction], offset: int) -> list[str]:
        """Statements for one bundle, `offset` bundles after the start of its block."""
        live = [
            one
            for one in instructions
            if steers(one)
            and not one.op.startswith("sbr")
            or self._slots.get(defined(one)) is not None
        ]
        phis = [one for one in live if one.op in ("sphi", "pphi")]
        lines: list[str] = []
        for phi in phis:
            key = key_of(phi.dest)
            lines.append(f"{self._write(key)} = {self._read(('next', *key))}")
        for phi in phis:
            lines += self._feed_phis(key_of(phi.dest))
        for one in _in_order(
            [one for one in live if one.op not in ("sphi", "pphi")], self._dividers
        ):
            lines += self._statement(one, offset)
        return lines

    def condition(self, branch: Instruction) -> str:
        """Expression for the predicate of a branch."""
        return self.value(branch.guard)

    def _feed_phis(self, key: Key) -> list[str]:
        return [
            f"{self._write(('next', *phi))} = {self._read(key)}" for phi in self._phis.get(key, ())
        ]

    # ---- operands

    def _write(self, key: Key) -> str:
        slot = self._slots[key]
        self._assigned.add(slot)
        return f"R[{slot}]" if slot in self._shared else f"v{slot}"

    def _read(self, key: Key) -> str:
        slot = self._slots.get(key)
        if slot is None:
            return "U"
        if slot in self._shared:
            return f"R[{slot}]"
        return f"v{slot}" if slot in self._assigned else "U"

    def value(self, operand: Operand) -> str:
        """Expression for an operand."""
        if isinstance(operand, bool) or operand is None:
            return "U"
        if isinstance(operand, int):
            return f"({operand})" if operand < 0 else str(operand)
        if isinstance(operand, Reg):
            if operand.kind not in ("s", "p"):
                return "U"
            text = self._read(key_of(operand))
            return f"({text} ^ True)" if operand.negated else text
        return self._address(operand)

    def _address(self, address: Address) -> str:
        constant = address.offset
        if address.allocation:
            base = self._base(address.allocation)
            if base is None:
                return "U"
            constant += base
        terms = [self.value(reg) for reg in address.registers]
        if constant or not terms:
            terms.append(str(constant))
        return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]

    # ---- statements

    def _statement(self, one: Instruction, offset: int) -> list[str]:
        key = defined(one)
        if key is not None:
            return self._assignment(one, key)
        if self._core is not None and one.op == "sst" and one.guard in self._halts:
            return []  # cores have met at the wrong barrier: it says so and halts
        effect = self._effect(one, offset * TICKS)
        if not effect or one.guard is None:
            return effect
        # an effect that may or may not happen is charged, and makes the result uncertain
        guard = self.value(one.guard)
        return [
            f"c = {guard}",
            f"if c is True or c is not False and E.doubtful({self._remark(one.op)}, P):",
            *("  " + line for line in effect),
        ]

    def _assignment(self, one: Instruction, key: Key) -> list[str]:
        if is_spill_store(one):
            text = self.value(one.args[1])
            if one.guard is not None:
                text = self._choose(one.guard, text, self._read(key))
        else:
            text = self._expression(one)
            if one.guard is not None and one.old is not None:
                text = self._choose(one.guard, text, self.value(one.old))
        return [f"{self._write(key)} = {text}", *self._feed_phis(key)]

    def _choose(self, guard: Reg, new: str, old: str) -> str:
        text = self._read(key_of(guard)) if guard.kind == "p" else "U"
        yes, no = ("False", "True") if guard.negated else ("True", "False")
        return f"({new}) if {text} is {yes} else (({old}) if {text} is {no} else U)"

    def _remark(self, text: str) -> int:
        return _index(text, self.remarks, self._remarks)

    def _argument(self, one: Instruction, index: int) -> str:
        return self.value(one.args[index]) if index < len(one.args) else "U"

    def _effect(self, one: Instruction, at: int) -> list[str]:
        op = one.op
        if op == "sst":
            address, value = self._argument(one, 0), self._argument(one, 1)
            if one.guard is not None:
                value = f"({value} if c is True else U)"
            return [f"E.store({address}, {value})"]
        if op == "vdelay":
            cycles = one.args[0] if one.args else None
            return (
                [f"t += {min(max(cycles, 0), 1 << 20) * TICKS}"] if isinstance(cycles, int) else []
            )
        if op == "inlined_call":
            passed = {
                arg.physical: self.value(arg)
                for arg in one.args
                if isinstance(arg, Reg) and arg.physical >= 0
            }
            table = ", ".join(f"{register}: {text}" for register, text in passed.items())
            index = _index(one.callee, self.callees, self._callees)
            return [f"t = E.call(P.callees[{index}], {{{table}}}, t + {at}) - {at}"]
        if "sparse-core-wait" in one.flags:
            return ["E.sparse_core_wait()"]
        if op == "dma.done.wait" or op in ("vwait.ge", "vwait.ge.trace"):
            flag, amount = self._argument(one, 0), self._argument(one, 1)
            return [f"t = E.wait(t + {at}, {flag}, {amount}, P, {self._block}) - {at}"]
        if op == "vsyncadd":
            return [f"E.add({self._argument(one, 0)}, {self._argument(one, 1)}, P)"]
        if op == "vsyncpa":
            return [f"E.reset({self._argument(one, 0)}, {self._argument(one, 1)}, P)"]
        if op.startswith("dma."):
            return self._dma(one, at)
        return [f"E.unmodelled({self._remark(op)}, P)"]

    def _dma(self, one: Instruction, at: int) -> list[str]:
        named = one.named
        source, destination = memories(one, self._space)
        # a side that cannot be told is taken as HBM, the slower one
        reads, writes = (int(side in ("hbm", "")) for side in (source, destination))
        size = self.value(named.get("size_in_granules"))
        flag = self.value(named.get("dst_syncflagno"))
        run = str(one.run_bytes)
        if "steps_per_stride" in named:
            run = f"{self.value(named['steps_per_stride'])} * 512"
        lines = [
            f"E.dma(t + {at}, {size}, {flag}, {reads}, {writes}, {run}, {one.window_bytes}, P, "
            f"{len(self.transfers)})"
        ]
        self.transfers.append(one)
        if "remote" in one.op:
            lines.append(f"E.unmodelled({self._remark(one.op)}, P)")
        if destination in ("smem", ""):
            start = self.value(named.get("smem", named.get("dst")))
            operand = self._source_operand(named.get("hbm", named.get("vmem", named.get("src"))))
            if one.guard is not None:
                operand = f"({operand} if c is True else -1)"
            lines.append(f"E.fill({start}, {size}, {operand})")
        return lines

    # ---- expressions

    def _expression(self, one: Instruction) -> str:
        op = one.op
        base, _, suffix = op.partition(".")
        if "f32" in suffix or "bf16" in suffix:
            return "U"
        if base == "sld":
            address = one.args[0]
            spilled = isinstance(address, Address) and address.is_spill
            if self._core is not None and "core-id" in one.flags and not spilled:
                return str(self._core)
            return self._load(address)
        if base == "inlined_call_operand":
            passed = f"E.arguments.get({one.dest.physical}, U)"
            return f"E.operand({one.operand}, {passed})" if "no memory" in suffix else passed
        if base == "scalar_parameter_address":
            index = one.args[0] if one.args and isinstance(one.args[0], int) else 0
            return str((1 << 29) + ((index & 0xFF) << 20))
        if base == "spop":
            return self._quotient(one)
        args = [self.value(arg) for arg in one.args]
        if base in ("smov", "pmov", "int_to_ptr", "reloc") and len(args) == 1:
            return args[0]
        if base == "pneg" and len(args) == 1:
            return f"{args[0]} ^ True"
        if base == "scalar_lea" and args:
            return _wrap(" + ".join(args))
        if base == "scalar_select" and len(args) == 3:
            return f"({args[1]} if {args[0]} is True else ({args[2]} if {args[0]} is False else U))"
        if len(args) == 2 and (base in _BITWISE or _WORD_TYPES.intersection(suffix.split("."))):
            return self._binary(base, suffix, args[0], args[1], one.args[1])
        return "U"

    def _binary(self, base: str, suffix: str, a: str, b: str, right: Operand) -> str:
        unsigned = "u32" in suffix
        if base in ("sadd", "ssub", "smul"):
            return _wrap(f"{a} {dict(sadd='+', ssub='-', smul='*')[base]} {b}")
        if base in _BITWISE:
            text = f"{a} {_BITWISE[base]} {b}"
            return f"({text}) ^ True" if base in ("pnand", "pnor") else text
        if base in _SHIFTS:
            if not isinstance(right, int) or not 0 <= right < 32:
                return f"shift({a}, {b}, '{base}')"
            if base == "sshll":
                return _wrap(f"({a} << {right})")
            if base == "sshra" or right == 0:
                return f"{a} >> {right}"
            return f"({a} & {WORD}) >> {right}"
        if base == "smulhi":
            return _wrap(f"((({a} & {WORD}) * ({b} & {WORD})) >> 32)") if unsigned else "U"
        if base == "sc":  # carry out of an unsigned addition
            return f"(({a} & {WORD}) + ({b} & {WORD})) > {WORD}"
        left_key, right_key = (f"({a} & {WORD})", f"({b} & {WORD})") if unsigned else (a, b)
        if base == "scmp":
            sign = _COMPARE.get(suffix.split(".")[0])
            return f"{left_key} {sign} {right_key}" if sign else "U"
        if base in ("smin", "smax"):
            sign = "<" if base == "smin" else ">"
            test = f"({left_key} {sign} {right_key})"
            return f"({a} if (d := {test}) is True else ({b} if d is False else U))"
        return "U"

    def _load(self, address: Operand) -> str:
        if isinstance(address, Address) and address.is_spill:
            return self._read(spill_key(address))
        # words that only the host writes (run flags and the like) are 1 once a program has settled
        fixed = isinstance(address, Address) and not address.registers
        return f"E.mem.get({self.value(address)}, {'1' if self._top_level and fixed else 'U'})"

    def _quotient(self, one: Instruction) -> str:
        source = one.args[0] if one.args else None
        divider = self._dividers.get(source.number) if isinstance(source, Reg) else None
        if divider is None or len(divider.args) < 2:
            return "U"
        left, right = self.value(divider.args[0]), self.value(divider.args[1])
        remainder = "remainder" in divider.flags
        if "both" in divider.flags:
            remainder = "remainder" in one.flags
            if not remainder and "quotient" not in one.flags:
                return "U"
        return f"divide({left}, {right}, {remainder}, {divider.op.endswith('s32')})"


def _index(text: str, table: list[str], positions: dict[str, int]) -> int:
    """Index of a text in a table, which grows by it if need be."""
    if text not in positions:
        positions[text] = len(table)
        table.append(text)
    return positions[text]


def _wrap(expression: str) -> str:
    """32-bit two's complement."""
    return f"(({expression} + {HALF}) & {WORD}) - {HALF}"


def _in_order(
    instructions: list[Instruction], dividers: dict[int, Instruction]
) -> list[Instruction]:
    """Definitions before their uses: pseudo instructions share the bundle of what they copy.

    Loads from spill slots come before stores to them, as the hardware reads before it writes.
    """
    if len(instructions) < 2:
        return instructions
    instructions = sorted(instructions, key=lambda one: defined(one) is None or is_spill_store(one))
    producers = {
        key: one
        for one in instructions
        if (key := defined(one)) is not None and not is_spill_store(one)
    }
    ordered: list[Instruction] = []
    seen: set[int] = set()
    for root in instructions:
        stack = [(root, False)]
        while stack:
            one, ready = stack.pop()
            if ready:
                ordered.append(one)
                continue
            if id(one) in seen:
                continue
            seen.add(id(one))
            stack.append((one, True))
            stack += [(producers[key], False) for key in used(one, dividers) if key in producers]
    return ordered
