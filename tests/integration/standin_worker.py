"""A worker without a ring: it registers, leads, joins and leaves, but its training only sleeps.

It uses the real coordination and the real decisions, no Horovod and no framework, so what the
agent and the command line do can be tested in seconds. A switch happens without any agreement.

    --steps N          finish after N steps (0: never)
    --step-s S         length of a step
    --fail-at N        exit with --code when step N is reached
    --code C
    --deaf             ignore SIGTERM and the end of the job
"""

import argparse
import os
import signal
import sys
import time
from dataclasses import replace
from types import FrameType

from edl import config
from edl.coordination.access import Access
from edl.coordination.election import Election
from edl.coordination.job_store import JobStore
from edl.coordination.session import Session
from edl.core.job.decision import Ages, Limits
from edl.core.job.membership import decide
from edl.core.job.profile import Reading
from edl.core.records import Event, Generation, JobState, Member, Stage
from edl.errors import CoordinationError, Deposed

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--code", type=int, default=3)
parser.add_argument("--deaf", action="store_true")
args = parser.parse_args()
settings = config.load()


class Worker:
    def __init__(self, store: JobStore) -> None:
        self.store = store
        self.member = Member(
            store.new_worker_id(),
            settings.host,
            settings.slot,
            settings.own_address,
            1,  # nobody listens there
            os.getpid(),
            settings.launch,
            Stage.READY,
        )
        self.election = Election(store.session, store.name, self.member.id)
        self.epoch = 0
        self.step = 0
        self.samples = 0  # 4 a step from each worker
        self.size = 0
        self.counted: Reading | None = None
        self.asked_to_leave = False
        self.told_at = 0.0

    def sigterm(self, number: int, frame: FrameType | None) -> None:
        if self.member.generation == 0:
            raise SystemExit(0)
        self.asked_to_leave = True

    def say(self, **changes: object) -> None:
        """Write the member node when it differs, or when the session is a new one."""
        member = replace(self.member, **changes)  # type: ignore[arg-type]
        if member != self.member or self.epoch != self.store.session.epoch:
            self.epoch = self.store.session.epoch
            self.store.put_member(member)
            self.member = member

    def turn(self) -> bool:
        """Hear and speak once; False when there is nothing more to do here."""
        if not self.store.session.connected:
            return True
        if self.asked_to_leave and self.member.stage is Stage.ACTIVE:
            self.say(stage=Stage.LEAVING)
        self.say()
        job, generation, evicted, _ = self.store.watch_generation(None)
        if self.member.id in evicted:
            sys.exit(evicted[self.member.id])
        wanted = self.adopt(generation) and not job.state.over
        if not wanted and not args.deaf:
            return False
        self.lead()
        return True

    def adopt(self, generation: Generation | None) -> bool:
        if generation is None:
            return True
        if generation.rank_of(self.member.id) is None:
            self.say(newest_generation=generation.number)
            return self.member.generation == 0 and bool(generation.seats)
        self.size = len(generation.seats)
        if self.member.generation < generation.number:
            leaving = self.member.stage is Stage.LEAVING
            stage = Stage.LEAVING if leaving else Stage.ACTIVE
            self.say(stage=stage, generation=generation.number)
        return True

    def lead(self) -> None:
        self.election.enter()
        leadership = self.election.leads()
        if leadership is None:
            return
        snapshot = self.store.snapshot()
        limits = Limits(start_s=60, prepare_s=60, gather_s=1, leave_grace_s=5, notice_s=60)
        decision = decide(snapshot, leadership.term, Ages(), limits)
        if decision.acts:
            leadership.carry_out(decision, snapshot)
        if decision.generation is not None:
            new = decision.generation
            names = {"members": new.members, "joined": new.joined, "left": new.left}
            told = {key: [f"w{worker}" for worker in ids] for key, ids in names.items()}
            self.log("generation", new, **told)
            old = {w: {"role": "old", "stall_s": 0.05} for w in told["members"]}
            self.log("switch", new, workers=old)
        if time.monotonic() - self.told_at > 0.2:
            self.told_at = time.monotonic()
            told = {"step": self.step, "reason": decision.reason}
            if self.counted is not None:
                told["counted"] = self.counted.to_json()
            leadership.put_status(told)

    def log(self, kind: str, generation: Generation, **details: object) -> None:
        number, why = generation.number, generation.reason
        self.store.add_event(Event(time.time(), kind, number, self.step, why, details))

    def train(self) -> None:
        while True:
            try:
                if not self.turn():
                    return
            except (CoordinationError, Deposed):
                continue
            time.sleep(args.step_s)
            if self.member.generation == 0:
                continue
            self.step += 1
            self.samples += 4 * self.size
            self.counted = Reading(
                self.member.id, self.member.generation, self.size, 0, self.step, self.samples,
                time.monotonic(),
            )  # fmt: skip
            if self.step == args.fail_at:
                print(f"w{self.member.id} fails on purpose", flush=True)
                sys.exit(args.code)
            if self.step == args.steps:
                self.store.set_job_state(JobState.FINISHED, f"trained {self.step} steps")
                self.say(stage=Stage.FINISHED)
                return


if args.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
assert settings.job is not None
assert settings.zookeeper is not None
assert settings.secret is not None
access = Access(settings.job, settings.secret)
with Session(settings.zookeeper, settings.session_timeout_s, access=access) as session:
    worker = Worker(JobStore(session, settings.job))
    if not args.deaf:
        signal.signal(signal.SIGTERM, worker.sigterm)
    worker.say()
    print(f"w{worker.member.id} is here", flush=True)
    worker.train()
    print(f"w{worker.member.id} leaves after step {worker.step}", flush=True)
