"""From names and texts, as a command line has them, to the parts of a rollout."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import workloads
from baselines import policy as by_name
from baselines.policy import Episode, Policy
from baselines.proposers.proposer import Proposer
from jaxbench_env import Evaluator
from jaxbench_env.evaluator.build import installed_versions
from jaxbench_env.evaluator.evaluator import PROTOCOL


def chosen_workloads(names: str) -> list[workloads.Workload]:
    """The workloads of ``"all"``, or of ids, numbers or published names with commas between.

    Raises:
        UnknownWorkload: For an unknown name.
        ValueError: If there is none.
    """
    if names.strip() == "all":
        return [workload for workload in workloads.every() if workload.file is None]
    found = [workloads.get(name.strip()) for name in names.split(",") if name.strip()]
    if not found:
        raise ValueError("no workloads: give ids with commas between, or all")
    return list({workload.id: workload for workload in found}.values())


def chosen_policy(name: str, constants: Iterable[str] = ()) -> Callable[[Episode], Policy]:
    """Makes a policy of that name with some of its constants set.

    Args:
        name: Name of the policy.
        constants: Texts ``NAME=VALUE``; values have the type of the default.

    Raises:
        ValueError: For an unknown policy or constant, or a value of another type.
    """
    made = by_name(name)
    fields = {f.name: f.default for f in dataclasses.fields(made) if f.init and f.name != "episode"}
    values: dict[str, Any] = {}
    for text in constants:
        constant, equals, value = text.partition("=")
        if not equals or constant not in fields:
            known = ", ".join(f"{n}={default}" for n, default in fields.items())
            raise ValueError(f"{text!r} sets no constant of {name}; it has {known}")
        values[constant] = _typed(constant, value, fields[constant])
    return functools.partial(made, **values)


def _typed(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name} is true or false, not {text!r}")
        return text.lower() == "true"
    if isinstance(default, str):
        return text
    try:
        value = type(default)(text)
        if 0 <= value < math.inf:
            return value
    except ValueError:
        pass
    kind = "a whole number" if isinstance(default, int) else "a number"
    raise ValueError(f"{name} is {kind} such as {default}, and at least 0, not {text!r}")


def settings(
    make: Callable[[Episode], Policy],
    chosen: list[workloads.Workload],
    proposer: Proposer | None,
    evaluator: Evaluator,
    source: str,
    budget: int,
    seed: int,
) -> dict[str, Any]:
    """What goes into run.json; see docs/records.md.

    Args:
        make: Makes the policy.
        chosen: The workloads.
        proposer: The proposer, if there is one.
        evaluator: Gives the verdicts.
        source: Where its times come from, such as ``"predicted"``.
        budget: As in `Episode`.
        seed: As in `Episode`.

    Raises:
        ValueError: For a constant out of its range, or library kernels with recorded verdicts.
    """
    policy = make(Episode(chosen[0], proposer, budget, seed, evaluator.target))
    if source == "recorded" and policy.allow_library_kernels:
        raise ValueError("there are no recorded verdicts on library kernels: have them predicted")
    return {
        "policy": policy.name,
        "constants": policy.constants,
        "proposer": proposer.describe() if proposer else None,
        "budget": budget,
        "seed": seed,
        "workloads": [workload.id for workload in chosen],
        "evaluator": source,
        "target": evaluator.target,
        "protocol": PROTOCOL,
        # Recorded verdicts name the compiler that they were made with, which may be another.
        "versions": installed_versions().as_dict() if source == "predicted" else None,
    }
