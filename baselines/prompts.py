"""What policies ask their proposer to write."""

from __future__ import annotations

import functools
import re

from baselines.context import context_for
from baselines.policy import Candidate, Episode, Evaluated
from baselines.proposers.proposer import About, Message, Request
from jaxbench_env import extract_source, feedback
from workloads import Workload
from workloads.task import SYSTEM

#: Bytes of documents in a prompt: what is smaller is used whole.
CONTEXT_BYTES = 30_000

PREAMBLE = """\
Kernels are written here in Pallas, JAX's language for kernels, for one core of a Google TPU. A TPU
core is no GPU: there are no threads or warps. One sequential program issues wide instructions to
matrix units, vector units that work on tiles of 8 x 128 words of 32 bits, and a few slower units
for transposes, reductions across lanes and transcendentals. Arrays live in HBM; a kernel computes
on blocks of them in VMEM, a scratchpad that the program manages. `pl.pallas_call` runs the kernel
once for each step of its grid, in order, and meanwhile fetches the blocks of the next step and
stores those of the last one. A fast kernel moves every byte through HBM once, keeps the matrix
units fed with bfloat16 operands while it accumulates in float32, and does enough in a grid step to
hide the cost of starting it.

"""

_MEND = "It is not right yet. Find the cause, mend it, and answer with the whole file."
_FASTER = (
    "It is right. Make it faster: decide what limits it, change that, and answer with the whole "
    "file."
)


@functools.lru_cache(maxsize=64)
def context(workload: Workload, budget_bytes: int, target: str) -> str:
    """The documents for a workload: hardware, API, examples of other workloads, rules."""
    return context_for(workload, budget_bytes, target)


def chat(system: str, user: str) -> tuple[Message, ...]:
    """A prompt of two messages."""
    return {"role": "system", "content": system}, {"role": "user", "content": user}


def introduction(episode: Episode, context_bytes: int = 0) -> str:
    """What every prompt begins with: the documents, if they are wanted, and the task."""
    documents = ""
    if context_bytes:
        found = context(episode.workload, context_bytes, episode.target)
        documents = f"{found.rstrip()}\n\n"
    return documents + PREAMBLE + episode.workload.task_text(episode.target).rstrip()


def code(source: str) -> str:
    """A text in a fence; the fence is longer than any in it."""
    longest = max(map(len, re.findall("`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{source.rstrip()}\n{fence}"


def write(
    episode: Episode,
    label: str,
    last: Evaluated | None = None,
    context_bytes: int = 0,
    temperature: float = 1.0,
) -> Request:
    """Asks for a kernel.

    Args:
        episode: The episode.
        label: The request's label.
        last: The last attempt with its verdict, which the prompt then shows: text, compile errors,
            numbers, profile.
        context_bytes: Size of the documents before the task, 0 for none.
        temperature: Of the sampling.
    """
    parts = [introduction(episode, context_bytes)]
    if last is None:
        parts.append("Write the kernel.")
    else:
        source, result = last.candidate.source, last.result
        shown = code(source) if source else "It held no Python code."
        parts += [
            f"## Your last attempt\n{shown}",
            f"## What the evaluator says about it\n{feedback(result, source)}",
            _FASTER if result.correct else _MEND,
        ]
    about = About(
        workload=episode.workload.id,
        context=bool(context_bytes),
        parent=last.candidate.source if last else "",
        verdict=last.result if last else None,
    )
    return Request(label, chat(SYSTEM, "\n\n".join(parts)), about, "write", temperature)


def candidate(
    text: str,
    sample: int,
    calls: tuple[str, ...],
    place: dict[str, int],
    parent: Candidate | None = None,
    plan: str = "",
) -> Candidate:
    """The candidate in an answer; the other arguments are its fields, the parent itself."""
    return Candidate(
        source=extract_source(text),
        sample=sample,
        parent=parent.hash if parent else None,
        plan=plan,
        place=place,
        calls=calls,
    )
