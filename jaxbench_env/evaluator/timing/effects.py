"""What instructions read, write and do, as far as the replay is concerned."""

from __future__ import annotations

from collections.abc import Callable

from jaxbench_env.evaluator.timing.listing import Address, Instruction, Operand, Reg

Key = tuple  # ("s", 12), ("p", 3), ("spill", "#allocation7_spill", 0), ("next", "s", 12)

_NO_EFFECT = frozenset(
    """sfence shalt shalt.err compiler-scheduling-barrier vtrace vsettm strace stcf snop srdreg
    sevent sint vsyncset vsyncset.done vsyncset.notdone vsyncset.remote vsyncadd.remote vsyncmov
    set.rngseed dma.smem_to_host_iova sdivrem.u32 sdivrem.s32""".split()
)
_STEERING = ("dma.", "sbr", "vsync", "vwait", "sst", "vdelay", "inlined_call", "call", "scall")
_DMA_SCALARS = ("size_in_granules", "dst_syncflagno", "steps_per_stride")


def steers(instruction: Instruction) -> bool:
    """Whether an instruction has an effect that the replay models (or must report)."""
    op = instruction.op
    if op in _NO_EFFECT or op.startswith("inlined_call_operand") or is_spill_store(instruction):
        return False
    return op.startswith(_STEERING)


def is_spill_store(instruction: Instruction) -> bool:
    """Whether this stores a register into its spill slot."""
    address = instruction.args[0] if instruction.args else None
    return instruction.op == "sst" and isinstance(address, Address) and address.is_spill


def key_of(reg: Reg) -> Key:
    """Name of an SSA value in the register table."""
    return (reg.kind, reg.number)


def spill_key(address: Address) -> Key:
    """Name of a spill slot in the register table."""
    return ("spill", address.allocation, address.offset)


def defined(instruction: Instruction) -> Key | None:
    """The scalar, predicate or spill slot that an instruction writes."""
    if is_spill_store(instruction):
        return spill_key(instruction.args[0])
    dest = instruction.dest
    return key_of(dest) if dest is not None and dest.kind in ("s", "p") else None


def operand_keys(operand: Operand) -> list[Key]:
    """Values that reading an operand reads."""
    if isinstance(operand, Reg):
        return [key_of(operand)] if operand.kind in ("s", "p") else []
    if isinstance(operand, Address):
        return [key_of(reg) for reg in operand.registers if reg.kind in ("s", "p")]
    return []


def used(instruction: Instruction, dividers: dict[int, Instruction]) -> list[Key]:
    """Values that the replay of an instruction reads."""
    op, named = instruction.op, instruction.named
    operands: list[Operand] = [instruction.guard, instruction.old]
    if op.startswith("dma.") and op != "dma.done.wait":
        operands += [named.get(name) for name in _DMA_SCALARS]
        if "smem" in memories(instruction)[1:]:
            operands += [named.get("smem"), named.get("dst")]
    elif op == "sld" and isinstance(instruction.args[0], Address) and instruction.args[0].is_spill:
        return [
            spill_key(instruction.args[0]),
            *operand_keys(instruction.guard),
            *operand_keys(instruction.old),
        ]
    elif is_spill_store(instruction):
        operands.append(instruction.args[1])
    else:
        operands += instruction.args
        if op.startswith("spop") and instruction.args and isinstance(instruction.args[0], Reg):
            divider = dividers.get(instruction.args[0].number)
            operands += divider.args if divider else ()
    return [key for operand in operands for key in operand_keys(operand)]


def memories(dma: Instruction, space: Callable[[Operand], str] | None = None) -> tuple[str, str]:
    """Source and destination memory of a DMA; "" where it cannot be told."""
    kind = dma.op.removeprefix("dma.").partition("_to_")
    if kind[1]:
        return kind[0], kind[2].split(".")[0]
    if dma.path:
        return dma.path
    if space is None:
        return "", "smem"
    return space(dma.named.get("src")), space(dma.named.get("dst"))
