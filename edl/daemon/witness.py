"""What a leader finds out by asking the workers themselves: who is dead, who holds the job up.

ZooKeeper only knows whose session ended, and a session may end under a healthy worker. So a
worker of the ring is given up on proof alone:

- *gone*: nobody listens on its port any more, or somebody else does;
- *frozen or cut off*: its session is over, its port is silent, and no step completes. Any one of
  the three may have another cause; a worker with which steps complete is in order.

A worker that answers is never dead. When no step completes for long, it is asked what it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from edl.config import Config
from edl.core import stall
from edl.core.facts import Generation, Member, Seat, Snapshot, Stage
from edl.core.stall import Activity, Report, Stall
from edl.daemon.mailbox import Mailbox
from edl.errors import CoordinationError
from edl.ring.client import ALIVE, REFUSED, SILENT, Health, ask_all

ASK_TIMEOUT_S = 0.5
SILENCE_S = 1.0  # for this long after a worker did not answer, it counts as silent
SWITCH_S = 0.5  # a switch in which nobody has failed takes less
FROZEN_S = 1.0  # no step for this long, and for this many usual steps: the ring stands still
FROZEN_STEPS = 5


class Witness:
    """The eyes of the leader ``worker``; to be used by its daemon thread only."""

    def __init__(
        self, config: Config, mailbox: Mailbox, worker: int, activity: Callable[[], Activity]
    ) -> None:
        self._config = config
        self._mailbox = mailbox
        self._worker = worker
        self._since = time.monotonic()
        self._announced = (0, 0.0)  # the newest generation and when it was first seen
        self._own_activity = activity
        self._silent: dict[int, float] = {}  # when a worker was last asked in vain

    def dead(self, snapshot: Snapshot) -> dict[int, str]:
        """Who is proven dead, with the proof.

        Only those are asked whose word the leader waits for: members of a ring that is broken or
        about to change, newcomers that are about to join, and whoever has left ZooKeeper. When
        the ring stands still all are asked, so that the session of a frozen one is the last proof
        to come, and nothing is left to wait for when it ends.
        """
        members = {member.id: member for member in snapshot.members}
        asked = {m.id: (m.address, m.port) for m in snapshot.members if m.stage is Stage.READY}
        seats, frozen = _seats(snapshot.generation), self._frozen()
        if frozen or not _settled(snapshot.generation, members):
            asked |= {seat.id: (seat.address, seat.port) for seat in seats.values()}
            if self._just_announced(snapshot.generation) and not _in_doubt(seats, members):
                asked = {w: at for w, at in asked.items() if w not in seats}
        for worker in (self._worker, *snapshot.evicted):
            asked.pop(worker, None)
        dead: dict[int, str] = {}
        for worker, health in sorted(self._ask(asked, members).items()):
            place = "{}:{}".format(*asked[worker])
            if health.liveness is REFUSED:
                dead[worker] = f"its process is gone: {place} refuses connections"
            elif health.told.get("worker") not in (None, f"w{worker}"):
                dead[worker] = f"its process is gone: on {place} {health.told['worker']} answers"
            elif health.liveness is SILENT and worker not in members and frozen:
                dead[worker] = (
                    f"it is frozen or cut off: {self._placed(worker, snapshot)} left ZooKeeper, "
                    f"{place} does not answer and no step completes for {self._quiet_s():.1f} s; "
                    f"in step {self._mailbox.progress.step + 1} "
                    f"w{self._worker} is {self._own_activity().doing}"
                )
        return dead

    def stall(self, snapshot: Snapshot) -> Stall | None:
        """Who holds up a ring that should train; None while it does."""
        generation, progress = snapshot.generation, self._mailbox.progress
        quiet_s = min(self._quiet_s(), time.monotonic() - self._since)
        if (
            snapshot.job.state.over
            or generation is None
            or len(generation.seats) < snapshot.job.min_np  # it waits for replacements
            or not stall.stands_still(quiet_s, progress.median_step_s, self._config.stall_s)
        ):
            return None
        seats = [seat for seat in generation.seats if seat.id not in snapshot.evicted]
        ports = {s.id: (s.address, s.port) for s in seats if s.id != self._worker}
        answers = ask_all(ports, ASK_TIMEOUT_S)
        reports = [
            Report(
                seat.id,
                generation.members.index(seat.id),
                seat.host,
                self._own_activity() if seat.id == self._worker else _activity(answers[seat.id]),
            )
            for seat in seats
        ]
        return stall.judge(reports, quiet_s, progress.step, self._config.stall_limit_s)

    def _ask(
        self, ports: Mapping[int, tuple[str, int]], members: Mapping[int, Member]
    ) -> dict[int, Health]:
        """Ask all workers, except who was silent just before it left ZooKeeper."""
        since = time.monotonic() - SILENCE_S
        silent = {w for w, at in self._silent.items() if at > since and w not in members}
        asked = {worker: at for worker, at in ports.items() if worker not in silent}
        answers, now = ask_all(asked, ASK_TIMEOUT_S), time.monotonic()
        self._silent |= {w: now for w, health in answers.items() if health.liveness is SILENT}
        return answers | {worker: Health(SILENT) for worker in ports if worker in silent}

    def _just_announced(self, generation: Generation | None) -> bool:
        """Whether a switch is so young that to ask its members would only slow it down."""
        number = generation.number if generation is not None else 0
        if number != self._announced[0]:
            self._announced = (number, time.monotonic())
        return time.monotonic() - self._announced[1] < SWITCH_S

    def _placed(self, worker: int, snapshot: Snapshot) -> str:
        seat = _seats(snapshot.generation).get(worker)
        rank = snapshot.generation.rank_of(worker) if snapshot.generation else None
        host = seat.host if seat else "?"
        return f"w{worker} ({'without a rank' if rank is None else f'rank {rank}'}, host {host})"

    def _quiet_s(self) -> float:
        return time.monotonic() - self._mailbox.progress.updated_at

    def _frozen(self) -> bool:
        """Whether this worker's ring has completed no step for longer than steps take."""
        usual_s = self._mailbox.progress.median_step_s
        return self._quiet_s() > max(FROZEN_S, FROZEN_STEPS * usual_s)


def _seats(generation: Generation | None) -> dict[int, Seat]:
    return {s.id: s for s in (*generation.seats, *generation.previous)} if generation else {}


def _in_doubt(seats: Mapping[int, Seat], members: Mapping[int, Member]) -> bool:
    """Whether somebody has left ZooKeeper, or reports a ring as broken that it is in."""
    return any(
        worker not in members
        or ((broken := members[worker].broken) and broken.generation >= members[worker].generation)
        for worker in seats
    )


def _settled(generation: Generation | None, members: Mapping[int, Member]) -> bool:
    """Whether all are in the ring of ``generation`` and none reports it broken."""
    return generation is not None and all(
        seat.id in members
        and members[seat.id].generation >= generation.number
        and not _reports(members[seat.id], generation.number)
        for seat in generation.seats
    )


def _reports(member: Member, generation: int) -> bool:
    return member.broken is not None and member.broken.generation >= generation


def _activity(health: Health) -> Activity | None:
    if health.liveness is not ALIVE:
        return None
    try:
        return Activity.from_json(health.told.get("activity", {}))
    except CoordinationError:
        return None
