"""Runs a policy on workloads: asks, evaluates in parallel, tells, and keeps records of it all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from baselines.policy import Candidate, Episode, Evaluated, Policy
from baselines.proposers.proposer import (
    Answer,
    NotApplicable,
    Proposer,
    ProposerError,
    Request,
    Stopped,
)
from baselines.rollout.progress import Progress
from baselines.rollout.records import Records
from jaxbench_env import EvalResult, Evaluator, Status
from jaxbench_env.evaluator.judge.pool import pool
from jaxbench_env.evaluator.sandbox import sandbox
from jaxbench_env.evaluator.service.client import enabled
from jaxbench_env.evaluator.stop import Stop
from workloads import Workload

#: Correct candidates of a workload, best first, that are checked at the published size until one
#: passes.
FINALISTS = 3
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Limits:
    """When a rollout ends before its policies do. None is no limit.

    Attributes:
        seconds: Wall time of this session.
        evaluations: Verdicts of all sessions of the run.
        cost: What the proposer's answers of all sessions cost, in the currency of its prices.
            Those being asked when it is reached are still paid.
    """

    seconds: float | None = None
    evaluations: int | None = None
    cost: float | None = None


@dataclass
class Outcome:
    """What became of one workload.

    Attributes:
        workload: Its id.
        evaluations: Verdicts.
        correct: How many of them were right.
        best: The fastest right candidate, if there is one.
        done: Whether its policy ended by itself.
        verified: The verdict on the best at the published size, if that was asked for. Where the
            best failed there, `best` is the next that passed.
        note: Why nothing was proposed.
    """

    workload: str
    evaluations: int = 0
    correct: int = 0
    best: Evaluated | None = None
    done: bool = False
    verified: EvalResult | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        best = self.best
        return {
            "workload": self.workload,
            "evaluations": self.evaluations,
            "correct": self.correct,
            "best_speedup": best.result.speedup if best else None,
            "best_ms": best.result.times.candidate_ms if best else None,
            "best_sample": best.candidate.sample if best else None,
            "best_sha256": best.candidate.hash if best else None,
            "done": self.done,
            "verified": self.verified.status.value if self.verified else None,
            "note": self.note,
        }


@dataclass
class Rollout:
    """One run of a policy on workloads, resumed if its records hold a part of it.

    Attributes:
        records: Where everything is kept.
        policy: Makes the policy of an episode.
        workloads: What to run it on.
        evaluator: Gives the verdicts.
        proposer: Writes the texts, None for policies that need none.
        budget: As in `Episode`.
        seed: As in `Episode`.
        workers: Evaluations at once. The service behind the evaluator runs as many as it has
            workers.
        limits: When to end early.
        verify_best: Whether each workload's best is checked at the published size.
        progress: Shows how far it is.
        ended: Why it ended: ``"done"``, ``"interrupted"``, ``"max-seconds"``,
            ``"max-evaluations"``, ``"max-cost"``, or what failed. Empty while it runs.
        error: What was raised, if something failed.
    """

    records: Records
    policy: Callable[[Episode], Policy]
    workloads: Sequence[Workload]
    evaluator: Evaluator
    proposer: Proposer | None = None
    budget: int = 144
    seed: int = 0
    workers: int = 1
    limits: Limits = Limits()
    verify_best: bool = True
    progress: Progress = field(default_factory=Progress)
    ended: str = field(default="", init=False)
    error: BaseException | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._stop = Stop()
        self._lock = threading.Lock()
        self._begun = self.records.evaluations
        self._started = time.monotonic()
        self._recorder = None if self.proposer is None else _Recorder(self, self.proposer)

    def run(self) -> list[Outcome]:
        """Runs all policies to their end, or up to a limit, an error or an interrupt (Ctrl-C).

        Whatever ends it, all verdicts and answers that were had are recorded. `ended` says why it
        ended, and `error` holds what a proposer, a policy or the evaluator raised.

        Returns:
            What became of each workload, in their order.
        """
        outcomes = [Outcome(workload.id) for workload in self.workloads]
        self._started = time.monotonic()
        with (
            ThreadPoolExecutor(self.workers, "evaluate") as self._evaluations,
            # Twice as many policies as evaluations: some of them wait for their proposer.
            ThreadPoolExecutor(2 * self.workers, "policy") as policies,
            self.progress,
        ):
            jobs = [
                policies.submit(self._drive, workload, outcome)
                for workload, outcome in zip(self.workloads, outcomes, strict=True)
            ]
            try:
                # An interrupt reaches a wait that has an end.
                while wait(jobs, _POLL_SECONDS).not_done:
                    pass
            except KeyboardInterrupt:
                self._end("interrupted")
                self._stop.cancel()
                if self.proposer is not None:
                    self.proposer.stop()
                if not enabled():
                    sandbox().close()
                    pool().close()
                wait(jobs)
        self.ended = self.ended or "done"
        return outcomes

    def _end(self, why: str, error: BaseException | None = None) -> None:
        with self._lock:
            if not self.ended:
                self.ended, self.error = why, error

    def _over(self) -> bool:
        """Whether nothing new may begin."""
        limit = self.limits.seconds
        if limit is not None and time.monotonic() - self._started >= limit:
            self._end("max-seconds")
        return bool(self.ended)

    def _drive(self, workload: Workload, outcome: Outcome) -> None:
        try:
            if not self._over():
                self._episode(workload, outcome)
        except (_Ended, Stopped):
            pass
        except NotApplicable as nothing:
            outcome.done, outcome.note = True, str(nothing)
        except ProposerError as error:
            self._end("the proposer failed", error)
        except BaseException as error:  # of a policy, the records or the evaluator: ours
            self._end(f"{type(error).__name__} on {workload.id}", error)
        finally:
            self.progress.finish(workload.id)

    def _episode(self, workload: Workload, outcome: Outcome) -> None:
        policy = self.policy(
            Episode(workload, self._recorder, self.budget, self.seed, self.evaluator.target)
        )
        evaluator = self.evaluator
        if policy.allow_library_kernels:
            evaluator = replace(evaluator, allow_library_kernels=True)
        self.progress.start(workload.id, self.budget)
        flying: dict[Future[EvalResult], Candidate] = {}
        found: list[Evaluated] = []
        try:
            while not policy.done and not self._over():
                for candidate in policy.ask(self.workers - len(flying)):
                    job = self._evaluations.submit(self._verdict, evaluator, workload, candidate)
                    flying[job] = candidate
                if not flying and not policy.done:
                    raise RuntimeError(f"{policy.name} is not done and asks for nothing")
                if flying:
                    self._land(policy, outcome, flying, found)
        finally:
            # What runs is worth its record, except after an interrupt, which ends it.
            while flying:
                self._land(policy, outcome, flying, found)
        outcome.done = policy.done
        if self.verify_best and (policy.done or self.ended in ("max-evaluations", "max-cost")):
            self._verify(replace(evaluator, verify="full"), workload, outcome, found)

    def _land(
        self,
        policy: Policy,
        outcome: Outcome,
        flying: dict[Future[EvalResult], Candidate],
        found: list[Evaluated],
    ) -> None:
        """Waits for verdicts and tells them; those that the end of the run prevents are left."""
        for job in wait(flying, return_when=FIRST_COMPLETED).done:
            candidate = flying.pop(job)
            try:
                evaluated = Evaluated(candidate, job.result())
            except _Ended:
                continue
            found.append(evaluated)
            outcome.evaluations += 1
            outcome.correct += evaluated.result.correct
            if evaluated.result.correct and (
                outcome.best is None or evaluated.result.speedup > outcome.best.result.speedup
            ):
                outcome.best = evaluated
            self.progress.step(outcome.workload, outcome.best)
            policy.tell([evaluated])

    def _verdict(
        self, evaluator: Evaluator, workload: Workload, candidate: Candidate
    ) -> EvalResult:
        known = self.records.verdict(workload.id, candidate)
        if known is not None:
            return known
        if self._over():
            raise _Ended
        with self._lock:
            limit = self.limits.evaluations
            full = limit is not None and self._begun >= limit
            self._begun += not full
        if full:
            self._end("max-evaluations")
            raise _Ended
        started = time.monotonic()
        result = evaluator.evaluate(workload, candidate.source, stop=self._stop)
        if result.status is Status.EVALUATOR_ERROR and not self._stop.over:  # once is chance
            result = evaluator.evaluate(workload, candidate.source, stop=self._stop)
        if self._stop.over:  # it means nothing
            raise _Ended
        seconds = time.monotonic() - started
        self.records.save_verdict(workload.id, Evaluated(candidate, result), seconds)
        return result

    def _verify(
        self, evaluator: Evaluator, workload: Workload, outcome: Outcome, found: list[Evaluated]
    ) -> None:
        """Checks the best at the published size, and if it is wrong there the next."""
        right = sorted(
            (one for one in found if one.result.correct),
            key=lambda one: (-one.result.speedup, one.candidate.sample),
        )
        distinct = list({one.candidate.hash: one for one in reversed(right)}.values())[::-1]
        for one in distinct[:FINALISTS]:
            result = self.records.final(workload.id, one.candidate)
            if result is None:
                self.progress.note(workload.id, "checking the best at the published size")
                result = evaluator.evaluate(workload, one.candidate.source, stop=self._stop)
                if self._stop.over:
                    raise _Ended
                self.records.save_final(workload.id, Evaluated(one.candidate, result))
            outcome.best, outcome.verified = one, result
            if result.correct:
                return


class _Ended(Exception):
    """The run ends, so this was not done."""


@dataclass
class _Recorder:
    """A proposer whose answers are recorded, and not asked for twice."""

    rollout: Rollout
    inner: Proposer

    @property
    def concurrency(self) -> int:
        return self.inner.concurrency

    def answer(self, request: Request) -> Answer:
        run = self.rollout
        known = run.records.answer(request)
        if known is not None:
            return known
        limit = run.limits.cost
        if limit is not None and run.records.cost >= limit:
            run._end("max-cost")
        if run._over():
            raise Stopped("the run ends")
        answer = self.inner.answer(request)
        run.records.save_answer(request, answer)
        return answer

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()

    def stop(self) -> None:
        self.inner.stop()
