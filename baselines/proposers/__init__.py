"""What writes the texts that policies propose: a language model, templates, or recorded answers."""

from baselines.proposers.proposer import (
    About,
    Answer,
    NotApplicable,
    Proposer,
    ProposerError,
    Request,
    Scripted,
    Stopped,
    answer_all,
)

__all__ = [
    "About",
    "Answer",
    "NotApplicable",
    "Proposer",
    "ProposerError",
    "Request",
    "Scripted",
    "Stopped",
    "answer_all",
]
