"""The Gymnasium environment: an episode is one workload, an action is kernel source text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import reward as rewards
import workloads
from jaxbench_env.evaluator.audit import MAX_LENGTH
from jaxbench_env.evaluator.evaluator import Evaluator
from jaxbench_env.evaluator.result import EvalResult, Status
from jaxbench_env.evaluator.service.client import SharedEvaluator
from jaxbench_env.feedback import MAX_FEEDBACK, feedback
from jaxbench_env.outcome import outcome
from jaxbench_env.recorded import RecordedEvaluator
from jaxbench_env.spaces import SourceText

MAX_TASK = 60_000

#: Names of the observation's `counters`, in their order; docs/profile.md says what each means.
COUNTERS = (
    "bundles",
    "mxu_ops",
    "vpu_ops",
    "xlu_ops",
    "eup_ops",
    "load_ops",
    "store_ops",
    "scalar_ops",
    "spill_loads",
    "spill_stores",
    "dma_count",
    "dma_wait_share",
    "hbm_bytes",
    "hbm_bandwidth",
    "hbm_bandwidth_share",
    "hbm_bytes_min",
    "mxu_share",
    "vpu_share",
    "xlu_share",
    "eup_share",
    "load_share",
    "store_share",
    "vector_spills",
    "vmem_used",
    "kernel_share",
    "steps",
    "bundles_per_step",
    "loop_share",
    "loop_iterations",
    "loop_bundles",
    "loop_line",
)


class KernelEnv(gymnasium.Env[dict[str, Any], str]):
    """Write a Pallas TPU kernel for one workload, in up to `max_attempts` attempts.

    Action: the source text of a kernel (`SourceText`, up to 200,000 characters). Any text may be
    stepped; a bad one is a failed attempt.

    Observation (Dict):

    - ``task``: contract, shapes and dtypes of every preset, reference source, hardware.
    - ``feedback``: what was wrong with the last attempt, where, and what to do; empty at first.
    - ``status``: 0 before the first attempt, else 1 + the status' rank (`Status.rank`).
    - ``compiled``, ``correct``: 0 or 1.
    - ``errors``: float32 (2,), largest elementwise error ratio and largest relative RMS error.
    - ``times``: float32 (3,), milliseconds of candidate, XLA and roofline; 0 where there is none.
    - ``speedup``: float32 (1,), 0 unless correct.
    - ``counters``: float32, by the names in `COUNTERS`; 0 where there is none.
    - ``attempt``: attempts made so far, 0 to `max_attempts`.

    Reward: the reward function of this attempt's outcome alone. `info["result"]` is the verdict
    as a dict without the fields that are None (`EvalResult.from_dict` reads it), `info["best"]`
    the best correct attempt so far; both are empty where there is none. `terminated` after
    `max_attempts`. Wall-clock durations are only in `last_result`, so that a step is a function of
    seed and text.
    """

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 1}

    def __init__(
        self,
        workload: str | workloads.Workload = "mamba2_scan",
        *,
        max_attempts: int = 8,
        reward: str | rewards.RewardFunction = "speedup",
        target: str = "v6e",
        allow_library_kernels: bool = False,
        verify: str = "presets",
        cache: bool = True,
        evaluator: Evaluator | RecordedEvaluator | None = None,
        examples: Sequence[str] = (),
        render_mode: str | None = None,
    ):
        """Makes the environment; nothing is compiled before the first `reset`.

        Args:
            workload: Id of a workload, or a workload.
            max_attempts: Attempts in an episode; 1 is the single-turn case.
            reward: Name of a reward function (see `reward.names`) or a function of one's own.
            target: The chip.
            allow_library_kernels: Whether a text may import finished kernels.
            verify: ``"full"`` compares the numbers of correct attempts at the published size, too
                (see `Evaluator`).
            cache: Whether a verdict on the same text that is on disk already is given again.
            evaluator: What evaluates the texts, instead of an evaluator of the last four arguments;
                a `RecordedEvaluator` has verdicts from tables.
            examples: Texts that `action_space.sample()` draws from instead of random text.
            render_mode: ``"ansi"`` (`render` returns text), ``"human"`` (printed at every step).

        Raises:
            UnknownWorkload: For an unknown id.
            ValueError: For an unknown reward, target, `verify` or render mode, `max_attempts` below
                1, or an `evaluator` beside what it was to be made of.
        """
        if max_attempts < 1:
            raise ValueError(f"max_attempts is {max_attempts}; an episode has at least one attempt")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            modes = ", ".join(self.metadata["render_modes"])
            raise ValueError(f"unknown render_mode {render_mode!r}; it is one of {modes}")
        workloads.chip(target)
        made_of = (target, allow_library_kernels, verify, cache)
        if evaluator is None:
            evaluator = SharedEvaluator(
                target=target,
                allow_library_kernels=allow_library_kernels,
                verify=verify,
                cache=cache,
            )
        elif made_of != ("v6e", False, "presets", True):
            raise ValueError(
                "an evaluator is given, so target, allow_library_kernels, verify and cache are its "
                "own; leave them out"
            )
        self.evaluator = evaluator
        self.max_attempts, self.render_mode = max_attempts, render_mode
        self.target = evaluator.target
        self._reward = rewards.get(reward)
        self._choose(workloads.get(workload) if isinstance(workload, str) else workload)
        self.last_result: EvalResult | None = None
        self._feedback, self._attempt, self._best = "", 0, {}
        self._over, self._seeded = True, False
        self.action_space = SourceText(MAX_LENGTH, examples=examples or None)
        self.observation_space = spaces.Dict(
            {
                "task": SourceText(MAX_TASK),
                "feedback": SourceText(MAX_FEEDBACK),
                "status": spaces.Discrete(len(Status) + 1),
                "compiled": spaces.Discrete(2),
                "correct": spaces.Discrete(2),
                "errors": _positive(2),
                "times": _positive(3),
                "speedup": _positive(1),
                "counters": _positive(len(COUNTERS)),
                "attempt": spaces.Discrete(max_attempts + 1),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode. The first use of a workload compiles its baseline (kept on disk).

        Args:
            seed: Makes the secret inputs of all following attempts reproducible. Without one
                they come from the system, and a text that was evaluated so before gets the
                verdict that is on disk.
            options: None are known here; see `SuiteEnv`.

        Raises:
            ValueError: For unknown options.
            BuildError: If the baseline cannot be compiled.
        """
        super().reset(seed=seed)
        self._seeded |= seed is not None
        self._apply(options or {})
        self._baseline = self.evaluator.baseline(self.workload)
        self.last_result, self._feedback = None, ""
        self._attempt, self._best, self._over = 0, {}, False
        if self.render_mode == "human":
            self._print()
        return self._observation(), self._info()

    def _apply(self, options: dict[str, Any]) -> None:
        """Acts on the options of `reset`."""
        if options:
            raise ValueError(f"unknown options: {', '.join(map(str, options))}; none are known")

    def _choose(self, workload: workloads.Workload) -> None:
        """Makes a workload that of the coming episode."""
        self.workload = workload
        self._task = workload.task_text(self.target)

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Evaluates one kernel text. Never raises for anything that the text does.

        Raises:
            ResetNeeded: Before the first `reset`, or after the last attempt.
            TypeError: If the action is not text.
        """
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"an action is kernel source text (str), not {type(action).__name__}")
        action = str(action)  # numpy's own string type compares and pickles unlike str
        seed = int(self.np_random.integers(1 << 62)) if self._seeded else None
        result = self.evaluator.evaluate(self.workload, action, seed=seed)
        self._attempt += 1
        self._over = self._attempt >= self.max_attempts
        self.last_result, self._feedback = result, feedback(result, action)
        if result.correct and result.speedup > self._best.get("speedup", 0.0):
            self._best = {
                "attempt": self._attempt,
                "speedup": result.speedup,
                "candidate_ms": result.times.candidate_ms,
                "source": action,
            }
        if self.render_mode == "human":
            self._print()
        value = float(self._reward(outcome(result)))
        return self._observation(), value, self._over, False, self._info()

    def render(self) -> str | None:
        """The state as text in mode ``"ansi"``; mode ``"human"`` prints at every step."""
        return self._text() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Ends the episode. The evaluator's processes end when nobody has needed them for long."""
        self._over = True

    def _observation(self) -> dict[str, Any]:
        result = self.last_result
        times = result.times if result else None
        checks = result.numerics if result else ()
        baseline_ms = times.baseline_ms if times and times.baseline_ms else self._baseline.paid_ms
        roofline_ms = self.workload.roofline_ms(self.target)
        counters = result.counters if result else {}
        return {
            "task": self._task,
            "feedback": self._feedback,
            "status": np.int64(0 if result is None else 1 + result.status.rank),
            "compiled": np.int64(bool(result and result.compiled)),
            "correct": np.int64(bool(result and result.correct)),
            "errors": _array(
                max((c.max_ratio for c in checks), default=0.0),
                max((c.rms_error for c in checks), default=0.0),
            ),
            "times": _array((times and times.candidate_ms) or 0.0, baseline_ms, roofline_ms),
            "speedup": _array((result and result.speedup) or 0.0),
            "counters": _array(*(counters.get(name, 0.0) for name in COUNTERS)),
            "attempt": np.int64(self._attempt),
        }

    def _info(self) -> dict[str, Any]:
        # Gymnasium's vector environments merge the dicts of their environments key by key. They
        # fail where one has a number and another None, and are made for keys that are missing.
        result = self.last_result
        return {
            "workload": self.workload.id,
            "result": _known(result.to_dict(durations=False)) if result else {},
            "best": dict(self._best),
        }

    def _text(self) -> str:
        head = f"{self.workload.id}: attempt {self._attempt} of {self.max_attempts}"
        best = f", best {self._best['speedup']:.2f}x" if self._best else ""
        return f"{head}{best}\n{self._feedback or 'No attempt yet.'}\n"

    def _print(self) -> None:
        print(self._text(), flush=True)


