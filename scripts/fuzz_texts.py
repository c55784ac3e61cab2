"""Texts that nobody would write: random bytes, mutated kernels, Python made from a grammar."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

NAMES = ("x", "scale", "jax", "jnp", "pl", "pltpu", "workload", "CONFIG", "np", "f", "_", "ref")
ATTRIBUTES = ("shape", "dtype", "at", "set", "T", "pallas_call", "BlockSpec", "sum", "__class__")
OPERATORS = ("+", "-", "*", "/", "//", "%", "@", "**", "<", "==", "and", "in", "is", "if 1 else")
HEAD = (
    "import jax\nimport jax.numpy as jnp\nfrom jax.experimental import pallas as pl\n"
    "from jax.experimental.pallas import tpu as pltpu\n"
)


def texts(kernels: Sequence[str], count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yields `count` pairs of kind and text, the kinds in equal parts.

    Args:
        kernels: Texts to mutate.
        count: How many.
        seed: Equal seeds give equal texts.
    """
    rng = random.Random(seed)
    for number in range(count):
        kind = ("bytes", "mutant", "grammar")[number % 3]
        if kind == "bytes":
            yield kind, _bytes(rng)
        elif kind == "mutant":
            yield kind, _mutant(rng, rng.choice(kernels))
        else:
            yield kind, _program(rng)


def _bytes(rng: random.Random) -> str:
    size = rng.choice((0, 1, 10, 100, 1000, 10_000))
    encoding = rng.choice(("utf-8", "latin-1", "any character"))
    if encoding == "any character":  # surrogates and unassigned ones too
        return "".join(chr(rng.randrange(0x110000)) for _ in range(size))
    return rng.randbytes(size).decode(encoding, errors="surrogateescape")


def _mutant(rng: random.Random, text: str) -> str:
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[rng.randrange(len(lines))])
            case 2:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                words = lines[at].split(" ")
                words[rng.randrange(len(words))] = rng.choice((*NAMES, *OPERATORS, "0", "1024"))
                lines[at] = " ".join(words)
            case 4:
                place = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + chr(rng.randrange(1, 0x250)) + lines[at][place:]
            case 5:
                lines[at] = lines[at].replace("1", rng.choice(("0", "7", "-1", "1.5", "1e9")))
        text = "\n".join(lines) or "\n"
    return text


def _program(rng: random.Random) -> str:
    body = "\n".join(_statement(rng, 1) for _ in range(rng.randrange(1, 8)))
    top = "\n".join(_statement(rng, 0) for _ in range(rng.randrange(3)))
    head = HEAD if rng.random() < 0.8 else ""
    return f"{head}{top}\ndef workload(x, scale):\n{body}\n    return {_expression(rng, 3)}\n"


def _statement(rng: random.Random, depth: int) -> str:
    pad = "    " * depth
    if depth > 4:
        return f"{pad}pass"
    inner = _statement(rng, depth + 1)
    return rng.choice(
        (
            f"{pad}{rng.choice(NAMES)} = {_expression(rng, 3)}",
            f"{pad}{_expression(rng, 3)}",
            f"{pad}for {rng.choice(NAMES)} in {_expression(rng, 2)}:\n{inner}",
            f"{pad}if {_expression(rng, 2)}:\n{inner}",
            f"{pad}while {_expression(rng, 1)}:\n{inner}\n{pad}    break",
            f"{pad}def {rng.choice(NAMES)}({rng.choice(NAMES)}):\n{inner}",
            f"{pad}with {_expression(rng, 1)} as {rng.choice(NAMES)}:\n{inner}",
            f"{pad}try:\n{inner}\n{pad}except Exception:\n{inner}",
            f"{pad}class {rng.choice(NAMES)}({rng.choice(NAMES)}):\n{inner}",
            f"{pad}del {rng.choice(NAMES)}",
            f"{pad}global {rng.choice(NAMES)}",
        )
    )


def _expression(rng: random.Random, depth: int) -> str:
    if depth <= 0:
        return rng.choice((*NAMES, "0", "1", "-1.5", "'a'", "None", "...", "1e400", "()"))
    one, two = _expression(rng, depth - 1), _expression(rng, depth - 1)
    return rng.choice(
        (
            f"({one} {rng.choice(OPERATORS)} {two})",
            f"{one}.{rng.choice(ATTRIBUTES)}" if one.isidentifier() else f"({one})",
            f"{rng.choice(NAMES)}({one}, {two})",
            f"({one})[{two}]",
            f"[{one} for {rng.choice(NAMES)} in ({two},)]",
            f"(lambda {rng.choice(NAMES)}: {one})",
            f"{{{one}: {two}}}",
            f"f'{{{rng.choice(NAMES)}}}'",
            f"({rng.choice(NAMES)} := {one})",
            f"pl.pallas_call({one}, out_shape={two})({rng.choice(NAMES)})",
            f"jnp.{rng.choice(('sum', 'dot', 'ones', 'exp', 'where'))}({one})",
        )
    )
