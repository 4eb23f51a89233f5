"""What the leader of a cluster writes for people who ask why a job waits."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from edl.cluster.lifecycle import JobLifecycle, LifeState
from edl.cluster.nodes import ClusterPaths
from edl.cluster.records import JobReasons
from edl.cluster.writer import EVERY_S, MAX_CHARACTERS, MAX_REASONS_BYTES, ReasonWriter
from edl.zookeeper.reads import encode

QUEUED, RUNNING = JobLifecycle(since_s=5.0), JobLifecycle(LifeState.RUNNING, since_s=5.0)


class Writer:
    paths = ClusterPaths("lab")

    def __init__(self) -> None:
        self.written: list[JobReasons] = []

    def commit(self, writes: Any) -> bool:
        (write,) = writes
        assert write.path == "/edl/clusters/lab/reasons"
        self.written.append(JobReasons.from_json(write.value))
        return True


def test_only_what_readers_do_not_have_is_written_and_not_within_a_second() -> None:
    writer: Any = Writer()
    told = ReasonWriter(writer)
    assert told.tell({"a": "x"}, {"a": QUEUED}, 10.0) == math.inf
    assert told.tell({"a": "x"}, {"a": QUEUED}, 10.1) == math.inf
    assert told.tell({"a": "y"}, {"a": QUEUED}, 10.25) == EVERY_S - 0.25
    assert told.tell({"a": "y"}, {"a": QUEUED}, 11.0) == math.inf
    assert [(one.at_s, one.reasons) for one in writer.written] == [
        (10.0, {"a": "x"}),
        (11.0, {"a": "y"}),
    ]


def test_the_same_reason_in_a_later_state_is_written_again() -> None:
    writer: Any = Writer()
    told = ReasonWriter(writer)
    told.tell({"a": "x"}, {"a": QUEUED}, 10.0)
    told.tell({"a": "x"}, {"a": JobLifecycle(since_s=12.0)}, 12.0)
    assert [one.reason("a", since_s=12.0) for one in writer.written] == ["", "x"]


def test_the_reasons_of_many_jobs_are_cut_until_zookeeper_takes_them() -> None:
    writer: Any = Writer()
    chance = Random(0)
    reasons = {f"job-{n}": chance.randbytes(200).hex() for n in range(5000)}
    ReasonWriter(writer).tell(reasons, dict.fromkeys(reasons, QUEUED), 10.0)
    [written] = writer.written
    assert len(encode(written.to_json())) <= MAX_REASONS_BYTES
    assert written.reasons.keys() == reasons.keys()
    assert all(reasons[job].startswith(why) and why for job, why in written.reasons.items())


def test_jobs_that_have_ended_are_left_out_and_long_reasons_are_cut() -> None:
    writer: Any = Writer()
    lives = {"a": RUNNING, "b": JobLifecycle(LifeState.ENDED, since_s=99.0)}
    assert ReasonWriter(writer).tell({"a": "x" * 1000, "b": "y"}, lives, 10.0) == math.inf
    assert writer.written[0].reasons == {"a": "x" * MAX_CHARACTERS}
