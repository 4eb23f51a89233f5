"""What an agent, or an `edl-worker`, is told and decides, as texts of the form of scenario_texts.

The facts of an agent of host a, whose clock is `at` so many seconds (else 0):

    wanted a=2                         assigned and desired workers by host; else 2 on a
    ring 2 w0 w1@b; after w0; because all have left       the newest generation
    there w0 w1@b(leaving) w2(of=x-2)  sessions in ZooKeeper, else none; the attempt is t-<id>
    here w0 w1(exit=-9 said=Boom) s2   processes: of a worker of a ring, or only of a slot (s2)
    job min_np=2, state=stopping, reason=so               other than a job of 1 to 4 workers
    agents a=4 b=2   failing b=1   disabled b=1   evicted w1: it is frozen; w2: so
    leader w1   step 100   median_step_s 2   stepped 30   asks 1 replace w1
    deaths 1@40   ended w1   answering w1   waiting w0    rings that died, with the saved step
    since 10   preempted 0   limits kill_s=1   draining   of_run   overdue   submitter
    granted 1,2   devices 0,1          those of the host for the job, and of the agent

An `edl-worker` has `slot 1`, and with horovodrun `removed`, `unread`, `barred`, `asked 50` (to end,
then), `slots a/0 a/1(ending)`; its job's workers have the attempt l<id>.

What is in parentheses is a field of `Process` or `Member`, or a flag of it; `exited=9` and other
times are 9 s before 0 (`exited` alone: at 0), and `-seated` takes a flag back. A process starts at
-10 s, and exits at 0 where only its code is given.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from made import changed, make_job, wanted
from scenario_texts import WORKER, ids, numbers, with_facts

from edl.host.decide import AgentLimits, AgentState, decide_agent
from edl.host.horovodrun.decide import SlotLimits, SlotState, decide_slot
from edl.host.process import Process
from edl.host.supervision import RingDeath, SupervisorDecision
from edl.job.snapshot import Snapshot
from edl.records import (
    Generation,
    Host,
    JobState,
    Leader,
    Member,
    Request,
    RingMember,
    SlotRecord,
    Stage,
    TrainingStatus,
)

ZERO_S = 1000.0  # of the clock of a text
JOB = make_job()
TIMES = {
    "departing": "departing", "ended": "ended", "ending": "ending_since", "exited": "exited",
    "gone": "exited_at", "handled": "handled", "mute": "unresponsive_since",
    "absent": "no_session_since", "started": "started", "halted": "suspended_since",
}  # fmt: skip
NUMBERS = {
    "code": "ended_code", "device": "device", "exit": "exit_code", "failures": "failures",
    "in": "generation", "worker": "worker",
}  # fmt: skip
TEXTS = {"id": "attempt_id", "said": "termination_message", "evicted": "evicted", "why": "why"}


def process(text: str) -> Process:
    """Return the process of ``w1(exit=-9)``, of a worker of a ring, or ``s1``, of slot 1."""
    kind, slot, given = re.fullmatch(r"([ws])(\d+)(?:\((.*)\))?", text).groups()  # type: ignore[union-attr]
    fields: dict[str, Any] = {"attempt_id": f"t-{slot}", "started": ZERO_S - 10}
    if kind == "w":
        fields |= {"worker": int(slot), "ready": True, "seated": True}
    for name, _, value in (one.partition("=") for one in (given or "").split()):
        if name in TIMES:
            fields[TIMES[name]] = ZERO_S - float(value or 0)
        elif name == "trained":
            fields["trained_s"] = float(value)
        elif name in NUMBERS:
            fields[NUMBERS[name]] = int(value)
        elif name in TEXTS:
            fields[TEXTS[name]] = value
        else:
            fields[name.removeprefix("-")] = not name.startswith("-")
    if "exit_code" in fields:
        fields.setdefault("exited", ZERO_S)
    return Process(int(slot), **fields)


def given(line: str, **changes: Any) -> tuple[Snapshot, Any]:
    """Return what is told of a job in one line, and the state of a launcher."""
    facts = with_facts({}, line)
    now = snapshot_of(facts)
    return replace(now, **changes), state_of(facts)


def snapshot_of(facts: dict[str, str]) -> Snapshot:
    of_slot, letter = "slot" in facts, "l" if "slot" in facts else "t"
    generation = None
    if "ring" in facts:
        first, *more = facts["ring"].split("; ")
        parts = dict(part.partition(" ")[::2] for part in more)
        seats, former = (
            tuple(ring_member(*one[:3]) for one in WORKER.findall(text))
            for text in (first, parts.get("after", ""))
        )
        joined = tuple(one.id for one in seats)
        root = joined[0] if joined else -1
        generation = Generation(
            int(first.split()[0]), 1, seats, root, joined, (), parts.get("because", ""),
            previous=former,
        )  # fmt: skip
    members = []
    for id, host, slot, fields in WORKER.findall(facts.get("there", "")):
        values: dict[str, Any] = {"attempt_id": f"{letter if host in ('', 'a') else host}-{id}"}
        for name, _, value in (one.partition("=") for one in fields.split()):
            if name in {*Stage}:
                values["stage"] = Stage(name)
            elif name == "of":
                values["attempt_id"] = value
            else:
                values[{"in": "generation"}.get(name, name)] = int(value)
        seat = ring_member(id, host, slot)
        members.append(Member(seat.id, seat.host, seat.slot, seat.address, 1, 1, **values))
    hosts = numbers(facts["agents"]) if "agents" in facts else {}
    failing, disabled = (
        {h: {str(slot): "so" for slot in range(n)} for h, n in numbers(facts.get(key, "")).items()}
        for key in ("failing", "disabled")
    )
    places = wanted(numbers(facts.get("wanted", "a=2")), by_slot=of_slot)
    if "granted" in facts:
        devices = {"a": tuple(map(int, facts["granted"].split(",")))}
        places["assigned"] = replace(places["assigned"], devices=devices)
    leader = facts.get("leader", "w0")
    return Snapshot(
        job_of(facts),
        tuple(
            Host(h, n, "::1", failing=failing.get(h, {}), disabled=disabled.get(h, {}))
            for h, n in hosts.items()
        ),
        tuple(members),
        generation=generation,
        requests=tuple(
            Request(kind, int(target), int(number))
            for number, kind, target in re.findall(r"(\d+) (\w+) w(\d+)", facts.get("asks", ""))
        ),
        evicted={
            int(w): why for w, why in re.findall(r"w(\d+): ([^;]*)", facts.get("evicted", ""))
        },
        slots=tuple(
            SlotRecord(host, int(slot), disabled="so" * (how == "disabled"), ending=how == "ending")
            for host, slot, how in re.findall(r"(\w+)/(\d+)(?:\((\w+)\))?", facts.get("slots", ""))
        ),
        leader=None if leader == "nobody" else Leader(1, ids(leader)[0]),
        status=TrainingStatus(
            step=int(facts.get("step", 0)), median_step_s=float(facts.get("median_step_s", 0))
        ),
        **places,
    )


def job_of(facts: dict[str, str]) -> Any:
    fields: dict[str, Any] = dict(one.split("=") for one in facts.get("job", "").split(", ") if one)
    for name, value in fields.items():
        if name == "sizes":
            fields[name] = tuple(map(int, value.split("/")))
        elif name == "state":
            fields[name] = JobState(value)
        elif name.endswith("_s"):
            fields[name] = float(value)
        elif value.lstrip("-").isdigit():
            fields[name] = int(value)
    if "slot" in facts:
        fields["driver"] = "10.0.0.1:9000"
    return changed(JOB, **fields)


def ring_member(id: str, host: str = "", slot: str = "") -> RingMember:
    return RingMember(int(id), host or "a", int(slot or id), "::1", 1)


def state_of(facts: dict[str, str]) -> AgentState | SlotState:
    def at(fact: str, default: Any = None) -> Any:
        return ZERO_S + float(facts[fact]) if fact in facts else default

    processes = tuple(map(process, re.findall(r"[ws]\d+(?:\([^)]*\))?", facts.get("here", ""))))
    limits = numbers(facts.get("limits", ""), float)
    fields: dict[str, Any] = {
        "script": "train.py",
        "state_since": ZERO_S - float(facts.get("since", 0)),
        "preempted_since": at("preempted"),
        "stepped": at("stepped", 0.0),
        "ring_deaths": tuple(
            RingDeath(int(number), int(step), ZERO_S)
            for number, step in re.findall(r"(\d+)@(-?\d+)", facts.get("deaths", ""))
        ),
        "is_submitter": "submitter" in facts,
        "overdue": "overdue" in facts,
    }
    for name in ("ended", "answering", "waiting"):
        fields[name] = frozenset(ids(facts.get(name, "")))
    if "slot" not in facts:
        devices = tuple(map(int, facts.get("devices", "0,1,2,3").split(",")))
        flags = {name: name in facts for name in ("draining", "of_run")}
        return AgentState(
            "a", "t", processes, AgentLimits(**limits), devices=devices, **flags, **fields
        )
    processes = tuple(
        replace(one, attempt_id=one.attempt_id.replace("t-", "l-")) for one in processes
    )
    return SlotState(
        "a", "t", processes, SlotLimits(**limits), slot=int(facts["slot"]),
        removed="removed" in facts, unread="unread" in facts, disabled="barred" in facts,
        ending_since=at("asked"), **fields,
    )  # fmt: skip


def decision_of(facts: dict[str, str]) -> SupervisorDecision:
    snapshot, state = snapshot_of(facts), state_of(facts)
    now = ZERO_S + float(facts.get("at", 0))
    if isinstance(state, SlotState):
        return decide_slot(snapshot, state, now)
    return decide_agent(snapshot, state, now)


def decided(facts: dict[str, str]) -> list[str]:
    """Return the decision that follows from the facts, in words."""
    decision = decision_of(facts)
    lines = [decision.reason]
    for start in decision.starts:
        what = f"start slot {start.slot}"
        if start.device is not None:
            assert start.variables["EDL_DEVICE"] == str(start.device)
            what += f" on device {start.device} of {start.variables['CUDA_VISIBLE_DEVICES']}"
        what += f" failures={start.failures}" if start.failures else ""
        what += " replaces" if start.replaces else ""
        lines.append(f"{what}: {start.reason}")
    lines += [
        f"{'SIGKILL' if e.kill else 'SIGTERM'} {e.attempt_id}: {e.reason}" for e in decision.endings
    ]
    if (end := decision.outcome) is not None:
        why = "" if end.reason == decision.reason else f": {end.reason}"
        lines.append(f"the job has {end.state}, with {end.exit_code}{why}")
    lines += [f"warn: {each}" for each in decision.warnings]
    if (disable := decision.disable_slot) is not None:
        assert disable.reason == decision.reason
        hosts = " ".join(f"{host}={n}" for host, n in disable.desired.items())
        lines.append(f"disable slot {disable.slot} of {disable.attempt_id}; want {hosts}")
    lines += [f"exit with {decision.exit_code}"] if decision.exit_code is not None else []
    return lines
