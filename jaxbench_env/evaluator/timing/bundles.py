"""Parser for the final VLIW listings that libtpu dumps, one file per machine program.

One line of a listing is one bundle, which the core issues in one cycle:

    0x6f   : > { %s25_s21 = sadd.s32 1, %s212_s19  ;;  %v8_v3 = vadd.f32 %v1_v0, %v2_v1 } /* ... */

`%s25_s21` is SSA value 25, held in scalar register 21. Everything that steers time is parsed into
`Instruction`s: scalar and predicate arithmetic, scalar memory, branches, DMAs, synchronisation
flags, calls. Vector and matrix slots are only counted by class, because their hazards are already
in the schedule.

The text is hostile: the author of a kernel chooses names and messages that end up in comments.
Comments are cut out first, operands are accepted only in the few forms below (everything else is
`None`, an unknown value), and a listing whose structure does not add up is marked `malformed`.
Another libtpu may write other forms: what could steer time and is not known here is `unknown`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

from jaxbench_env.evaluator.timing.listing import (
    SLOT_CLASSES,
    Address,
    Instruction,
    Listing,
    Operand,
    Reg,
    classify,
)
from jaxbench_env.evaluator.timing.scan import without_locations

MAX_TERMS = 4  # registers in one address; listings use at most two
MAX_OPERANDS = 32
MAX_PER_BUNDLE = 512
MAX_INSTRUCTIONS = 1_000_000  # that can steer time, in one listing

_HEADER = re.compile(r"^ {0,8}(?:0x)?([0-9a-f]{1,8}) {1,8}([A-Z]{2})? {0,4}: {0,4}[> ]{0,64}\{")
_DEST = re.compile(r"%([a-z]{0,3})(\d{1,9})(?:_([a-z]{1,3})(\d{1,3}))? = ")
_REGISTER = re.compile(r"(!?)%([a-z]{0,3})(\d{1,9})(?:_([a-z]{1,3})(\d{1,3}))?")
_OPCODE = re.compile(r"[a-zA-Z_][\w.\-]{0,63}(?:<no memory space>)?")
_THREAD = re.compile(r"\[thread:\$\d{1,4}\] *")
_GUARD = re.compile(r"\((!?%[a-z0-9_]{1,24})(?:, *([^()]{1,48}))?\),? *")
_COMMENT_MARK = re.compile(r"/\*|\*/")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}=")
_REGION = re.compile(r"Start(?:/End empty)? region (\d{1,7})\b")
_TARGET = re.compile(r"target = \$region(\d{1,7}) *")
_PREAMBLE = re.compile(r"= control target key (?:start|end)|[A-Z]{2}: [a-z ]{1,40}|\s*")
_CALLEE = re.compile(r"\s*%?([^\s%*/]{1,512})(?: =|\s*$)")
_ENTRY = re.compile(r"entry bundle: %?(\S{1,512}) =")
_WINDOW = re.compile(r"(base_bounds|window_bounds|element_size_in_bytes): *\(?([\d, ]{1,200})\)?")
_OPERAND_INDEX = re.compile(r"index: (\d{1,4}), kind")
_PATH = re.compile(r"\s*([a-z]{1,8})-to-([a-z]{1,8})\s*")
_HALT = re.compile(
    r"\s*(?:%\d{1,9} = )?shalt\.err *(?:\(!?%[a-z0-9_]{1,24}\))?\s*(?:\x01\d+\x01\s*)?"
)
_NOTE_MARK = re.compile(r"\x01(\d+)\x01")
_INTEGER = re.compile(r"-?\d{1,10}|0x[0-9a-f]{1,8}")

_KEPT_VECTOR = ("vsync", "vwait", "vdelay", "vpop.sfrf", "vpop.srf")
_PLAIN_COMMENT = re.compile(r"/\*[^*/]*\*/")
_VECTOR_SLOT = re.compile(r";; *(?:%[a-z]{0,3}\d{1,9}(?:_[a-z]{1,3}\d{1,3})? = )?(v[^\s;]*)")
#: Instructions that define no scalar; all others of that kind are unknown.
_EFFECTS = frozenset(
    """compiler-scheduling-barrier dma.done.wait dma.general dma.hbm_to_hbm dma.hbm_to_smem
    dma.hbm_to_vmem dma.smem_to_hbm dma.smem_to_smem dma.smem_to_vmem dma.smem_to_host_iova
    dma.vmem_to_hbm dma.vmem_to_smem dma.vmem_to_vmem inlined_call sbr.rel sdivrem.s32 sdivrem.u32
    set.rngseed sfence shalt shalt.err sst strace vdelay vsyncadd vsyncadd.remote vsyncmov vsyncpa
    vsyncset vsyncset.remote vwait.ge vwait.ge.trace vwait.ne.trace""".split()
)
_DMA_OPERANDS = frozenset(
    """size_in_granules dst_syncflagno dst_syncflagno_1 hbm vmem smem src_stride dst_stride
    steps_per_stride src dst src_syncflagno stridedescaddr overrides src_address host_iova_low
    host_iova_high""".split()
)
_CORE_ID = re.compile(r"\s*(?:megacore core id :: )?core id\s*")  # the longer one since 0.0.50
_DIVISIONS = {"kRem", "kDiv", "kDivAndRem"}
_NO_SLOTS = (0,) * len(SLOT_CLASSES)


def parse(text: str) -> Listing:
    """Parses one listing. Never raises for any text."""
    listing = Listing()
    histograms: list[Sequence[int]] = []  # slots by class, for each bundle
    classes: dict[str, int | None] = {}
    known: dict[tuple[str, ...], tuple[int, ...] | None] = {}
    kept = 0
    text, readable = without_locations(text)
    if not readable:
        listing.malformed.add("an unreadable source location")
    if "\x01" in text:
        text = text.replace("\x01", " ")
        listing.malformed.add("control characters")
    for address, chunk, plain in _chunks(text, listing):
        listing.length = address + 1
        slots: Sequence[int] | None = _vector_slots(chunk, plain, classes, known)
        if slots is None:
            slots = [0] * len(SLOT_CLASSES)
            instructions = _bundle(chunk, address, listing, slots, classes)
            if instructions:
                listing.bundles[address] = instructions
                kept += len(instructions)
        histograms.append(slots)
        if kept > MAX_INSTRUCTIONS:
            listing.malformed.add("too many instructions")
            break
    by_class = zip(*histograms, strict=True) if histograms else [()] * len(SLOT_CLASSES)
    listing.prefix = [array("q", accumulate(counts, initial=0)) for counts in by_class]
    return listing


def _vector_slots(
    chunk: str,
    plain: str,
    classes: dict[str, int | None],
    known: dict[tuple[str, ...], tuple[int, ...] | None],
) -> tuple[int, ...] | None:
    """Slots by class of a bundle that holds nothing to parse, else None.

    Nine bundles in ten hold only vector slots and no note. Both ways of reading agree on them; this
    one leaves anything out of the ordinary to the other. `plain` is the text without its comments,
    "" where that is not simple. The tables belong to one listing: classes of opcodes (None: to be
    parsed), and the slots of bundles by their opcodes.
    """
    if not plain or "egion" in chunk or "entry bundle" in chunk:
        return None
    start, end = plain.find("{"), plain.rfind("}")
    if start < 0 or end < 0 or plain.count("{") > 1 or plain.count("}") > 1:
        return None
    body = plain[start + 1 : end]
    ops = tuple(_VECTOR_SLOT.findall(";;" + body))
    if len(ops) != body.count(";;") + 1:
        return None if body.strip() else _NO_SLOTS
    if ops not in known:
        indices = [_vector_class(op, classes) for op in ops]
        known[ops] = (
            None
            if None in indices
            else tuple(indices.count(index) for index in range(len(SLOT_CLASSES)))
        )
    return known[ops]


def _vector_class(op: str, classes: dict[str, int | None]) -> int | None:
    """Class of a vector opcode, None for the few that steer."""
    if op not in classes:
        classes[op] = None if op.startswith(_KEPT_VECTOR) else classify(op)
    return classes[op]


def _chunks(text: str, listing: Listing) -> Iterator[tuple[int, str, str]]:
    """Splits a listing into bundles: (address, text, text without comments where that is simple).

    The text of a bundle includes its comments, which may go on over many lines.
    """
    malformed = listing.malformed
    expected = depth = 0
    pending: list[str] = []
    plain = ""
    for line in text.split("\n"):
        match = _HEADER.match(line)
        if match:
            # libtpu numbers bundles from 0 without gaps and writes no such line into a comment
            if depth or int(match.group(1), 16) != expected:
                malformed.add("bundle addresses out of order")
            if not depth:
                if pending:
                    yield expected - 1, "\n".join(pending), plain
                pending = []
                if match.group(2):
                    listing.labels[expected] = match.group(2)
                expected += 1
                line = line[match.end() - 1 :]
        elif not depth and line and (expected or not _PREAMBLE.fullmatch(line)):
            listing.unknown.add("a line that is no bundle")
        if expected and (match or depth or line):
            pending.append(line)
            plain = ""
        if "*" not in line:
            bare = line
        else:
            bare = _PLAIN_COMMENT.sub("", line)
            if "/*" in bare or "*/" in bare:
                bare = ""
                for mark in _COMMENT_MARK.findall(line):
                    depth += 1 if mark == "/*" else -1
                    if depth < 0:
                        malformed.add("stray braces or comment marks")
                        depth = 0
        if match and len(pending) == 1:
            plain = bare
    if depth:
        malformed.add("unterminated comment")
    if pending:
        yield expected - 1, "\n".join(pending), plain


def _strip_comments(chunk: str) -> tuple[str, list[str]]:
    """Replaces comments by marks; `/*name=*/` becomes the text `name=`. Linear in the input.

    Comments nest: the message of a bounds check quotes a DMA with its own comments.
    """
    pieces: list[str] = []
    notes: list[str] = []
    position = start = depth = 0
    for mark in _COMMENT_MARK.finditer(chunk):
        if mark.group() == "/*":
            if depth == 0:
                start = mark.start()
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                pieces.append(chunk[position:start])
                body = chunk[start + 2 : mark.start()]
                if body[-1:] == "=" and _NAME.fullmatch(body):
                    pieces.append(body)
                else:
                    pieces.append(f"\x01{len(notes)}\x01")
                    notes.append(body)
                position = mark.end()
    pieces.append(chunk[position:])
    return "".join(pieces), notes


def _bundle(
    chunk: str, address: int, listing: Listing, slots: list[int], classes: dict[str, int | None]
) -> list[Instruction]:
    """Parses one bundle; adds its regions and name to `listing` and its slots to `slots`."""
    plain, notes = _strip_comments(chunk) if "/*" in chunk else (chunk, [])
    open_brace, close_brace = plain.find("{"), plain.rfind("}")
    if close_brace < 0 or "*/" in plain or "/*" in plain:
        listing.malformed.add("stray braces or comment marks")
        close_brace = len(plain) if close_brace < 0 else close_brace
    body, tail = plain[open_brace + 1 : close_brace], plain[close_brace + 1 :]
    if _NOTE_MARK.sub("", tail).strip():
        listing.unknown.add("text after a bundle")
    for mark in _NOTE_MARK.finditer(tail):
        _bundle_note(notes[int(mark.group(1))], address, listing)
    if "shalt.err" in body and not _HALT.fullmatch(body):
        # the message of a check may be the kernel author's; libtpu gives a check its own bundle
        listing.malformed.add("text beside the message of a check")
    instructions = []
    for slot in body.split(";;"):
        slot = slot.strip()
        if not slot:
            continue
        dest = _DEST.match(slot)
        op_at = dest.end() if dest else 0
        if slot[op_at : op_at + 1] == "v":
            index = _vector_class(slot[op_at : op_at + 64].split(" ", 1)[0], classes)
            if index is not None:
                slots[index] += 1
                continue
        instruction = _instruction(slot, dest, notes, listing.unknown)
        if instruction is None:
            listing.malformed.add("unreadable instruction")
            continue
        if len(instructions) == MAX_PER_BUNDLE:
            listing.malformed.add("overfull bundle")
            break
        instructions.append(instruction)
        slots[_scalar_class(instruction)] += 1
    return instructions


def _scalar_class(instruction: Instruction) -> int:
    address = instruction.args[0] if instruction.args else None
    if isinstance(address, Address) and address.is_spill:
        if instruction.op == "sld":
            return 7
        if instruction.op == "sst":
            return 8
    return 6


def _bundle_note(note: str, address: int, listing: Listing) -> None:
    for match in _REGION.finditer(note):
        region = int(match.group(1))
        if listing.regions.setdefault(region, address) != address:
            listing.malformed.add("region defined twice")
    match = _ENTRY.search(note)
    if match and not listing.name:
        listing.name = match.group(1)


def _instruction(
    slot: str, dest: re.Match | None, notes: list[str], unknown: set[str]
) -> Instruction | None:
    opcode = _OPCODE.match(slot, dest.end() if dest else 0)
    if opcode is None:
        return None
    op = opcode.group(0)
    result = Instruction(op, _register(slot[: dest.end() - 3]) if dest else None)
    if op not in _EFFECTS and (result.dest is None or result.dest.kind not in ("s", "p")):
        unknown.add(f"the instruction {op[:64]}")
    rest = slot[opcode.end() :].strip()
    if "\x01" in rest:
        marks = [notes[int(mark.group(1))] for mark in _NOTE_MARK.finditer(rest)]
        rest = _NOTE_MARK.sub("", rest).strip()
        _apply_notes(result, marks, unknown)
    thread = _THREAD.match(rest)
    if thread:
        rest = rest[thread.end() :]
    if op in ("sld", "sst"):
        _scalar_memory(result, rest, unknown)
        return result
    rest = _take_guard(result, rest, unknown)
    if op.startswith("sbr"):
        target = _TARGET.search(rest)
        if target is None or target.group() != rest:
            unknown.add("the target of a branch")
        result.target = int(target.group(1)) if target else None
        return result
    if op.startswith("inlined_call_operand"):
        index = _OPERAND_INDEX.search(rest)
        result.operand = int(index.group(1)) if index else -1
        return result
    args = []
    for text in _split(rest):
        name, equals, value = text.partition("=")
        if equals and _NAME.fullmatch(name + "="):
            args.append(_operand(value))
            # a repeated name would let the second operand replace the first
            result.named.setdefault(name, args[-1])
            if op.startswith("dma.") and name not in _DMA_OPERANDS:
                unknown.add(f"the operand {name} of {op[:64]}")
        else:
            args.append(_operand(text))
    result.args = tuple(args)
    if op == "vdelay" and not (args and type(args[0]) is int):
        unknown.add("the operand of vdelay")
    return result


def _apply_notes(result: Instruction, notes: list[str], unknown: set[str]) -> None:
    if result.op == "inlined_call":
        callee = _CALLEE.match(notes[0]) if notes else None
        result.callee = callee.group(1) if callee else ""
    elif result.op.startswith("dma.") and result.op != "dma.done.wait":
        for note in notes:
            path = _PATH.fullmatch(note)
            if path:
                result.path = (path.group(1), path.group(2))
            elif "_bounds" in note:
                result.window_bytes, result.run_bytes = _window(note)
    elif result.op.startswith("sdivrem"):
        kinds = {note.strip() for note in notes}
        if not kinds <= _DIVISIONS:
            unknown.add("the kind of a division")
        if "kRem" in kinds:
            result.flags = frozenset({"remainder"})
        elif "kDivAndRem" in kinds:
            result.flags = frozenset({"both"})
    elif result.op == "sld" and any(_CORE_ID.fullmatch(note) for note in notes):
        result.flags = frozenset({"core-id"})
    elif any(note.strip() == "sparse-core-wait" for note in notes):
        result.flags = frozenset({"sparse-core-wait"})


def _window(note: str) -> tuple[int, int]:
    """Bytes of a DMA window and of its innermost run, from the shape in the comment."""
    shape: dict[str, list[int]] = {}
    for match in _WINDOW.finditer(note):
        # the last word wins: "dynamic_base_bounds" also ends in "base_bounds"
        numbers = [int(part) for part in match.group(2).split(",") if part.strip().isdigit()]
        shape[match.group(1)] = [min(number, 1 << 31) for number in numbers[:8]]
    bounds = shape.get("window_bounds") or shape.get("base_bounds") or []
    element = (shape.get("element_size_in_bytes") or [0])[0]
    if not bounds or not element:
        return 0, 0
    size = element
    for bound in bounds:
        size = min(size * bound, 1 << 34)
    run = max(32, element * (bounds[-1] or 1)) if "window_bounds" in shape else 0
    return size, run


def _take_guard(result: Instruction, rest: str, unknown: set[str]) -> str:
    if not rest.startswith("("):
        return rest
    guard = _GUARD.match(rest)
    result.guard = _register(guard.group(1)) if guard else None
    if guard is None or result.guard is None or result.guard.kind != "p":
        unknown.add(f"the condition of {result.op}")
    if guard is None:
        return rest
    if guard.group(2):
        result.old = _operand(guard.group(2))
    return rest[guard.end() :]


def _scalar_memory(result: Instruction, rest: str, unknown: set[str]) -> None:
    """Parses `[smem:[address]] (guard, old), value`."""
    end = rest.find("]]")
    if not rest.startswith("[smem:[") or end < 0:
        result.args = (None, None)
        return
    address = _address(rest[7:end])
    rest = _take_guard(result, rest[end + 2 :].strip(), unknown)
    if result.op == "sld":
        result.args = (address,)
    else:
        result.args = (address, _operand(rest.lstrip(", ")))


def _split(text: str) -> list[str]:
    """Splits at commas outside brackets."""
    parts: list[str] = []
    depth = start = 0
    for position, char in enumerate(text):
        if char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
            if len(parts) >= MAX_OPERANDS:
                return parts
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _register(text: str) -> Reg | None:
    match = _REGISTER.fullmatch(text)
    if match is None:
        return None
    negated, kind, number, _, physical = match.groups()
    return Reg(kind, int(number), bool(negated), int(physical) if physical else -1)


def _integer(text: str) -> int | None:
    """A 32-bit word as a signed number."""
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text, 16 if text.startswith("0x") else 10)
    return (value + 0x80000000 & 0xFFFFFFFF) - 0x80000000


def _operand(text: str) -> Operand:
    text = text.strip()
    if text.startswith("[resolvable:"):
        text = text[text.find("]") + 1 :].strip()
    if text.startswith("["):
        return _address(text[1:-1]) if text.endswith("]") else None
    # "%s1_s2 [#allocation5]": the bracket only names the allocation that the value points into
    space = text.find(" [")
    if space > 0:
        text = text[:space]
    if text.startswith(("%", "!")):
        return _register(text)
    return _integer(text)


def _address(text: str) -> Address | None:
    allocation, offset = "", 0
    registers: list[Reg] = []
    for part in text.split("+", 2 * MAX_TERMS):
        part = part.strip()
        if part.startswith("#"):
            if allocation or len(part) > 64:
                return None
            allocation = part
        elif part.startswith("%"):
            register = _register(part)
            if register is None or len(registers) == MAX_TERMS:
                return None
            registers.append(register)
        else:
            value = _integer(part.removeprefix("$"))
            if value is None:
                return None
            offset += value
    return Address(allocation, tuple(registers), offset)
