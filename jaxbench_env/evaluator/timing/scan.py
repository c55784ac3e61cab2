"""What the replay does not need of a listing but an author wants to know: source lines and spills.

The compile child asks libtpu for source annotations, so most slots end in a comment such as
`/* loc("kernel.py":25:8 to :18) */`. They are cut out before a listing is parsed and read here, for
the few blocks that matter. File names in them are chosen by the author of the artefact, but quotes
and newlines in them are escaped by the compiler.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jaxbench_env.evaluator.timing.listing import SLOT_CLASSES, Listing, classify

#: File name under which a kernel text is traced.
KERNEL_FILE = "kernel.py"
MAX_LINE = 10**6

_LOCATION = re.compile(r'loc\("[^"\n;{}]{0,1000}":\d{1,9}:\d{1,9}(?: to \d{0,9}:\d{1,9})?\)')
_COMMENT = re.compile(r" ?/\* " + _LOCATION.pattern + r" \*/")
# Beside other notes, as in `/* loc("kernel.py":14:15 to :40) :: kRem */`.
_AMONG = re.compile(rf"{_LOCATION.pattern} :: |(?: :: )?{_LOCATION.pattern}")
_BUNDLE = re.compile(
    r"^ {0,8}(?:0x)?[0-9a-f]{1,8} {1,8}(?:[A-Z]{2})? {0,4}: {0,4}[> ]{0,64}\{", re.M
)
_SPILL = re.compile(r"= v(?:ld|st) \[vmem:\[#allocation\d{1,9}_spill\]")
_PLACED = re.compile(
    rf'= (v[\w.]+) [^;{{}}]*?/\* (?:[^;{{}}"]* )?loc\("{re.escape(KERNEL_FILE)}":(\d{{1,9}}):'
)


def without_locations(text: str) -> tuple[str, bool]:
    """A listing without its source annotations, and whether all of them could be read.

    An annotation that cannot be read stays, and the listing is not to be trusted: a file name may
    hold anything, also the end of the comment that it stands in.
    """
    if 'loc("' not in text:
        return text, True
    text = _COMMENT.sub("", text)
    if 'loc("' in text:
        text = _AMONG.sub("", text)
    return text, 'loc("' not in text


@dataclass
class Scan:
    """What the bundles of one block hold.

    Attributes:
        spills: Loads from and stores to the spill slots of vector registers.
        lines: Instructions of each unit (`SLOT_CLASSES`) by line of the kernel text, from 1. Only
            what the compiler says a line of; copies and spills have none.
    """

    spills: int = 0
    lines: Counter[tuple[str, int]] = field(default_factory=Counter)

    def most(self) -> list[int]:
        """Its lines, those with most instructions first."""
        total: Counter[int] = Counter()
        for (_, line), count in self.lines.items():
            total[line] += count
        return sorted(total, key=lambda line: (-total[line], line))


def read(listing: Listing, blocks: Sequence[tuple[int, int]]) -> list[Scan]:
    """Reads blocks of a listing in its file; empty ones if it has none or is not to be trusted."""
    if listing.path is None or listing.malformed:
        return [Scan() for _ in blocks]
    text = listing.path.read_bytes().decode("utf-8", "replace")
    return scan(text, blocks, listing.length)


def scan(text: str, blocks: Iterable[tuple[int, int]], length: int) -> list[Scan]:
    """Reads blocks, given as (first bundle, bundle after the last), of a listing.

    Args:
        text: The listing as libtpu wrote it.
        blocks: What to read.
        length: Number of its bundles.

    Returns:
        As many as there are blocks; empty ones if the bundles cannot be told apart.
    """
    offsets = [match.start() for match in _BUNDLE.finditer(text)]
    if len(offsets) != length:
        return [Scan() for _ in blocks]
    offsets.append(len(text))
    found = []
    for start, end in blocks:
        part = text[offsets[start] : offsets[end]]
        one = Scan(spills=len(_SPILL.findall(part)))
        for (op, line), count in Counter(_PLACED.findall(part)).items():
            if 0 < int(line) <= MAX_LINE:
                one.lines[SLOT_CLASSES[classify(op)], int(line)] += count
        found.append(one)
    return found
