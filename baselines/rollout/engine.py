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
from baselines.rollout.outcome import Limits, Outcome, order
from baselines.rollout.progress import Progress
from baselines.rollout.records import Records
from jaxbench_env import EvalResult, Evaluator, Status
from jaxbench_env.evaluator.cache import UNSETTLED
from jaxbench_env.evaluator.judge.pool import pool
from jaxbench_env.evaluator.sandbox import sandbox
from jaxbench_env.evaluator.service.client import enabled
from jaxbench_env.evaluator.stop import Stop
from workloads import Workload

#: Correct candidates of a workload, best first, that are checked at the published size until one
#: passes.
FINALISTS = 3
LIMITS = ("max-seconds", "max-evaluations", "max-cost")
_POLL_SECONDS = 0.5


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

    def _take(self) -> bool:
        """Takes one evaluation out of the limit; False if it is used up."""
        with self._lock:
            limit = self.limits.evaluations
            left = limit is None or self._begun < limit
            self._begun += left
        if not left:
            self._end("max-evaluations")
        return left

    def _over(self) -> bool:
        """Whether nothing new may begin."""
        return self._late() or bool(self.ended)

    def _late(self) -> bool:
        """Whether the time is up."""
        limit = self.limits.seconds
        late = limit is not None and time.monotonic() - self._started >= limit
        if late:
            self._end("max-seconds")
        return late

    def _broken(self) -> bool:
        """Whether it ends for another reason than a limit, which would let recorded work pass."""
        return bool(self.ended) and self.ended not in LIMITS

    def _drive(self, workload: Workload, outcome: Outcome) -> None:
        try:
            if not self._broken():
                _Episode(self, workload, outcome).run()
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


class _Episode:
    """One workload's part of a rollout."""

    def __init__(self, rollout: Rollout, workload: Workload, outcome: Outcome):
        self.rollout, self.workload, self.outcome = rollout, workload, outcome
        target = rollout.evaluator.target
        self.policy = rollout.policy(
            Episode(workload, rollout._recorder, rollout.budget, rollout.seed, target)
        )
        self.evaluator = rollout.evaluator
        if self.policy.allow_library_kernels:
            self.evaluator = replace(self.evaluator, allow_library_kernels=True)
        self.flying: dict[Future[EvalResult], Candidate] = {}
        self.found: list[Evaluated] = []

    def run(self) -> None:
        """Asks, evaluates and tells until the policy is done or the rollout ends."""
        rollout, policy = self.rollout, self.policy
        rollout.progress.start(self.workload.id, rollout.budget)
        try:
            refused = False  # something new, because the rollout ends
            while not (policy.done or refused or rollout._broken()):
                for candidate in policy.ask(rollout.workers - len(self.flying)):
                    self.flying[rollout._evaluations.submit(self._verdict, candidate)] = candidate
                if self.flying:
                    refused = not self._land()
                elif not policy.done:
                    raise RuntimeError(f"{policy.name} is not done and asks for nothing")
        except Stopped:  # the proposer may not be asked any more
            pass
        finally:
            # What runs is worth its record, except after an interrupt, which ends it.
            while self.flying:
                self._land()
        self.outcome.done = policy.done
        final = policy.done or rollout.ended in ("max-evaluations", "max-cost")
        if rollout.verify_best and final and not rollout._broken():
            self._verify()

    def _land(self) -> bool:
        """Waits for verdicts and tells them. False if one was refused."""
        had = True
        for job in wait(self.flying, return_when=FIRST_COMPLETED).done:
            candidate = self.flying.pop(job)
            try:
                evaluated = Evaluated(candidate, job.result())
            except _Ended:
                had = False
                continue
            self.found.append(evaluated)
            self.outcome.add(evaluated)
            self.rollout.progress.step(self.workload.id, self.outcome.best)
            self.policy.tell([evaluated])
        return had

    def _verdict(self, candidate: Candidate) -> EvalResult:
        """The recorded verdict, or a new one."""
        rollout, workload = self.rollout, self.workload
        known = rollout.records.verdict(workload.id, candidate)
        if known is not None:
            return known
        if rollout._over() or not rollout._take():
            raise _Ended
        started = time.monotonic()
        result = self._evaluate(self.evaluator, candidate)
        if result.status is Status.EVALUATOR_ERROR:  # once is chance
            result = self._evaluate(self.evaluator, candidate)
        seconds = time.monotonic() - started
        rollout.records.save_verdict(workload.id, Evaluated(candidate, result), seconds)
        return result

    def _evaluate(self, evaluator: Evaluator, candidate: Candidate) -> EvalResult:
        stop = self.rollout._stop
        result = evaluator.evaluate(self.workload, candidate.source, stop=stop)
        if stop.over:  # it means nothing
            raise _Ended
        return result

    def _verify(self) -> None:
        """Checks the best at the published size, and where it is wrong there the next."""
        rollout, outcome = self.rollout, self.outcome
        distinct: dict[str, Evaluated] = {}
        for one in sorted((one for one in self.found if one.result.correct), key=order):
            distinct.setdefault(one.candidate.hash, one)
        evaluator = replace(self.evaluator, verify="full")
        for one in list(distinct.values())[:FINALISTS]:
            result = rollout.records.final(self.workload.id, one.candidate)
            if result is None:
                if rollout._late():  # such a check may take many minutes
                    return
                rollout.progress.note(self.workload.id, "checking the best at the published size")
                result = self._evaluate(evaluator, one.candidate)
                if result.status not in UNSETTLED:
                    rollout.records.save_final(self.workload.id, Evaluated(one.candidate, result))
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
