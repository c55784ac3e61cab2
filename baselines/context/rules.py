"""Rules for authors of kernels, each with its witness.

A rule stands in ``rulebook/TOPIC.toml``: its text, and edits that break a kernel of ``witnesses/``.
The kernel must pass, and once broken must fail with the stated status and words, with the compiler
that is installed: `Rule.check` tries it. What cannot be shown in this way is not a rule.

Fields of a rule in the files:

- ``name``: unique; ``text``: the rule, in which ``{values}`` stands for the values below.
- ``kernel``: the witness, ``scale_copies`` for ``witnesses/scale_copies_kernel.py``; its workload
  is named by the first word.
- ``good`` (optional) and ``bad``: lists of [old, new]; the first make the twin of the witness, the
  others break the twin. An edit applies wherever its old text stands.
- ``about`` (optional): the topic of `selection.TOPICS` that it belongs to; otherwise that of the
  witness.
- ``before`` (optional): the version of jax from which on it does not hold.
- ``values`` (optional): one broken kernel each, with the value in place of ``VALUE``.
- ``status`` and ``message``: the verdict on every broken kernel, and words that stand in its
  message or details.
"""

from __future__ import annotations

import functools
import hashlib
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jax

import workloads
from jaxbench_env import EvalResult, Evaluator, Status

_ABOUT = {"product": "products", "take": "indices", "sums": "scans", "scale_copies": "copies"}
_HERE = resources.files(__package__)


class RuleError(ValueError):
    """A rule's file is not as it must be; the message says which rule, what and why."""


@dataclass(frozen=True)
class Verdict:
    """What a witness showed.

    Attributes:
        rule: The rule's name.
        ok: Whether the twin passes and every broken kernel fails as the rule says.
        sha256: `Rule.sha256`.
        twin: Status of the twin.
        broken: Status and message (500 characters) of every broken kernel.
    """

    rule: str
    ok: bool
    sha256: str
    twin: str
    broken: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: Its name.
        topic: The file that it stands in.
        text: The rule, for authors of kernels.
        kernel: Name of the witness.
        about: What it is about: a topic of `selection.TOPICS`, ``"copies"``, or empty for rules
            that concern every kernel.
        twin: A kernel text that keeps the rule.
        broken: Kernel texts that break it.
        status: Their status.
        message: Words of their message or details.
        before: The version of jax from which on it does not hold; empty if it holds with all.
    """

    name: str
    topic: str
    text: str
    kernel: str
    about: str
    twin: str
    broken: tuple[str, ...]
    status: Status
    message: str
    before: str = ""

    def holds_with(self, version: str) -> bool:
        """Whether it is a rule for a version of jax, for example ``"0.10.2"``."""
        return not self.before or _numbers(version) < _numbers(self.before)

    @property
    def workload(self) -> Path:
        """The file of the workload that the kernels are for."""
        return Path(str(_HERE / "witnesses" / f"{self.kernel.split('_')[0]}.py"))

    @property
    def sha256(self) -> str:
        """Of all that the verdict on the rule depends on, but the compiler and the evaluator."""
        parts = (self.workload.read_text("utf-8"), self.twin, *self.broken)
        expected = (self.status.value, self.message)
        return hashlib.sha256("\0".join((*parts, *expected)).encode()).hexdigest()

    def check(self, evaluator: Evaluator | None = None) -> Verdict:
        """Compiles and runs the rule's kernels; seconds each."""
        evaluator = evaluator or Evaluator()
        workload = workloads.get(str(self.workload))
        twin, *broken = (
            evaluator.evaluate(workload, text, seed=1) for text in (self.twin, *self.broken)
        )
        return Verdict(
            rule=self.name,
            ok=twin.correct and all(map(self.expects, broken)),
            sha256=self.sha256,
            twin=twin.status.value if twin.correct else f"{twin.status.value}: {twin.message}",
            broken=tuple((result.status.value, result.message[:500]) for result in broken),
        )

    def expects(self, result: EvalResult) -> bool:
        """Whether a verdict is the one that the rule states for a broken kernel."""
        said = result.message + result.details
        return result.status is self.status and self.message in said


def rules() -> tuple[Rule, ...]:
    """The rules for the installed jax, by topic and in the order of the files.

    Raises:
        RuleError: If a file is not as it must be.
    """
    return tuple(rule for rule in every_rule() if rule.holds_with(jax.__version__))


@functools.cache
def every_rule() -> tuple[Rule, ...]:
    """As `rules`, for any jax.

    Raises:
        RuleError: If a file is not as it must be.
    """
    files = sorted(
        (f for f in (_HERE / "rulebook").iterdir() if f.name.endswith(".toml")),
        key=lambda f: f.name,
    )
    found: dict[str, Rule] = {}
    for file in files:
        topic = file.name.removesuffix(".toml")
        for fields in tomllib.loads(file.read_text("utf-8"))["rule"]:
            rule = _rule(topic, fields)
            if rule.name in found:
                raise RuleError(f"two rules are named {rule.name}: rename one")
            found[rule.name] = rule
    return tuple(found.values())


def _rule(topic: str, fields: dict[str, Any]) -> Rule:
    name, kernel = fields["name"], fields["kernel"]
    twin = _edited(name, witness(kernel), fields.get("good", ()))
    values = fields.get("values", ())
    edits = [[[old, new.replace("VALUE", value)] for old, new in fields["bad"]] for value in values]
    return Rule(
        name=name,
        topic=topic,
        text=fields["text"].replace("{values}", ", ".join(f"`{value}`" for value in values)),
        kernel=kernel,
        about=fields.get("about", _ABOUT.get(kernel, "")),
        twin=twin,
        broken=tuple(_edited(name, twin, each) for each in edits or [fields["bad"]]),
        status=Status(fields["status"]),
        message=fields["message"],
        before=fields.get("before", ""),
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def witness(kernel: str) -> str:
    """The text of a witness, for example ``"scale"``."""
    return (_HERE / "witnesses" / f"{kernel}_kernel.py").read_text("utf-8")


def _edited(name: str, text: str, edits: Any) -> str:
    for old, new in edits:
        if old not in text:
            raise RuleError(f"rule {name}: its kernel does not hold {old!r}; correct the edit")
        text = text.replace(old, new)
    return text
