"""The parameters that are studied, by kernel: sweeps of one parameter through a common point."""

from __future__ import annotations

from itertools import product

BLOCKS = (128, 256, 512, 1024, 2048)
ROW_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
#: `pallas_call` takes no more; `emit_pipeline` and rings of one's own do.
FEW_BUFFERS = (1, 2)
BUFFERS = (1, 2, 3)


def _matmul() -> list[dict]:
    base = {"m": 512, "n": 512, "k": 512, "buffers": 2, "order": "mnk", "depth": 4096}
    cubes = [base | {"m": b, "n": b, "k": b, "buffers": n} for b, n in product(BLOCKS, FEW_BUFFERS)]
    sweeps = [base | {axis: b, "buffers": n} for axis, b, n in product("mnk", BLOCKS, FEW_BUFFERS)]
    orders = [
        base | {"m": m, "n": n, "order": order}
        for (m, n), order in product([(256, 2048), (2048, 256), (1024, 512)], ("mnk", "nmk"))
    ]
    halves = [base | {"depth": depth} for depth in (1024, 2048, 8192)]
    return [*cubes, *sweeps, *orders, *halves]


def _epilogue() -> list[dict]:
    base = {"m": 512, "n": 512, "buffers": 2, "order": "mn"}
    squares = [base | {"m": b, "n": b, "buffers": n} for b, n in product(BLOCKS, FEW_BUFFERS)]
    rows = [base | {"m": b} for b in BLOCKS]
    columns = [base | {"n": b} for b in BLOCKS]
    orders = [
        base | {"m": m, "n": n, "order": order}
        for (m, n), order in product([(256, 1024), (1024, 256), (512, 512)], ("mn", "nm"))
    ]
    return [*squares, *rows, *columns, *orders]


def _rms_norm() -> list[dict]:
    base = {"rows": 256, "buffers": 2, "total": 16384}
    blocks = [base | {"rows": b, "buffers": n} for b, n in product(ROW_BLOCKS, FEW_BUFFERS)]
    halves = [base | {"total": total} for total in (4096, 8192, 32768)]
    return [*blocks, *halves]


def _softmax() -> list[dict]:
    return [{"rows": b, "buffers": n} for b, n in product(ROW_BLOCKS[:-1], (1, 2, 3, 4))]


def _flash_attention() -> list[dict]:
    base = {"q": 1024, "k_major": 1024, "k": 512, "causal": True}
    squares = [base | {"q": b, "k_major": b, "k": b} for b in BLOCKS]
    queries = [base | {"q": b} for b in BLOCKS]
    major = [base | {"k_major": b, "k": min(b, 512)} for b in BLOCKS]
    minor = [base | {"q": q, "k_major": 2048, "k": b} for q, b in product((512, 2048), BLOCKS)]
    plain = [base | {"q": b, "k_major": b, "k": min(b, 512), "causal": False} for b in BLOCKS]
    return [*squares, *queries, *major, *minor, *plain]


def _chunked_scan() -> list[dict]:
    base = {"heads": 16, "span": 512, "buffers": 2, "group": 2, "ahead": 2}
    spans = [base | {"span": b, "buffers": n} for b, n in product(BLOCKS, FEW_BUFFERS)]
    heads = [base | {"heads": h} for h in (2, 4, 8, 16, 32)]
    ahead = [base | {"ahead": n} for n in (1, 2, 3, 4)]
    groups = [base | {"group": n} for n in (1, 2, 4)]
    return [*spans, *heads, *ahead, *groups]


def _grouped_matmul() -> list[dict]:
    base = {"m": 512, "n": 1024, "k": 512, "buffers": 2, "order": "gmnk"}
    cubes = [
        base | {"m": min(b, 1024), "n": b, "k": b, "buffers": n}
        for b, n in product(BLOCKS, BUFFERS)
    ]
    depth = [base | {"k": b, "buffers": n} for b, n in product(BLOCKS, BUFFERS)]
    orders = [base | {"m": 256, "k": 2048, "order": order} for order in ("gmnk", "gnmk")]
    return [*cubes, *depth, *orders]


def _distinct(variants: list[dict]) -> list[dict]:
    """In the same order, without repetitions: sweeps share points."""
    return list({tuple(sorted(one.items())): one for one in variants}.values())


#: Kernel module -> parameters of its variants.
SPACE: dict[str, list[dict]] = {
    "matmul": _distinct(_matmul()),
    "rms_norm": _distinct(_rms_norm()),
    "softmax": _distinct(_softmax()),
    "flash_attention": _distinct(_flash_attention()),
    "chunked_scan": _distinct(_chunked_scan()),
    "grouped_matmul": _distinct(_grouped_matmul()),
    "epilogue": _distinct(_epilogue()),
}
