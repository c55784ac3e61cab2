"""A rollout's directory: what was asked, answered, proposed and judged, as it happens.

    run.json          settings and provenance of the run, written once
    calls.jsonl       one line per answer of the proposer
    candidates.jsonl  one line per verdict
    finals.jsonl      verdicts on the best, their numbers checked at the published size
    sources/          kernel texts by their hash
    texts/            prompts and answers by their hash, gzipped

Lines are appended by one system call each, after the texts that they name were written, so a run
that is killed loses what it was doing and no more. A last line without its end (the machine died)
is dropped when the run is resumed. docs/records.md has the fields.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from baselines.policy import Candidate, Evaluated
from baselines.proposers.proposer import Answer, Request
from jaxbench_env import EvalResult
from jaxbench_env.evaluator import store
from jaxbench_env.evaluator.cache import source_hash

SCHEMA = 1
FILES = ("calls", "candidates", "finals")

#: Settings that a resumed run may change: they decide when it ends, not what it does.
_FREE = ("workloads", "created")


class RecordsError(ValueError):
    """A directory is not a run's, or another run's, or damaged."""


class Records:
    """The directory of a run that is being made. Thread-safe; one process at a time.

    Attributes:
        notes: What was dropped when it was opened.
        cost: What all answers cost, of all sessions; those without a price count as nothing.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        """Opens a run's directory, or makes it.

        Args:
            folder: The directory.
            settings: What the run does, JSON-ready. An existing run must have the same; its
                workloads may become more.

        Raises:
            RecordsError: If it holds another run, is damaged, or is in use.
        """
        self.folder, self.notes = folder, []
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_others(folder)
        self._guard = open(folder / ".lock", "w")
        try:
            self._open(dict(settings))
        except BaseException:  # who has mended the cause may try again
            self._guard.close()
            raise

    def _open(self, settings: dict[str, Any]) -> None:
        folder = self.folder
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordsError(f"{folder} is in use by another rollout") from None
        self._write_settings(settings)
        for name in FILES:
            self._mend(folder / f"{name}.jsonl")
        self._files = {
            name: os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            for name in FILES
        }
        self.run = Run(folder)
        self._calls = {(c["workload"], c["label"]): c for c in self.run.lines("calls")}
        self._verdicts = {(c["workload"], c["sample"]): c for c in self.run.lines("candidates")}
        self._finals = {(c["workload"], c["source_sha256"]): c for c in self.run.lines("finals")}
        self.cost = sum(call["cost"] or 0.0 for call in self._calls.values())

    def close(self) -> None:
        """Frees the directory for others."""
        for handle in self._files.values():
            os.close(handle)
        self._files = {}
        self._guard.close()

    def answer(self, request: Request) -> Answer | None:
        """The recorded answer to a request; None if there is none.

        Raises:
            RecordsError: If another prompt was recorded under its label.
        """
        line = self._calls.get((request.about.workload, request.label))
        if line is None:
            return None
        if line["prompt_sha256"] != request.prompt_sha256:
            raise RecordsError(
                f"{self.folder}: the prompt of call {request.label!r} of "
                f"{request.about.workload} is not the recorded one, so prompts, policies or "
                "kernels have changed since; start anew in another directory"
            )
        fields = ("model", "input_tokens", "output_tokens", "cost", "seconds", "attempts", "finish")
        return Answer(self.run.text(line["answer_sha256"]), **{f: line[f] for f in fields})

    def save_answer(self, request: Request, answer: Answer) -> None:
        """Keeps an answer."""
        line = {
            "workload": request.about.workload,
            "label": request.label,
            "kind": request.kind,
            "prompt_sha256": self._save_text(request.text),
            "answer_sha256": self._save_text(answer.text),
            "model": answer.model,
            "input_tokens": answer.input_tokens,
            "output_tokens": answer.output_tokens,
            "cost": answer.cost,
            "seconds": round(answer.seconds, 3),
            "attempts": answer.attempts,
            "finish": answer.finish,
        }
        self._append("calls", line)
        with self._lock:
            self._calls[line["workload"], line["label"]] = line
            self.cost += answer.cost or 0.0

    def verdict(self, workload: str, candidate: Candidate) -> EvalResult | None:
        """The recorded verdict on a candidate; None if there is none.

        Raises:
            RecordsError: If another text was recorded under its number.
        """
        line = self._verdicts.get((workload, candidate.sample))
        if line is None:
            return None
        if line["source_sha256"] != candidate.hash:
            raise RecordsError(
                f"{self.folder}: sample {candidate.sample} of {workload} is another text than the "
                "recorded one, so the policy has changed since; start anew in another directory"
            )
        return EvalResult.from_dict(line["result"])

    def save_verdict(self, workload: str, evaluated: Evaluated, seconds: float) -> None:
        """Keeps a verdict.

        Args:
            workload: Id of the workload.
            evaluated: The candidate and its verdict.
            seconds: Wall time of the evaluation.
        """
        candidate, result = evaluated.candidate, evaluated.result
        self._save_source(candidate)
        calls = [self._calls[workload, label] for label in candidate.calls]
        line = {
            "workload": workload,
            "sample": candidate.sample,
            "source_sha256": candidate.hash,
            "parent": candidate.parent,
            "plan": candidate.plan,
            "place": candidate.place,
            "calls": list(candidate.calls),
            "prompt_sha256": calls[-1]["prompt_sha256"] if calls else None,
            "input_tokens": sum(call["input_tokens"] for call in calls),
            "output_tokens": sum(call["output_tokens"] for call in calls),
            "protocol": result.provenance.protocol,
            "seconds": round(seconds, 3),
            "result": result.to_dict(),
        }
        self._append("candidates", line)
        self._verdicts[workload, candidate.sample] = line

    def final(self, workload: str, candidate: Candidate) -> EvalResult | None:
        """The recorded verdict at the published size; None if there is none."""
        line = self._finals.get((workload, candidate.hash))
        return EvalResult.from_dict(line["result"]) if line else None

    def save_final(self, workload: str, evaluated: Evaluated) -> None:
        """Keeps the verdict of a workload's best with its numbers at the published size."""
        line = {
            "workload": workload,
            "sample": evaluated.candidate.sample,
            "source_sha256": evaluated.candidate.hash,
            "verify": "full",
            "result": evaluated.result.to_dict(),
        }
        self._append("finals", line)
        self._finals[workload, evaluated.candidate.hash] = line

    @property
    def evaluations(self) -> int:
        """Verdicts so far, of all sessions of the run."""
        return len(self._verdicts)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        line["time"] = datetime.now(UTC).isoformat(timespec="seconds")
        data = (json.dumps(line) + "\n").encode()
        with self._lock:
            written = os.write(self._files[name], data)
            if written != len(data):  # a full disk
                os.ftruncate(self._files[name], os.fstat(self._files[name]).st_size - written)
                raise OSError(f"cannot write {self.folder / name}.jsonl: the disk is full")

    def _save_text(self, text: str) -> str:
        digest = source_hash(text)
        path = _text_path(self.folder, digest)
        if not path.exists():
            _write(path, gzip.compress(text.encode(errors="surrogatepass"), mtime=0))
        return digest

    def _save_source(self, candidate: Candidate) -> None:
        path = self.folder / "sources" / f"{candidate.hash}.py"
        if not path.exists():
            _write(path, candidate.source.encode(errors="surrogatepass"))

    def _mend(self, path: Path) -> None:
        """Cuts off a last line that has no end."""
        with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
            data = file.read()
            end = data.rfind(b"\n") + 1
            if end < len(data):
                file.truncate(end)
                self.notes.append(f"{path.name}: dropped an unfinished last line")

    def _write_settings(self, settings: dict[str, Any]) -> None:
        path = self.folder / "run.json"
        settings = json.loads(json.dumps({"schema": SCHEMA, **settings}))
        if path.exists():
            known = _read_settings(path)
            wrong = [n for n in {*known, *settings} - {*_FREE} if known.get(n) != settings.get(n)]
            if wrong:
                differences = "; ".join(
                    f"{name} is {json.dumps(settings.get(name))} and was "
                    f"{json.dumps(known.get(name))}"
                    for name in sorted(wrong)
                )
                raise RecordsError(
                    f"{self.folder} holds another run: {differences}. Take another directory, or "
                    "the same settings to resume it"
                )
            more = [w for w in settings["workloads"] if w not in known["workloads"]]
            settings = {**known, "workloads": known["workloads"] + more}
        else:
            settings["created"] = datetime.now(UTC).isoformat(timespec="seconds")
        _write(path, (json.dumps(settings, indent=2) + "\n").encode())


