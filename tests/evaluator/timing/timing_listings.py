"""Small listings written by hand, and dump folders made of them."""

import re
from pathlib import Path


def listing(*bundles: str, entry: str = "") -> str:
    """A listing of numbered bundles with labels where branches go.

    A bundle is the text between the braces, or (text, note).
    """
    pairs = [bundle if isinstance(bundle, tuple) else (bundle, "") for bundle in bundles]
    regions, labels = {}, {}
    for address, (_, note) in enumerate(pairs):
        for region in re.findall(r"Start(?:/End empty)? region (\d+)", note):
            regions.setdefault(region, address)
    for address, (text, _) in enumerate(pairs):
        for region in re.findall(r"sbr\S* [^;]*\$region(\d+)", text):
            if region in regions:
                labels[regions[region]] = "LB" if regions[region] <= address else "PF"
    lines = ["= control target key start", "LH: loop header", "= control target key end", ""]
    for address, (text, note) in enumerate(pairs):
        notes = [note] if note else []
        if address == 0 and entry:
            notes.append(f"entry bundle: %{entry} = custom-call(%a)")
        tail = f" /* {' :: '.join(notes)} */" if notes else ""
        lines.append(f"  {address:#5x} {labels.get(address, ''):2}:  {{ {text} }}{tail}")
    return "\n".join(lines) + "\n"


def loop(iterations: object, *body: object, region: int = 5, first: int = 1) -> list:
    """Bundles of a counted loop around `body`; it takes 1 + iterations * (7 + len(body)) cycles.

    `iterations` may be an operand such as "%s9_s9". Values s`first` .. s`first`+2 are used.
    """
    start, now, after = f"%s{first}_s1", f"%s{first + 1}_s1", f"%s{first + 2}_s1"
    return [
        f"{start} = smov 0",
        (
            f"{now} = sphi {start}, {after}  ;;  {after} = sadd.s32 1, {now}",
            f"Start region {region}",
        ),
        *body,
        f"%p{first}_p0 = scmp.ge.s32.totalorder {after}, {iterations}",
        f"%{900 + first} = sbr.rel (!%p{first}_p0) target = $region{region}",
        *["" for _ in range(4)],
    ]


def call(name: str, *args: str) -> str:
    """A bundle's text that calls a program."""
    return f"%700 = inlined_call {', '.join(args)} /* %{name} = custom-call(%a) */"


def write_dump(folder: Path, programs: dict[str, str], hlo: str = "") -> Path:
    """Writes listings by program name, "TLP" for the top level, as libtpu names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, text) in enumerate(programs.items()):
        (folder / f"{1000 + number}-{name}-01-final_bundles.txt").write_text(text)
    if hlo:
        (folder / "1000-TLP-hlo.txt").write_text(hlo)
    return folder
