"""Who is in the ring next, and why: the scenarios of `scenarios/decide`, each a text.

Their form is that of tests/scenario_texts.py. The facts:

    ring 8 w0 w1@b/0; joined w1; after w0      the newest generation; @host, else a; /slot, else id
    workers w1(leaving) w2(ready) -w0          sessions, beside those of the ring's members
    wanted a=2 b=1   desired a=2   by_slot     what is desired and assigned; else as the ring is
    job min_np=2, state=stopping               other than a job of 1 to 4 workers that starts with 2
    agents a=4   slots a=3   dead w1   silent w1   evicted w1=frozen   reclaim b=1
    request 0 drain w1; 1 replace w1 on a      open requests by number
    time w1=2.9 generation=59                  for how long, in seconds; else for long

What is in parentheses is the stage, or a field: `in` (generation, else 7), `seen` (newest one, else
7), `fits`, and of its report `broke` (last step), `broke_in`, `exchanges`, `back`, `gone`.
A new rule is first a text here.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from made import changed, make_job, wanted
from scenario_texts import WORKER, check, ids, numbers, scenarios

from edl.job.decision import Limits, MembershipDecision, set_desired
from edl.job.liveness import Ages
from edl.job.membership import decide
from edl.job.snapshot import Snapshot
from edl.records import (
    Assigned,
    Desired,
    Generation,
    Host,
    JobState,
    Member,
    Reclaim,
    Request,
    RequestedBy,
    RingFailure,
    RingMember,
    SlotRecord,
    Stage,
)

LIMITS = Limits(
    start_s=120,
    prepare_s=300,
    gather_s=3,
    leave_grace_s=30,
    notice_s=60,
    report_s=600,
    leave_gather_s=0.5,
)
JOB = make_job(command=("true",))
TERM = 5
FIELDS = {"in": "generation", "seen": "newest_generation", "fits": "fits"}


@pytest.mark.parametrize("lines", scenarios("decide"))
def test_decide(lines: list[str]) -> None:
    check(lines, lambda facts: as_text(decided(facts)))


def member(id: str, host: str, slot: str, fields: str) -> Member:
    number = int(id)
    new = Member(number, host or "a", int(slot or id), "::1", 9000 + number, 1, "", Stage.ACTIVE, 7)
    broken: dict[str, Any] = {}
    for name, _, value in (one.partition("=") for one in fields.split()):
        if name in {*Stage}:
            comes = name in (Stage.READY, Stage.PREPARING)
            new = replace(new, stage=Stage(name))
            new = replace(new, generation=0, newest_generation=7) if comes else new
        elif name in FIELDS:
            new = replace(new, **{FIELDS[name]: int(value)})
        else:
            broken[name] = int(value or 1)
    if broken:
        step, generation = broken["broke"], broken.get("broke_in", 7)
        failure = RingFailure(generation, step, exchanges=broken.get("exchanges", 0))
        gone = (broken["gone"],) if "gone" in broken else ()
        new = replace(new, broken=replace(failure, at_epochs="back" in broken, gone=gone))
    return new


def seat(m: Member) -> RingMember:
    return RingMember(m.id, m.host, m.slot, m.address, m.port)


def snapshot_of(facts: dict[str, str]) -> Snapshot:
    first, *more = facts.get("ring", "").split("; ")
    seated = [member(*found) for found in WORKER.findall(first)]
    present = {m.id: m for m in seated}
    places = {m.id: (m.host, str(m.slot)) for m in seated}
    generation = None
    if first:
        number = int(first.split()[0])
        parts = dict(part.partition(" ")[::2] for part in more)
        former = [member(*found) for found in WORKER.findall(parts.get("after", ""))]
        present |= {m.id: m for m in former if m.id not in present}
        generation = Generation(
            number,
            4,
            tuple(seat(m) for m in seated),
            seated[0].id if seated else -1,
            tuple(ids(parts.get("joined", ""))),
            tuple(ids(parts.get("left", ""))),
            "so it began",
            previous=tuple(seat(m) for m in former),
            at_epochs="at_epochs" in parts,
            fits=int(parts.get("fits", 0)),
        )
    absent = ids(" ".join(re.findall(r"-w\d+", facts.get("workers", ""))))
    for id, host, slot, fields in WORKER.findall(facts.get("workers", "")):
        place = places.get(int(id), (host, slot))
        present[int(id)] = member(id, *place, fields)
    by_slot = "by_slot" in facts
    hosts = numbers(facts["wanted"]) if "wanted" in facts else Counter(m.host for m in seated)
    fields = dict(one.split("=") for one in facts.get("job", "").split(", ") if one)
    changes = {name: int(n) if n.lstrip("-").isdigit() else n for name, n in fields.items()}
    if "sizes" in fields:
        changes["sizes"] = tuple(int(n) for n in fields["sizes"].split("/"))
    if "state" in fields:
        changes["state"] = JobState(fields["state"])
    now = Snapshot(
        changed(JOB, **changes),
        tuple(Host(name, n, "::1") for name, n in numbers(facts.get("agents", "")).items()),
        tuple(m for _, m in sorted(present.items()) if m.id not in absent),
        generation=generation,
        requests=tuple(
            Request(kind, int(target), int(number), host=host)
            for number, kind, target, host in re.findall(
                r"(\d+) (\w+) w(-?\d+)(?: on (\w+))?", facts.get("request", "")
            )
        ),
        evicted={int(w[1:]): why for w, why in numbers(facts.get("evicted", ""), str).items()},
        slots=tuple(
            SlotRecord(host, slot)
            for host, n in numbers(facts.get("slots", "")).items()
            for slot in range(n)
        ),
        **wanted(hosts, by_slot),
    )
    if "failing" in facts:
        now = replace(now, hosts=tuple(replace(h, failing={"0": ""}) for h in now.hosts))
    if "desired" in facts:
        now = replace(now, desired=Desired(numbers(facts["desired"])))
    reclaims = tuple(Reclaim(h, n, 100, 130) for h, n in numbers(facts.get("reclaim", "")).items())
    return replace(now, desired=replace(now.desired, reclaims=reclaims))


def decided(facts: dict[str, str]) -> MembershipDecision:
    times = numbers(facts.get("time", ""), float)
    stages = dict.fromkeys(range(20), 1000.0)
    stages |= {int(name[1:]): times.pop(name) for name in [*times] if name[0] == "w"}
    ages = Ages(1000.0, stages, 1000.0)
    ages = replace(ages, **{f"{name}_s": seconds for name, seconds in times.items()})
    dead = dict.fromkeys(ids(facts.get("dead", "")), "its port is refused")
    silent = frozenset(ids(facts.get("silent", "")))
    return decide(snapshot_of(facts), TERM, ages, LIMITS, dead, silent)


def who(workers: Any) -> str:
    return " ".join(f"w{one if isinstance(one, int) else one.id}" for one in workers) or "nobody"


def as_text(decision: MembershipDecision) -> list[str]:
    lines = [decision.reason]
    if (new := decision.generation) is not None:
        assert (new.term, new.reason) == (TERM, decision.reason)
        parts = [f"ring {new.number}: {who(new.members)}"]
        if new.members and new.state_source != new.members[0].id:
            parts.append(f"state of w{new.state_source}")
        parts += [f"joined {who(new.joined)}"] if new.joined else []
        parts += [f"left {who(new.left)}"] if new.left else []
        parts += [f"after {who(new.previous)}"] if new.previous else []
        parts += ["at_epochs"] if new.at_epochs else []
        parts += [f"fits {new.fits}"] if new.fits else []
        lines.append("; ".join(parts))
    if decision.change:
        lines.append(f"want: {decision.change}")
    for reason in dict.fromkeys(decision.evict.values()):
        workers = [worker for worker, why in decision.evict.items() if why == reason]
        if_there = ", if it is registered" if decision.registered.intersection(workers) else ""
        lines.append(f"evict {who(workers)}: {reason}{if_there}")
    for one in decision.answers:
        lines.append(f"{'accept' if one.accepted else 'refuse'} {one.number}: {one.outcome}")
    lines += [f"given back: {one.host}={one.slots}" for one in decision.reclaimed]
    if decision.again_s is not None:
        lines.append(f"again in {decision.again_s:g} s")
    assert decision.acts == (len(lines) > 1 + (decision.again_s is not None))
    return lines


def test_a_decision_that_changes_nothing_does_not_act() -> None:
    before = Desired({"a": 1})
    for hosts, acts in (({"a": 1}, False), ({}, True)):
        change = set_desired(before, Assigned(), hosts, RequestedBy.LEADER, "less")
        assert MembershipDecision("less", change=change).acts == acts
