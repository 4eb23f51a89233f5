"""Decide what the agent of one host does next with its workers, and whether the job has ended.

An agent keeps as many workers on its host as are assigned to it. Its rules, in order:

1. The end of the job, and a job that cannot go on: :mod:`edl.host.job_end`.
2. A worker that cannot stay in the job is ended (:mod:`edl.host.restart`), and so is one that has
   not joined yet when its host leaves the job. No worker is ended to scale in: the leader takes it
   out of the ring, and it exits with code 0.
3. Missing workers are started, each slot with a back-off that grows with its failures. A slot that
   fails more than ``max_restarts`` times in a row is disabled, and one worker fewer is desired
   here; if the job may not have that number, one in a free slot of any host instead, else the next
   smaller allowed number; if there is none, the job has FAILED.
4. Where the job may use only some devices of the host, each worker gets one of them
   (:mod:`edl.host.devices`), and is not started before one is free.
5. An agent that has joined one run of the job, and no other, leaves when the job's workers of its
   host were placed on other hosts: :func:`with_placement`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from edl.host.devices import why_wait, with_devices
from edl.host.job_end import TOLD, decide_job_end, decide_job_failure, ring_is_away, told_to_end
from edl.host.process import Process
from edl.host.restart import (
    disable_slot,
    end_each,
    fills_its_place,
    starts,
    why_to_end,
    with_terminating,
    without_init,
)
from edl.host.supervision import SupervisorDecision, SupervisorLimits, SupervisorState, foreign
from edl.job.placement import without_slot
from edl.job.resize import assigned_without_signalled
from edl.job.snapshot import Snapshot, since
from edl.records import Assigned, Stage

_REVOKED = "the job may not use its device any more"


@dataclass(frozen=True)
class AgentLimits(SupervisorLimits):
    """The time limits of an agent, in seconds unless stated otherwise."""

    former_s: float = 60.0  # for the session of an agent that was killed here to end
    former_sessions: float = 2.0  # the same for one elsewhere, which may live, in sessions of ours
    # that an agent of one run stays when the job may use none of its devices any more, for the
    # cluster to read in its record that none is in use
    elsewhere_s: float = 5.0


@dataclass(frozen=True)
class AgentState(SupervisorState):
    """An agent's own state, which is not in ZooKeeper, such as its processes and time limits."""

    limits: AgentLimits = AgentLimits()
    draining: bool = False  # the host is about to leave the job
    devices: tuple[int, ...] = ()  # of the agent's record; a limited job starts workers on no other
    cuda_devices: tuple[str, ...] | None = None  # of its CUDA_VISIBLE_DEVICES; None: not set
    of_run: bool = False  # it has joined one run of the job, and no other
    was_placed: bool = False  # workers of the job were assigned to the host
    elsewhere_since: float | None = None  # the job's workers of the host are on other hosts

    @property
    def is_elsewhere(self) -> bool:
        return self.of_run and self.elsewhere_since is not None

    @property
    def why_elsewhere(self) -> str:
        reason = f"the job's workers of host {self.host} were placed on other hosts"
        return reason if self.is_elsewhere else ""


def with_placement(state: AgentState, assigned: Assigned, now: float) -> AgentState:
    """Return the agent's state with whether the workers of its host are placed on other hosts."""
    # Elsewhere: the host was in the record and is no more, or the job may use no device of it. One
    # with devices and no worker may get one by `edl scale`.
    number = assigned.hosts.get(state.host)
    has_none = number == 0 and assigned.devices_on(state.host) == ()
    if number is None:
        is_elsewhere, was_placed = state.was_placed, state.was_placed
    else:
        is_elsewhere, was_placed = has_none, state.was_placed or not has_none
    elsewhere_since = since(state.elsewhere_since, is_elsewhere, now)
    return replace(state, was_placed=was_placed, elsewhere_since=elsewhere_since)


def decide_agent(snapshot: Snapshot, state: AgentState, now: float) -> SupervisorDecision:
    decision = decide_job_end(snapshot, state, now)
    decision = decision or decide_job_failure(snapshot, state, now)
    return with_terminating(decision or _keep(snapshot, state, now), snapshot, state, now)