@dataclass(frozen=True)
class Run:
    """A run's directory, to read: also while the run is being made.

    Attributes:
        folder: The directory.
    """

    folder: Path

    @property
    def settings(self) -> dict[str, Any]:
        """What the run does.

        Raises:
            RecordsError: If the directory holds no run, or one of another schema.
        """
        return _read_settings(self.folder / "run.json")

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The lines of ``"calls"``, ``"candidates"`` or ``"finals"``, in the order of time.

        An unfinished last line is left out.

        Raises:
            RecordsError: For a line that is no JSON object.
        """
        path = self.folder / f"{name}.jsonl"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
            try:
                yield _object(line)
            except ValueError as error:
                raise RecordsError(f"{path}, line {number} is damaged: {error}") from None

    def source(self, digest: str) -> str:
        """A kernel text by its hash."""
        path = self.folder / "sources" / f"{digest}.py"
        return path.read_bytes().decode(errors="surrogatepass")

    def text(self, digest: str) -> str:
        """A prompt or an answer by its hash."""
        data = gzip.decompress(_text_path(self.folder, digest).read_bytes())
        return data.decode(errors="surrogatepass")


def _refuse_others(folder: Path) -> None:
    """Leaves a directory alone that is not a run's."""
    others = [path.name for path in folder.iterdir() if path.name != ".lock"]
    if others and not (folder / "run.json").exists():
        raise RecordsError(
            f"{folder} holds {others[0]} and no run.json: it is not a run's directory"
        )


def _object(data: bytes) -> dict[str, Any]:
    """The object of a JSON text.

    Raises:
        ValueError: If it is none.
    """
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = _object(path.read_bytes())
    except FileNotFoundError:
        raise RecordsError(f"{path.parent} holds no run: there is no run.json") from None
    except ValueError as error:
        raise RecordsError(f"{path} is damaged: {error}") from None
    if settings.get("schema") != SCHEMA:
        raise RecordsError(
            f"{path.parent} is of schema {settings.get('schema')}, this version reads {SCHEMA}"
        )
    return settings


def _text_path(folder: Path, digest: str) -> Path:
    return folder / "texts" / digest[:2] / f"{digest}.gz"


def _write(path: Path, data: bytes) -> None:
    """Writes a file at once or not at all, and fails if it cannot."""
    store.write(path, data)
    if not path.exists():
        raise OSError(f"cannot write {path}")
