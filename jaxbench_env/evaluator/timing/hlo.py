"""The little of HLO text that a prediction needs besides the listings.

libtpu compiles structurally identical fusions once, so an instruction may have no listing of its
own: `Module.twin` finds the one whose code it shares. Where there is none, the compiler's own cycle
estimate or the bytes moved stand in. Work offloaded to the SparseCore is found here too, because it
has no TensorCore listing at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_INSTRUCTION = re.compile(r" {1,8}(ROOT )?%?([\w.\-<>]{1,512}) = ")
_OPCODE = re.compile(r" ?([a-z][\w\-]{0,63})\(")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-<>]{1,512}) [^\n]{0,100000}\{\s*$")
_NAME = re.compile(r"%([\w.\-<>]{1,512})")
_CALLS = re.compile(r"\b(calls|to_apply|body|condition)=%([\w.\-<>]{1,512})")
_KERNEL = re.compile(r'"custom_call_config":\{"body":"([^"]*)"')
_ESTIMATE = re.compile(r'"window_config":\{[^}]{0,4000}?"estimated_cycles":"(\d{1,19})"')
_ARRAY = re.compile(r"\b([a-z]\w{0,15})\[([\d,]{0,200})\](\{[^{}]{0,200}\})?")
#: Attributes that do not change the code, and what follows them.
_TAIL = (
    ", metadata={",
    ", backend_config=",
    ", frontend_attributes={",
    ", sharding={",
    ", origin={",
)

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s64": 64, "u64": 64, "f64": 64, "c64": 64}
MAX_BYTES = 1 << 44
MAX_CYCLES = 10**12  # the compiler writes the largest integer where it has no estimate


def array_bytes(shape: str) -> int:
    """HBM bytes of a (tuple) shape; arrays that live on the chip, such as `S(1)`, count nothing."""
    total = 0
    for element, dims, layout in _ARRAY.findall(shape):
        width = re.search(r"\d+", element)
        bits = _BITS.get(element) or (int(width.group()) if width else 0)
        if not 1 <= bits <= 128 or re.search(r"S\([1-9]", layout):
            continue
        count = 1
        for dim in dims.split(","):
            if dim:
                count = min(count * int(dim[:12]), MAX_BYTES)
        total += (count * bits + 7) // 8
    return min(total, MAX_BYTES)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One HLO instruction, as far as it is needed.

    Attributes:
        op: Opcode.
        shape: Shape text of the result, with layout.
        operands: Shape texts of the operands.
        attributes: What follows the operands and determines the code, without names.
        calls: Computations that it calls.
        estimate: The compiler's cycle estimate, 0 where there is none.
        body: Hash of the backend configuration of a kernel, which is its code.
        kernel: `kernel_hash` of the Mosaic module of a Pallas call, "" of anything else.
    """

    op: str
    shape: str
    operands: tuple[str, ...]
    attributes: str
    calls: tuple[str, ...]
    estimate: int
    body: str
    kernel: str = ""

    @property
    def bytes(self) -> int:
        """HBM bytes of operands and result."""
        return min(array_bytes(self.shape) + sum(map(array_bytes, self.operands)), MAX_BYTES)


