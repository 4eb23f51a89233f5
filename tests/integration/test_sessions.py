"""ZooKeeper ends our sessions by force: nothing follows from it but a new term of the leader."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from scenario import Scenario, longest_stall, scenario

from edl.chaos.fault_schedule import Action
from edl.chaos.faults import post_fault
from edl.job.snapshot import Snapshot
from edl.records import Member, Stage
from edl.zookeeper.reads import exists
from edl.zookeeper.store import JobStore

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# So long that no session ends by itself, however busy the machine is.
OPEN = {"EDL_CHAOS": "1", "EDL_SESSION_TIMEOUT_S": "20"}
BACK_S = 20.0


def owners(store: JobStore) -> dict[int, int]:
    """Worker -> the session that its node belongs to; absent: it has none now."""
    members = store.snapshot().members
    paths = [exists(store.paths.member(member.id)) for member in members]
    stats = store.session.read_all("look whose nodes they are", paths)
    return {m.id: s.ephemeralOwner for m, s in zip(members, stats, strict=True) if s is not None}


def expire(job: Scenario, store: JobStore, members: Iterable[Member]) -> None:
    """End their sessions, and wait until each is a member again, by another session."""
    before = owners(store)
    struck = list(members)
    for member in struck:
        assert post_fault(store, member, Action.EXPIRE) == 200

    def back() -> bool:
        now = owners(store)
        return all(now.get(m.id) not in (None, before.get(m.id)) for m in struck)

    job.until(back, f"new sessions of {[m.name for m in struck]}", BACK_S)


def whole(job: Scenario, store: JobStore) -> Snapshot:
    def there() -> bool:
        now = store.snapshot()
        assert now.generation is not None
        return now.leader is not None and {m.id for m in now.members} >= {
            *now.generation.worker_ids
        }

    job.until(there, "all members", BACK_S)
    return store.snapshot()


def same_workers(before: Snapshot, after: Snapshot) -> None:
    """Assert that the same processes are in the same ring, and say the same of themselves."""
    assert after.generation == before.generation
    assert after.members == before.members
    assert dict(after.evicted) == {}


def has_come_up(store: JobStore) -> bool:
    """Return whether the third worker is ready, or further."""
    return any(m.id == 2 and m.stage is not Stage.PREPARING for m in store.snapshot().members)


def term(now: Snapshot) -> int:
    assert now.leader is not None
    return now.leader.term


def test_all_sessions_expire_at_once(tmp_path: Path, zk_hosts: str) -> None:
    with scenario(tmp_path, zk_hosts, np=2, environment=OPEN, samples=320, epochs=2) as job:
        job.wait_for_step(3)
        with job.store() as store:
            before = whole(job, store)
            expire(job, store, before.members)
            job.wait_for_progress(3)
            after = whole(job, store)
        same_workers(before, after)
        assert term(after) > term(before)
        reports = job.prove(workers=2)
    assert [len(report["rings"]) for report in reports] == [1, 1]
    assert longest_stall(reports) < 3.0


@pytest.mark.chaos
def test_sessions_expire_one_by_one_and_again_all_at_once(tmp_path: Path, zk_hosts: str) -> None:
    with scenario(tmp_path, zk_hosts, np=3, environment=OPEN) as job:
        job.wait_for_step(3)
        with job.store() as store:
            first = now = whole(job, store)
            assert now.leader is not None
            led = now.leader.worker
            for member in sorted(now.members, key=lambda m: m.id == led):  # the leader's last
                expire(job, store, [member])
                job.wait_for_progress(2)
                before, now = now, whole(job, store)
                same_workers(first, now)
                assert term(now) == term(before) + (member.id == led)
            for _ in range(3):
                expire(job, store, now.members)
                job.wait_for_progress(2)
                now = whole(job, store)
                same_workers(first, now)
            assert term(now) > term(before)
        reports = job.prove(workers=3)
    assert [len(report["rings"]) for report in reports] == [1, 1, 1]
    assert longest_stall(reports) < 3.0


@pytest.mark.chaos
def test_sessions_expire_while_a_newcomer_joins(tmp_path: Path, zk_hosts: str) -> None:
    """The newcomer's too, again and again until it is in: it joins under its first id."""
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, environment=OPEN) as job:
        job.wait_for_step(3)
        with job.store() as store:
            before = whole(job, store)
            job.scale(3)
            job.until(lambda: has_come_up(store), "a newcomer that is ready")
            for _ in range(3):
                expire(job, store, store.snapshot().members)
            job.wait_for_size(3)
            after = whole(job, store)
        assert [m.id for m in after.members] == [0, 1, 2]
        assert [m.attempt_id for m in after.members[:2]] == [m.attempt_id for m in before.members]
        assert dict(after.evicted) == {}
        reports = job.prove(workers=3)
    assert longest_stall(reports) < 5.0
