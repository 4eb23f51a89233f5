"""A worker without a ring: it registers, leads, joins and leaves, but its training only sleeps.

It uses the real coordination and the real decisions, no Horovod and no framework, so what the
agent and the command line do can be tested in seconds. A switch happens without any agreement; a
member that ends before it enters its first ring breaks that ring, as that of real workers.
As a real worker does, it looks at ZooKeeper when something has changed there, not at each step.

    --steps N          finish after N steps (0: never)
    --until FILE       finish when it exists
    --step-s S         length of a step
    --fail-at N        exit with --code when step N is reached
    --code C
    --deaf             ignore SIGTERM and the end of the job
    --rest-alone       train no step while the ring has one worker
    --imports          say what was imported, as real workers do, so that there is a template
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Set
from dataclasses import replace
from types import FrameType

from edl import config
from edl.binding.process import tell
from edl.errors import CoordinationError, LeadershipLost
from edl.events import Details, Event, GenerationDetails, SwitchDetails
from edl.job.decision import Limits
from edl.job.liveness import Ages
from edl.job.membership import decide
from edl.job.snapshot import Snapshot
from edl.records import (
    Generation,
    JobState,
    Member,
    ProgressSample,
    RingFailure,
    Stage,
    SwitchParts,
    TrainingStatus,
)
from edl.zookeeper.access import Access
from edl.zookeeper.session import Session
from edl.zookeeper.store import DecisionWriter, JobStore, job_election

PERIOD_S = 0.2  # how often it looks although no watch has fired, and tells of its steps
ABSENT_S = 2.0  # for a member to enter its first ring, without a record

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--until", default="")
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--code", type=int, default=3)
parser.add_argument("--deaf", action="store_true")
parser.add_argument("--rest-alone", action="store_true")
parser.add_argument("--imports", action="store_true")
args = parser.parse_args()
if config.horovod_slot() is not None:  # edl-worker was left out
    from edl.binding import process

    process.start(sys.exit, {})  # it becomes edl-worker, which starts this again
settings = config.load()


class Worker:
    def __init__(self, store: JobStore) -> None:
        self.store = store
        self.member = Member(
            store.members.new_id(),
            settings.host,
            settings.slot,
            settings.own_address,
            1,  # nobody listens there
            os.getpid(),
            settings.attempt_id,
            Stage.READY,
            device=settings.device,
        )
        self.election = job_election(store.nodes, self.member.id)
        self.epoch = 0
        self.step = 0
        self.samples = 0  # 4 a step from each worker
        self.size = 0
        self.counted: ProgressSample | None = None
        self.entered: set[int] = set()  # members that the leader has seen in a ring
        self.absent: dict[int, float] = {}  # the others without a record, since when
        self.asked_to_leave = False
        self.trained = False
        self.told_at = self.looked_at = 0.0
        self.news = threading.Event()

    def say_trained(self) -> None:
        if not self.trained:
            self.trained = True
            tell(settings.trained_file, settings.imports_file if args.imports else "")

    def sigterm(self, number: int, frame: FrameType | None) -> None:
        if self.member.generation == 0:
            raise SystemExit(0)
        self.asked_to_leave = True

    def say(self, **changes: object) -> None:
        """Write the member node when it differs, or when the session is a new one."""
        member = replace(self.member, **changes)  # type: ignore[arg-type]
        if member != self.member or self.epoch != self.store.session.epoch:
            self.epoch = self.store.session.epoch
            self.store.members.put(member)
            self.member = member

    def turn(self) -> bool:
        """Hear and speak once; False when there is nothing more to do here."""
        if not self.store.session.connected:
            return True
        if self.asked_to_leave and self.member.stage is Stage.ACTIVE:
            self.say(stage=Stage.LEAVING)
        self.say()
        job, generation, evicted, *_ = self.store.watch_generation(self.news.set)
        if self.member.id in evicted:
            sys.exit(evicted[self.member.id])
        wanted = self.adopt(generation, evicted.keys()) and not job.state.over
        if not wanted and not args.deaf:
            return False
        self.lead()
        return True

    def adopt(self, generation: Generation | None, evicted: Set[int]) -> bool:
        if generation is None:
            return True
        if generation.rank_of(self.member.id) is None:
            self.say(newest_generation=generation.number)
            return self.member.generation == 0 and bool(generation.members)
        self.size = len(generation.members)
        if self.member.generation < generation.number:
            leaving = self.member.stage is Stage.LEAVING
            stage = Stage.LEAVING if leaving else Stage.ACTIVE
            self.say(stage=stage, generation=generation.number, broken=None)
        if evicted & {*generation.worker_ids}:
            self.say(broken=RingFailure(generation.number, self.step))
        return True

    def lead(self) -> None:
        self.election.enter()
        leadership = self.election.leads(self.news.set)
        if leadership is None:
            return
        decisions = DecisionWriter(self.store.nodes, leadership)
        snapshot = self.store.snapshot(self.news.set)
        limits = Limits(
            start_s=60,
            prepare_s=60,
            gather_s=1,
            leave_grace_s=5,
            notice_s=60,
            report_s=600,
            leave_gather_s=0,
        )
        decision = decide(snapshot, leadership.term, Ages(), limits, self.gone(snapshot))
        if decision.acts:
            decisions.carry_out(decision)
        if decision.generation is not None:
            new = decision.generation
            members, joined, left = (
                tuple(f"w{worker}" for worker in ids)
                for ids in (new.worker_ids, new.joined, new.left)
            )
            self.log(new, GenerationDetails(new.term, members, joined, left, new.repairs))
            parts = {name: SwitchParts("old", stall_s=0.05) for name in members}
            self.log(new, SwitchDetails(len(parts), parts))
        if time.monotonic() - self.told_at > PERIOD_S / 2:  # else it has changed much just now
            self.told_at = time.monotonic()
            status = TrainingStatus(
                step=self.step, progress_sample=self.counted, reason=decision.reason
            )
            decisions.put_status(status)

    def gone(self, snapshot: Snapshot) -> dict[int, str]:
        """Return who is in no ring for longer than a lost session is opened again."""
        here = {member.id for member in snapshot.members}
        self.entered |= {member.id for member in snapshot.members if member.generation}
        members = snapshot.generation.worker_ids if snapshot.generation is not None else ()
        now, absent = time.monotonic(), {*members} - here - self.entered
        self.absent = {worker: self.absent.get(worker, now) for worker in absent}
        late = [worker for worker, since in self.absent.items() if now - since >= ABSENT_S]
        return dict.fromkeys(late, "it has not entered its ring")

    def log(self, new: Generation, details: Details) -> None:
        self.store.events.add(Event(time.time(), new.number, self.step, new.reason, details))

    def is_time_to_look(self) -> bool:
        now = time.monotonic()
        if now - self.looked_at < PERIOD_S:
            return False
        self.looked_at = now
        return True

    def train(self) -> None:
        while True:
            if self.asked_to_leave or self.news.is_set() or self.is_time_to_look():
                self.news.clear()
                try:
                    if not self.turn():
                        return
                except (CoordinationError, LeadershipLost):
                    self.news.set()
            time.sleep(args.step_s)
            if self.member.generation == 0 or (args.rest_alone and self.size == 1):
                continue
            self.step += 1
            self.say_trained()
            self.samples += 4 * self.size
            self.counted = ProgressSample(
                self.member.id, self.member.generation, self.size, 0, self.step, self.samples,
                time.monotonic(),
            )  # fmt: skip
            if self.step == args.fail_at:
                print(f"w{self.member.id} fails on purpose", flush=True)
                sys.exit(args.code)
            if self.step == args.steps or os.path.exists(args.until):
                self.store.set_job_state(JobState.FINISHED, f"trained {self.step} steps")
                self.say(stage=Stage.FINISHED)
                return


if args.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
assert settings.job is not None
assert settings.zookeeper is not None
assert settings.secret is not None
access = Access(settings.job, settings.secret)
with Session(settings.zookeeper, settings.job_settings.session_timeout_s, access=access) as session:
    store = JobStore(session, settings.job)
    if settings.run:
        store.nodes.belong_to(settings.run)
    worker = Worker(store)
    if not args.deaf:
        signal.signal(signal.SIGTERM, worker.sigterm)
    worker.say()
    print(f"w{worker.member.id} is here", flush=True)
    worker.train()
    print(f"w{worker.member.id} leaves after step {worker.step}", flush=True)