class SuiteEnv(KernelEnv):
    """All workloads in one environment: every `reset` draws one of them.

    Spaces, rewards and episodes are those of `KernelEnv`; the task text says which workload it is,
    and so does ``info["workload"]``.
    """

    def __init__(
        self,
        subset: Sequence[str] | None = None,
        *,
        weights: Mapping[str, float] | None = None,
        **kwargs: Any,
    ):
        """Makes the environment.

        Args:
            subset: Ids to draw from; the whole suite by default. `workloads.data.split` has splits.
            weights: Relative weight of an id; 1 for those that are not named.
            **kwargs: As for `KernelEnv`.

        Raises:
            UnknownWorkload: For an unknown id.
            ValueError: For an empty subset, for weights of other ids, or weights that are negative
                or all zero.
        """
        # What is registered besides does not change what a seed draws from the suite.
        suite = [workload.id for workload in workloads.every() if workload.file is None]
        self.subset = tuple(workloads.get(name).id for name in subset or suite)
        if subset is not None and not subset:
            raise ValueError("subset is empty; leave it out to draw from all workloads")
        foreign = set(weights or {}) - set(self.subset)
        if foreign:
            raise ValueError(f"weights for workloads outside the subset: {', '.join(foreign)}")
        values = np.array([(weights or {}).get(name, 1.0) for name in self.subset], np.float64)
        if (values < 0).any() or not np.isfinite(values).all() or not values.any():
            raise ValueError("weights are finite numbers of at least 0, and not all 0")
        self._probabilities = values / values.sum()
        super().__init__(self.subset[0], **kwargs)

    def _apply(self, options: dict[str, Any]) -> None:
        """``options={"workload": id}`` pins the workload; otherwise one is drawn."""
        pinned = options.get("workload")
        unknown = set(options) - {"workload"}
        if unknown:
            raise ValueError(f"unknown options: {', '.join(unknown)}; 'workload' is known")
        if pinned is None:
            pinned = self.subset[
                int(self.np_random.choice(len(self.subset), p=self._probabilities))
            ]
        self._choose(workloads.get(pinned))


def _known(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the fields whose value is None, also in the records inside it."""
    return {
        name: _known(value) if isinstance(value, dict) else value
        for name, value in record.items()
        if value is not None
    }


def _positive(size: int) -> spaces.Box:
    return spaces.Box(0.0, np.inf, (size,), np.float32)


def _array(*values: float) -> np.ndarray:
    """Float32 values; what does not fit becomes the largest float32."""
    largest = np.finfo(np.float32).max
    return np.minimum(np.array(values, np.float64), largest).astype(np.float32)
