"""Rollouts' directories whose verdicts are made up: any number of them, without a compiler.

As a script it writes runs of the size of the published comparison:

    python tests/report/made_up_runs.py runs/made-up --workloads 50 --budget 144
"""

import argparse
import base64
import gzip
import json
import random
import re
from pathlib import Path

import workloads
from baselines import kernels
from baselines.rollout.records import Run
from jaxbench_env import EvalResult, Stage, Status
from jaxbench_env.evaluator.cache import source_hash
from jaxbench_env.evaluator.result import Memory, NumericCheck, Provenance, Times
from jaxbench_env.report import read

VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
MODEL = {"proposer": "openai", "model": "made-up-1", "base_url": "http://localhost", "extra": {}}
TEMPLATE = {"proposer": "template", "seed": 0, "fresh": 0.9}
MUTANTS = Path(__file__).parents[1] / "data" / "mutants.jsonl"


def verdict(status, speedup=None, workload="gemm", text="", rng=None, **fields):
    """A verdict of that status, with everything a report shows."""
    rng = rng or random.Random(source_hash(text))
    compiled = status.rank >= Status.INTERPRETER_ERROR.rank
    stage = Stage.CORRECT if status.correct else Stage.COMPILED if compiled else Stage.AUDITED
    times = Times(
        candidate_ms=5.0 / (speedup or 0.7) if compiled else None,
        baseline_ms=5.0,
        roofline_ms=4.0,
        compiler="libtpu 0.0.42.1, jax 0.10.2",
    )
    checks = [
        NumericCheck("tiles", draw, status.correct, rng.random() / 50, 0.02, 0.001, 0.004, 0.0)
        for draw in ("normal", "small", "spread")
        if compiled
    ]
    units = ("mxu", "vpu", "xlu", "eup", "load", "store")
    counters = {f"{unit}_share": rng.random() for unit in units} if compiled else {}
    made = {
        "status": status,
        "stage": stage,
        "message": f"Made up: {status.value}.",
        "speedup": speedup if status.correct else None,
        "times": times,
        "memory": Memory(2**28, 2**34, 2**24, 2**27) if compiled else Memory(),
        "numerics": tuple(checks),
        "counters": counters | ({"hbm_bytes": 1e8, "dma_wait_share": 0.3} if compiled else {}),
        "provenance": Provenance(2, workload, 1, "v6e", VERSIONS, 0, source_hash(text)),
    }
    return EvalResult(**{**made, **fields})


def settings(policy="iterative", proposer=MODEL, seed=0, budget=8, names=("gemm",), **fields):
    made = {
        "schema": 1,
        "policy": policy,
        "constants": {"turns": 8},
        "proposer": proposer,
        "budget": budget,
        "seed": seed,
        "workloads": list(names),
        "evaluator": "predicted",
        "target": "v6e",
        "protocol": 2,
        "versions": VERSIONS,
        "created": "2026-01-01T00:00:00+00:00",
    }
    return made | fields


def write(folder, samples, finals=(), **options):
    """Writes a run.

    Args:
        folder: Its directory.
        samples: (workload, sample, text, verdict) and perhaps a dictionary of more fields.
        finals: (workload, text, verdict).
        **options: Of `settings`.
    """
    folder = Path(folder)
    (folder / "sources").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(settings(**options)))
    lines = []
    for name, sample, text, result, *more in samples:
        digest = source_hash(text)
        (folder / "sources" / f"{digest}.py").write_bytes(text.encode(errors="surrogatepass"))
        line = {
            "workload": name,
            "sample": sample,
            "source_sha256": digest,
            "parent": None,
            "plan": "",
            "place": {"chain": sample % 3, "turn": sample // 3},
            "calls": [],
            "prompt_sha256": None,
            "input_tokens": 100,
            "output_tokens": 10,
            "protocol": result.provenance.protocol,
            "seconds": 1.0,
            "result": result.to_dict(),
            "time": "2026-01-01T00:00:00+00:00",
        }
        lines.append(line | (more[0] if more else {}))
    checked = [
        {
            "workload": name,
            "sample": 0,
            "source_sha256": source_hash(text),
            "verify": "full",
            "result": result.to_dict(),
        }
        for name, text, result in finals
    ]
    for name, rows in (("candidates", lines), ("finals", checked), ("calls", [])):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def typical(folder, names, budget=24, skill=0.4, **options):
    """Writes a run as they are: real messages of the compiler, texts that descend from others."""
    rng = random.Random(f"{options.get('policy')} {options.get('seed')} {skill}")
    said = [json.loads(line) for line in MUTANTS.read_text().splitlines()]
    texts = {name: kernels.source(name) for name in kernels.ids()}
    samples = []
    for name in names:
        base, known, level = texts[rng.choice(sorted(texts))], [], 0.4
        for sample in range(budget):
            lines = base.splitlines()
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(len(lines))
                lines[at] = f"{lines[at]}  # {rng.randbytes(8).hex()}"
            text = "\n".join(lines) + "\n"
            if rng.random() < skill:
                level *= rng.uniform(0.9, 1.3)
                status = Status.OK if level > 1 else Status.SLOWER
                result = verdict(status, level, name, text, rng)
            else:
                one = rng.choice(said)
                about = {key: one[key] for key in ("failed_in", "message", "details")}
                line = rng.randrange(1, len(lines))
                status = Status(one["status"])
                result = verdict(status, None, name, text, rng, line=line, **about)
            parent = rng.choice(known) if known and rng.random() < 0.8 else None
            known.append(source_hash(text))
            plan = f"Larger blocks along axis {rng.randrange(3)}, to read the weights once."
            samples.append((name, sample, text, result, {"parent": parent, "plan": plan}))
    return write(folder, samples, budget=budget, names=names, **options)


def run(folder):
    """Reads a run."""
    found = Run(folder)
    lines = [list(found.lines(kind)) for kind in ("candidates", "finals", "calls")]
    return read(folder.name, found.settings, *lines, found.source)


def packs(page):
    """What a page unpacks: the index, and the packs by their name."""
    found = re.findall(
        rb'<script type="application/octet-stream" id="(\w+)">([A-Za-z0-9+/=]+)</script>', page
    )
    data = {
        name.decode(): json.loads(gzip.decompress(base64.b64decode(pack))) for name, pack in found
    }
    return data.pop("index"), data


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workloads", type=int, default=50)
    parser.add_argument("--budget", type=int, default=144)
    parser.add_argument("--policies", default="best_of_n,iterative,iterative_context,autocomp")
    asked = parser.parse_args()
    ids = [one.id for one in workloads.every() if one.file is None][: asked.workloads]
    for index, policy in enumerate(asked.policies.split(",")):
        skill = (0.01, 0.06, 0.35, 0.45)[index % 4]
        typical(asked.folder / policy, ids, asked.budget, skill, policy=policy)
