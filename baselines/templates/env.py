"""An environment whose actions are the tunables of a kernel, for any standard RL library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from baselines import kernels
from baselines.templates.space import TemplateSpace
from jaxbench_env import KernelEnv, Status, SuiteEnv
from jaxbench_env.env import COUNTERS

HIGHEST = 89.0  # above log(1 + x) of every float32


class TemplateAction(gymnasium.Wrapper, RecordConstructorArgs):
    """Tuning one kernel: an action is a member of the kernel's `TemplateSpace`.

        env = TemplateAction(gym.make("JAXBench/rms_norm"))

    Action: `TemplateSpace`, a `MultiDiscrete`. Members that break the kernel's own constraints are
    legal actions, and failed attempts.

    Observation: a float32 vector of `observation_names`, the numeric part of the environment's own
    observation and the last action. Statuses are one-hot; times, errors, counters and speedup are
    given as ``log(1 + x)``; attempts and the action's indices as parts of their ranges.

    ``info["source"]`` is the text of the last attempt, and ``info["violations"]`` says which
    constraints it breaks. All else is the environment's.
    """

    def __init__(self, env: gymnasium.Env, template: str | TemplateSpace | None = None):
        """Wraps an environment of one workload.

        Args:
            env: A `KernelEnv`, or wrappers around one.
            template: A kernel text with tunables, or its space; by default the kernel of
                `baselines.kernels`.

        Raises:
            TypeError: For an environment of many workloads, or of another kind.
            NoKernel: If there is no kernel for the workload.
            TemplateError: If the text has no tunables, or not as it should.
        """
        RecordConstructorArgs.__init__(self, template=template)
        gymnasium.Wrapper.__init__(self, env)
        inner = env.unwrapped
        if not isinstance(inner, KernelEnv) or isinstance(inner, SuiteEnv):
            raise TypeError(
                f"a kernel's tunables are for one workload: wrap a KernelEnv, not {inner!r}"
            )
        if template is None:
            template = kernels.source(inner.workload.id)
        self.action_space = (
            template if isinstance(template, TemplateSpace) else TemplateSpace(template)
        )
        self._parts = _Parts(env.observation_space, self.action_space)
        self.observation_names = self._parts.names
        self.observation_space = spaces.Box(
            0.0, HIGHEST, (len(self.observation_names),), np.float32
        )
        self._action: Sequence[int] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode, as the environment does."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._action = None
        return self._parts.vector(observation, None), self._described(info)

    def step(self, action: Sequence[int]) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Evaluates the kernel text at an action.

        Raises:
            TemplateError: If it is no member of the action space.
            ResetNeeded: As the environment does.
        """
        self._action = action
        observation, reward, terminated, truncated, info = self.env.step(self.source(action))
        vector = self._parts.vector(observation, action)
        return vector, reward, terminated, truncated, self._described(info)

    def source(self, action: Sequence[int]) -> str:
        """The kernel text at an action."""
        return self.action_space.source(action)

    def _described(self, info: dict[str, Any]) -> dict[str, Any]:
        if self._action is None:
            return {**info, "source": "", "violations": ()}
        broken = tuple(self.action_space.violations(self._action))
        return {**info, "source": self.source(self._action), "violations": broken}


class _Parts:
    """How the vector is made of an observation and an action."""

    def __init__(self, observed: spaces.Dict, actions: TemplateSpace):
        self._statuses = int(observed["status"].n)
        self._attempts = int(observed["attempt"].n) - 1
        self._last = np.maximum(actions.nvec - 1, 1)
        self.names = (
            "status: none",
            *(f"status: {status.value}" for status in Status),
            "compiled",
            "correct",
            "attempt",
            "log error: largest element",
            "log error: RMS",
            "log ms: kernel",
            "log ms: XLA",
            "log ms: roofline",
            "log speedup",
            *(f"log {name}" for name in COUNTERS),
            "an action was made",
            *(f"action: {name}" for name in actions.names),
        )

    def vector(self, observation: dict[str, Any], action: Sequence[int] | None) -> np.ndarray:
        """The vector; before the first action its indices are 0."""
        status = np.zeros(self._statuses)
        status[observation["status"]] = 1.0
        parts = (
            status,
            [observation["compiled"], observation["correct"]],
            [observation["attempt"] / self._attempts],
            *(
                np.log1p(observation[n].astype(np.float64))
                for n in ("errors", "times", "speedup", "counters")
            ),
            [action is not None],
            np.zeros(self._last.shape) if action is None else np.asarray(action) / self._last,
        )
        return np.concatenate(parts).astype(np.float32)
