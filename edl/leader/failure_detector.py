"""Find out which workers are dead and which hold up the job, by asking the workers over HTTP.

This module asks; :mod:`edl.core.job.liveness` and :mod:`edl.core.job.stall` decide what the answers
mean. The main entry is :class:`FailureDetector`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from edl.config import Config
from edl.core.job import liveness, stall
from edl.core.job.liveness import USUAL, Liveness, LivenessLimits, RingIdle
from edl.core.job.stall import Activity, Report, Stall, StallLimits
from edl.core.progress import WorkerProgress
from edl.core.records import RingMember
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError
from edl.http.client import Health, ask_all


@dataclass(frozen=True)
class ProgressReport:
    """The progress of the job, as one worker reports it."""

    worker: int
    progress: WorkerProgress  # `updated_at` by the leader's clock; generation 0: in no ring yet


class FailureDetector:
    """The checks that a leader makes on the workers of its job; only its daemon thread uses it."""

    def __init__(
        self,
        config: Config,
        worker: int,
        run: str,
        progress: Callable[[], WorkerProgress],
        activity: Callable[[], Activity],
        limits: LivenessLimits = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._own_progress = progress
        self._worker = worker
        self._run = run  # the start of the job that all belong to
        self._limits = limits
        settings = config.job_settings
        self._stall_limits = StallLimits(settings.stall_s, config.frozen_s, settings.stall_limit_s)
        self._clock = clock
        self._since = clock()
        self._own_activity = activity
        self._newest_report = ProgressReport(worker, WorkerProgress(updated_at=self._since))
        self._outside = False  # whether this worker is not in the ring and never was in one
        self._silent_since: dict[int, float] = {}  # when a worker was last asked in vain
        self._unresponsive_since: dict[int, float] = {}  # since when a worker was, in this stall
        self._answered: dict[int, float] = {}  # when a worker was last asked with success

    @property
    def newest_report(self) -> ProgressReport:
        """The newest progress that this leader knows: its own, once it has been in a ring."""
        own = self._own_progress()
        return ProgressReport(self._worker, own) if own.generation else self._newest_report

    def look(self, snapshot: Snapshot) -> None:
        """Ask the members of the ring for the job's progress, if this leader is a newcomer."""
        generation = snapshot.generation
        ring = (generation.previous or generation.members) if generation is not None else ()
        never_in = not self._own_progress().generation
        self._outside = never_in and all(member.id != self._worker for member in ring)
        if self._outside:
            self._listen(ring)

    def dead(
        self, snapshot: Snapshot, generation_s: float
    ) -> tuple[dict[int, str], frozenset[int]]:
        """Ask the suspected workers; return the proofs of death by id, and who gave no answer."""
        idle = self._idle()
        now = self._clock()
        heard_s = {worker: now - at for worker, at in self._answered.items()}
        asked = liveness.workers_to_probe(snapshot, self._worker, generation_s, idle, heard_s)
        dead: dict[int, str] = {}
        silent = set()
        for worker, health in sorted(self._ask(asked, snapshot).items()):
            answer = health.answer(self._run)
            place = "{}:{}".format(*asked[worker])
            if answer.liveness is Liveness.SILENT:
                silent.add(worker)
            if (proof := liveness.proof(worker, place, answer, snapshot, idle)) is not None:
                dead[worker] = proof
            elif answer.liveness is Liveness.ALIVE:
                self._answered[worker] = self._clock()
        return dead, frozenset(silent)

    def stall(self, snapshot: Snapshot) -> Stall | None:
        """Return which workers hold up a ring that should train, or None if there is no stall."""
        generation, progress = snapshot.generation, self.newest_report.progress
        quiet_s = min(self._quiet_s, self._clock() - self._since)
        if (
            snapshot.job.state.over
            or generation is None
            or not snapshot.job.sizes.enough(len(generation.members))  # it pauses for replacements
            or not stall.stands_still(quiet_s, progress.median_step_s, self._stall_limits)
        ):
            self._unresponsive_since.clear()
            return None
        members = [member for member in generation.members if member.id not in snapshot.evicted]
        if not members:  # all are dead: that is no stall
            return None
        ports = {s.id: (s.address, s.port) for s in members if s.id != self._worker}
        answers, now = ask_all(ports, self._limits.answer_s), self._clock()
        gone = {w for w, health in answers.items() if health.liveness is Liveness.REFUSED}
        members = [
            member for member in members if member.id not in gone
        ]  # dead, or through: that is no stall
        if not members:
            return None
        silent = {w for w, health in answers.items() if health.liveness is Liveness.SILENT}
        self._unresponsive_since = {
            worker: self._unresponsive_since.get(worker, now) for worker in silent
        }
        reports = [
            Report(
                member.id,
                generation.worker_ids.index(member.id),
                member.host,
                self._own_activity()
                if member.id == self._worker
                else _activity(answers[member.id]),
                self._step_of(member.id, answers),
                now - self._unresponsive_since.get(member.id, now),
            )
            for member in members
        ]
        if stall.are_after_fit(reports, quiet_s, self._stall_limits):
            return None
        return stall.judge_stall(reports, quiet_s, progress.step, self._stall_limits)

    def _step_of(self, worker: int, answers: Mapping[int, Health]) -> int:
        own = self._own_progress()
        progress = own if worker == self._worker else _progress(answers[worker], self._clock())
        return progress.step if progress is not None else 0

    def _ask(self, ports: Mapping[int, tuple[str, int]], snapshot: Snapshot) -> dict[int, Health]:
        # A worker without a session that was asked in vain lately counts as silent, unasked.
        since = self._clock() - self._limits.silence_s
        members = {member.id for member in snapshot.members}
        silent = {w for w, at in self._silent_since.items() if at > since and w not in members}
        asked = {worker: at for worker, at in ports.items() if worker not in silent}
        answers, now = ask_all(asked, self._limits.answer_s), self._clock()
        mute = (w for w, health in answers.items() if health.liveness is Liveness.SILENT)
        self._silent_since |= dict.fromkeys(mute, now)
        return answers | {w: Health(Liveness.SILENT) for w in ports if w in silent}

    def _listen(self, ring: Sequence[RingMember]) -> None:
        ports = {member.id: (member.address, member.port) for member in ring}
        answers, now = ask_all(ports, self._limits.answer_s), self._clock()
        reports = {w: _progress(health, now) for w, health in answers.items()}
        for worker, progress in reports.items():
            if progress is not None and progress.generation:
                self._newest_report = ProgressReport(worker, progress)
                return

    @property
    def _quiet_s(self) -> float:
        return self._clock() - self.newest_report.progress.updated_at

    def _idle(self) -> RingIdle:
        progress, doing = self.newest_report.progress, self._own_activity().doing
        observed = f"; in step {progress.step + 1} w{self._worker} is {doing}"
        # A newcomer that has heard of no step may be the one that is cut off.
        deaf = self._outside and not progress.generation
        least_s = self._config.job_settings.start_timeout_s if deaf else None
        return RingIdle(self._quiet_s, progress.median_step_s, observed, least_s, self._limits)


def _activity(health: Health) -> Activity | None:
    if health.liveness is not Liveness.ALIVE:
        return None
    try:
        return Activity.from_json(health.report.get("activity", {}))
    except CoordinationError:
        return None


def _progress(health: Health, now_s: float) -> WorkerProgress | None:
    """Return a worker's progress from its answer, with the time of its last step by our clock."""
    report: Mapping[str, object] = health.report
    quiet_s = report.get("quiet_s")
    if not isinstance(quiet_s, int | float):
        return None
    try:
        return replace(WorkerProgress.from_json(report), updated_at=now_s - quiet_s)
    except CoordinationError:
        return None