def _keep(snapshot: Snapshot, state: AgentState, now: float) -> SupervisorDecision:
    """Keep as many workers running as are assigned; the leader takes a surplus out of the ring."""
    wanted = snapshot.assigned.hosts.get(state.host, 0)
    others = [m for m in foreign(snapshot, state) if m.host == state.host]
    replaced, granted = snapshot.replaced, partial(snapshot.assigned.grants, state.host)
    here = [
        m
        for m in others
        if m.stage not in (Stage.LEAVING, Stage.FINISHED)
        and m.id not in replaced
        and granted(m.used_device)
    ]
    filling = [p for p in state.processes if p.worker not in replaced and granted(p.used_device)]
    counted = sum(fills_its_place(p, state.limits, now) for p in filling) + len(here)
    to_end = why_to_end(snapshot, state, now)
    newcomers = [p for p in state.living if not p.seated]
    to_end |= {p: _REVOKED for p in newcomers if not granted(p.used_device)}
    if state.draining and wanted == 0:  # the leader does not know them, so it cannot give them up
        to_end |= {p: "its host leaves the job" for p in state.living if p.worker is None}
    if told := told_to_end(snapshot, state):
        to_end |= dict.fromkeys(newcomers, "the job stops before it joined")
    counted -= sum(fills_its_place(p, state.limits, now) for p in to_end if p in filling)
    occupied = {p.slot for p in state.living} | {m.slot for m in others}
    slots = next((host.slots for host in snapshot.agents if host.name == state.host), None)
    counted += sum(p.refuses for p in to_end)  # nobody is started before it is seen how they ended
    stays = assigned_without_signalled(snapshot).get(state.host, 0)
    # None could send the job's state to a new worker while nobody of the ring is in ZooKeeper.
    lacking = 0 if told or ring_is_away(snapshot, state, now) else stays - counted
    staying = {p.slot for p in state.living if p.departing is None and granted(p.used_device)}
    places = _places(lacking, slots, occupied, staying, state)
    limit = snapshot.job.spec.settings.max_restarts
    last = [p for _, p in places if p is not None]
    candidates = [*last, *(p for p in state.processes if places and p.refused)]
    failing = next((p for p in candidates if p.uses_up(limit)), None)
    if failing is not None:
        used_up = {p.slot for p in state.processes if p.used_up} | {failing.slot}
        desired = without_slot(snapshot, state.host, used_up, elsewhere=not failing.refused)
        return disable_slot(failing, snapshot, state, desired, "--max-restarts")
    starting = starts(places, state, "a worker is wanted", now)
    waiting, devices = "", snapshot.assigned.devices_on(state.host)
    if devices is not None:  # rule 4
        allowed = [device for device in devices if device in state.devices]
        due, cuda = len(starting), state.cuda_devices
        starting = with_devices(starting, allowed, cuda, state.processes, others)
        if lack := due - len(starting) + max(0, wanted - len(allowed)):
            waiting = f"; {why_wait(lack, allowed, cuda)}"
    return SupervisorDecision(
        TOLD if told else f"{counted} of {wanted} workers run on {state.host}{waiting}",
        starting,
        end_each(to_end, state.limits, now),
        warnings=without_init(state, now),
        exit_code=0 if _has_left(snapshot, state, now) else None,
    )


def _has_left(snapshot: Snapshot, state: AgentState, now: float) -> bool:
    if state.living:
        return False
    number = snapshot.assigned.hosts.get(state.host)
    if state.draining and not number:
        return True
    stays_s = 0.0 if number is None else state.limits.elsewhere_s
    began = state.elsewhere_since
    return state.is_elsewhere and state.was_placed and began is not None and now - began >= stays_s


def _places(
    lacking: int, slots: int | None, occupied: set[int], staying: set[int], state: AgentState
) -> list[tuple[int, Process | None]]:
    """Return up to `lacking` pairs (slot, its last process): free slots, then disabled ones."""
    last = {p.slot: p for p in sorted(state.processes, key=lambda p: p.started)}
    used_up = {slot for slot, process in last.items() if process.used_up}
    count = max(0, lacking) + len(occupied | used_up)
    order = [slot for slot in range(count) if slot not in occupied]
    order.sort(key=lambda slot: slot in used_up)  # disabled ones only if no other is free
    if slots is not None:
        order = [slot for slot in order if slot < slots]
        # The replacement of a worker that is about to leave shares its slot and device.
        order += sorted({p.slot for p in state.living} - staying)
    return [(slot, last.get(slot)) for slot in order[: max(0, lacking)]]