class Module:
    """An HLO module parsed from text. Never raises for any text."""

    def __init__(self, text: str = "") -> None:
        """Parses the text of a module."""
        self.instructions: dict[str, Instruction] = {}
        self._computations: dict[str, list[tuple[str, str, str, str]]] = {}
        self._entry = ""
        self._hashes: dict[str, str] = {}
        self._side_threads: set[str] = set()
        self._read(text)

    def _read(self, text: str) -> None:
        current = ""
        # metadata of a kernel is printed on lines of its own, in the middle of the instruction
        for line in re.sub(r'\n(?="|\}\})', "", text).split("\n"):
            if line.startswith("}"):
                if 'execution_thread="' in line and current:
                    self._side_threads.add(current)
                current = ""
            elif not line.startswith(" "):
                match = _COMPUTATION.match(line) if "{" in line[-4:] else None
                if match:
                    current = match.group(2)
                    self._computations[current] = []
                    if match.group(1):
                        self._entry = current
            elif current:
                parts = _parts(line)
                if parts:
                    self._computations[current].append(parts)
        for rows in self._computations.values():
            shapes = {name: shape for name, shape, _, _ in rows}
            for name, shape, op, rest in rows:
                if name not in self.instructions:
                    self.instructions[name] = _instruction(shape, op, rest, shapes)

    @property
    def entry_bytes(self) -> int:
        """HBM bytes of the arguments and results of the module, the least that it has to move."""
        rows = self._computations.get(self._entry, [])
        total = sum(array_bytes(shape) for _, shape, op, _ in rows if op == "parameter")
        return total + (array_bytes(rows[-1][1]) if rows else 0)

    def kernels(self) -> set[str]:
        """Names of the instructions that are Pallas calls."""
        return {
            name
            for name, one in self.instructions.items()
            if one.op == "custom-call" and 'custom_call_target="tpu_custom_call"' in one.attributes
        }

    def sparse_core_bytes(self) -> int:
        """HBM bytes moved by work offloaded to the SparseCore: what it writes, and as much read."""
        return min(sum(2 * array_bytes(shape) for shape, _ in self._offloaded()), MAX_BYTES)

    def sparse_core_calls(self) -> tuple[int, int]:
        """Calls offloaded to the SparseCore, and the bytes of all their operands and results."""
        sizes = [array_bytes(whole) for _, whole in self._offloaded()]
        return len(sizes), min(sum(sizes), MAX_BYTES)

    def _offloaded(self) -> Iterator[tuple[str, str]]:
        """Shapes of the result, and of operands and results, of each call to the SparseCore."""
        for computation, rows in self._computations.items():
            if computation in self._side_threads:
                continue  # its inner steps; the call from the main thread is counted
            attributes = {name: rest for name, _, _, rest in rows}
            shapes = {name: shape for name, shape, _, _ in rows}
            for name, shape, op, _ in rows:
                if op in ("call-done", "async-done"):
                    start = _sparse_core_start(attributes, name)
                    if start:
                        yield shape, shapes[start]

    def twin(self, name: str, available: Iterable[str]) -> tuple[str, bool] | None:
        """An instruction whose code `name` shares: (its name, whether computations are equal)."""
        wanted = self.instructions.get(name)
        if wanted is None:
            return None
        candidates = [one for one in sorted(available) if one in self.instructions]
        exact, loose = self._key(wanted), (wanted.op, wanted.shape, wanted.operands)
        for other in candidates:
            if self._key(self.instructions[other]) == exact:
                return other, True
        for other in candidates:
            one = self.instructions[other]
            # the code of a kernel (an instruction with a body) is not told by its shapes
            if not one.body and (one.op, one.shape, one.operands) == loose:
                return other, False
        return None

    def _key(self, one: Instruction) -> tuple:
        called = tuple(self._hash(computation, 0) for computation in one.calls)
        return one.op, one.shape, one.operands, one.attributes, one.body, called

    def _hash(self, computation: str, depth: int) -> str:
        """Hash of a computation up to the names of its values."""
        known = self._hashes.get(computation)
        if known is not None or depth > 32:
            return known or ""
        self._hashes[computation] = ""  # recursion ends here
        numbers: dict[str, str] = {}
        lines = []
        for name, shape, op, rest in self._computations.get(computation, []):
            numbers[name] = f"v{len(numbers)}"
            text = _cut(rest)
            text = _CALLS.sub(lambda m: f"{m.group(1)}={self._hash(m.group(2), depth + 1)}", text)
            text = _NAME.sub(lambda m: numbers.get(m.group(1), m.group(1)), text)
            lines.append(f"{numbers[name]}={shape} {op}({text}")
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        self._hashes[computation] = digest
        return digest


def _sparse_core_start(attributes: dict[str, str], name: str) -> str:
    """The start on the SparseCore that an asynchronous instruction goes back to, or ""."""
    for _ in range(8):
        rest = attributes.get(name, "")
        if "execution_thread=" in rest:
            return name if 'execution_thread="sparsecore"' in rest else ""
        source = _NAME.search(rest)
        if source is None:
            break
        name = source.group(1)
    return ""


def _parts(line: str) -> tuple[str, str, str, str] | None:
    """Splits an instruction into name, shape, opcode and the text after the opening bracket."""
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    start = match.end()
    if line[start : start + 1] == "(":  # a tuple shape: find the bracket that closes it
        depth = 0
        for end in range(start, min(len(line), start + 200_000)):
            depth += {"(": 1, ")": -1}.get(line[end], 0)
            if depth == 0:
                end += 1
                break
        else:
            return None
    else:
        end = line.find(" ", start)
        if end < 0:
            return None
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        return None
    return match.group(2), line[start:end], opcode.group(1), line[opcode.end() :]


def _instruction(shape: str, op: str, rest: str, shapes: dict[str, str]) -> Instruction:
    close = rest.find(")")
    operands = tuple(shapes.get(name, "?") for name in _NAME.findall(rest[: max(close, 0)]))
    attributes = _cut(rest)[close + 1 :]
    calls = tuple(match.group(2) for match in _CALLS.finditer(attributes))
    attributes = _CALLS.sub("", attributes)
    found = _ESTIMATE.search(rest)
    estimate = int(found.group(1)) if found else 0
    body = kernel = ""
    if op == "custom-call":
        config = rest.find(", backend_config=")
        found = _KERNEL.search(rest, config) if 'target="tpu_custom_call"' in attributes else None
        kernel = kernel_hash(found.group(1)) if found else ""
        body = hashlib.sha256(rest[config:].encode()).hexdigest() if config >= 0 else "none"
    return Instruction(
        op,
        shape,
        operands,
        attributes,
        calls,
        estimate if estimate < MAX_CYCLES else 0,
        body,
        kernel,
    )


def kernel_hash(body: str) -> str:
    """A name for a Mosaic module, from its text in base 64."""
    return hashlib.sha256(body.encode()).hexdigest()


def _cut(rest: str) -> str:
    """Drops metadata and everything after it."""
    places = [place for place in map(rest.find, _TAIL) if place >= 0]
    return rest[: min(places)] if places else rest
