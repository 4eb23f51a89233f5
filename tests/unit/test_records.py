"""The nouns of a job survive JSON, and what is not one of them is refused."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any

import pytest
from made import make_job, wanted

from edl.errors import CoordinationError
from edl.events import Event, ResumedDetails, SwitchDetails
from edl.job.snapshot import Snapshot
from edl.record import Record
from edl.records import (
    Generation,
    Host,
    Job,
    JobState,
    Leader,
    Member,
    Request,
    RingFailure,
    RingMember,
    Stage,
    SwitchParts,
)
from edl.spec import JobSettings, JobSpec, Sizes
from edl.status import job_status

SEATS = (RingMember(4, "a", 0, "::1", 9004), RingMember(2, "b", 1, "::1", 9002))
MEMBER = Member(2, "b", 1, "::1", 9002, 77, "x", Stage.ACTIVE, 5, RingFailure(5, 40))
RECORDS: list[Record] = [
    make_job(state=JobState.STOPPING, reason="edl stop", created=12.5, cwd="/work"),
    Host("a", 4, "10.0.0.1", 99),
    MEMBER,
    Member(3, "b", 0, "::1", 9003, 78, "y"),
    Generation(6, 2, SEATS, 4, (2,), (1,), "w2 joined", "g6-ab", SEATS[:1]),
    Generation(7, 2, (), -1, (), (4, 2), "edl stop"),
    Request("drain", 2, 0),
    Leader(2, 4),
    Event(1.5, 6, 41, "w2 joined", SwitchDetails(2, {"w2": SwitchParts("new", wait_s=0.1)})),
    Event(2.0, 6, 41, "resumed", ResumedDetails("ckpt")),
    JobSpec(("python", "train.py"), 2, Sizes(1, 4, (1, 2, 4)), JobSettings(stall_limit_s=5.0)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_survives_json(record: Record) -> None:
    again = type(record).from_json(json.loads(json.dumps(record.to_json())))
    assert again == record


def test_fields_of_a_newer_edl_are_ignored() -> None:
    assert Leader.from_json({"term": 2, "worker": 4, "since": "tomorrow"}) == Leader(2, 4)


def test_fields_that_an_older_edl_did_not_write_have_their_default() -> None:
    values = MEMBER.to_json()
    del values["broken"], values["stage"]
    assert Member.from_json(values).broken is None
    assert Member.from_json(values).stage is Stage.PREPARING


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Leader, {"term": None}),
        (Leader, {"term": "2"}),
        (Leader, {"term": True}),
        (Leader, {"term": 2.0}),
        (Member, {"stage": "asleep"}),
        (Member, {"stage": []}),
        (Member, {"broken": 5}),
        (Member, {"broken": {"generation": 5}}),
        (Generation, {"members": [{"id": 4}]}),
        (Generation, {"members": {"id": 4}}),
        (Generation, {"joined": 3}),
        (Generation, {"joined": ["w3"]}),
        (JobSpec, {"command": "python train.py"}),
        (JobSpec, {"command": [1]}),
        (JobSpec, {"settings": {"resume": 1}}),
        (Job, {"spec": 4}),
        (Job, {"state": "resting"}),
        (Request, {"accepted": 1}),
        (Event, {"details": [1]}),
        (Event, {"details": {"world_size": 2, "workers": {"w2": 3}}}),
        (Event, {"kind": "birthday"}),
        (Event, {"kind": "resumed"}),
        (Event, {"time": "noon"}),
    ],
)
def test_a_field_of_the_wrong_shape_is_refused(kind: type[Record], change: dict[str, Any]) -> None:
    good = next(record for record in RECORDS if isinstance(record, kind)).to_json()
    with pytest.raises(CoordinationError, match="this is not a "):
        kind.from_json({**good, **change})


@pytest.mark.parametrize("values", [{}, [], None, 3, "term"])
def test_what_is_no_record_is_refused(values: Any) -> None:
    with pytest.raises(CoordinationError, match="this is not a Leader"):
        Leader.from_json(values)


def test_an_integer_is_a_time_too() -> None:
    assert Job.from_json({**RECORDS[0].to_json(), "created": 12}).created == 12


def test_a_generation_knows_its_ranks() -> None:
    generation = RECORDS[4]
    assert isinstance(generation, Generation)
    assert generation.worker_ids == (4, 2)
    assert (generation.rank_of(4), generation.rank_of(2), generation.rank_of(1)) == (0, 1, None)


def test_states_in_which_a_job_is_over() -> None:
    over = {state for state in JobState if state.over}
    assert over == {JobState.FINISHED, JobState.STOPPED, JobState.FAILED}


def test_a_job_with_too_few_workers_pauses() -> None:
    members = tuple(RingMember(n, "a", n, "::1", 4711) for n in range(2))
    now = Snapshot(make_job(min_np=2), generation=Generation(3, 1, members, 0, (), (), ""))
    assert now.paused == ""
    assert job_status(now, "zk").state is JobState.RUNNING
    one = replace(now, generation=Generation(4, 1, members[:1], 0, (), (1,), ""))
    assert one.paused == (
        "paused: 1 worker is left and min_np is 2; others are waited for, at most 600 s"
    )
    assert job_status(one, "zk").state is JobState.PAUSED
    for state in (JobState.STOPPING, JobState.FAILED):
        assert replace(one, job=replace(one.job, state=state)).paused == ""


def test_workers_are_added_up() -> None:
    job = make_job(command=())
    now = Snapshot(job, **wanted({"a": 2, "b": 1, "c": 0}))
    assert (now.desired.np, now.assigned.np) == (3, 3)
    assert (Snapshot(job).desired.np, Snapshot(job).assigned.np) == (0, 0)


def test_the_hosts_with_slots_are_those_of_agents_and_the_discovered_ones() -> None:
    job, a = make_job(), Host("a", 2, "::1")
    assert Snapshot(job, hosts=(a,)).available == (a,)
    assert Snapshot(job, discovered={"c": 1, "b": 2}).available == (
        Host("b", 2, ""),
        Host("c", 1, ""),
    )


def test_a_worker_is_called_by_its_id() -> None:
    assert MEMBER.name == "w2"


def test_who_is_evicted_is_forgotten_once_gone_but_for_the_newest() -> None:
    generation = Generation(
        6, 2, SEATS, 4, (2,), (1,), "w1 left", "", (SEATS[0], RingMember(1, "b", 0, "::1", 1))
    )
    evicted = dict.fromkeys(range(8), "gone")  # 1, 2 and 4 are known to the generation
    now = Snapshot(make_job(command=("x",)), members=(MEMBER,), generation=generation)
    now = dataclasses.replace(now, evicted=evicted)
    assert now.forgettable(0) == (0, 3, 5, 6, 7)
    assert now.forgettable(3) == (0, 3)
    assert now.forgettable(5) == now.forgettable(20) == ()
    assert dataclasses.replace(now, generation=None).forgettable(0) == (0, 1, 3, 4, 5, 6, 7)
