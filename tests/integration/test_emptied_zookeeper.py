"""ZooKeeper comes back empty, or its tree is removed: the job trains on and writes itself again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from horovodrun import WORKER, HorovodrunScenario
from known import DIGITS
from made import make_job
from scenario import Scenario, scenario

from edl.errors import EdlError, UnknownJob
from edl.events import Event, JobRestoredDetails
from edl.records import Generation, JobState, Leader, RingMember
from edl.testing.zookeeper import ensemble
from edl.zookeeper.reads import children, delete_node, encode
from edl.zookeeper.session import Session
from edl.zookeeper.store import NUMBERS, JobStore

pytestmark = [pytest.mark.integration, pytest.mark.slow]
HERE = "127.0.0.1"
RESTORED = Event(1.0, 3, 7, "w4 wrote it again", JobRestoredDetails("w4"))


def restored(job: Scenario, before: dict[str, Any]) -> dict[str, Any]:
    """The same processes are in the same ring; return the event that the job is known."""
    now = job.wait(
        lambda now: (
            len(now["members"]) == len(before["members"])
            and now["step"] > before["step"]
            and not now["away"]
        ),
        "the job",
    )
    pids = [{m["id"]: m["pid"] for m in status["members"]} for status in (before, now)]
    assert pids[0] == pids[1]
    assert now["generation"] == before["generation"]
    [event] = job.events("job_restored")
    assert event["reason"] == (
        f"ZooKeeper had lost the job and its events; {event['process']} wrote it again"
    )
    return event


def test_a_server_comes_back_empty(tmp_path: Path) -> None:
    with (
        ensemble(tmp_path, 1) as (server,),
        scenario(tmp_path, server.hosts, np=2, max_np=3) as job,
    ):
        job.wait_for_step(5)
        before = job.wait(lambda now: len(now["members"]) == 2, "2 members")
        server.kill()
        server.forget()
        server.start()
        restored(job, before)
        assert "ZooKeeper has lost the job" in job.output()
        job.scale(3)
        job.wait_for_size(3)
        job.prove(workers=3)


@pytest.mark.long
def test_the_jobs_tree_is_removed(tmp_path: Path, zk_hosts: str) -> None:
    """By hand, while all are connected; again, and once with the leader's death."""
    with scenario(tmp_path, zk_hosts, np=3) as job:
        job.wait_for_step(5)
        for _ in range(2):
            job.wait_for_progress()
            before = job.wait(lambda now: len(now["members"]) == 3, "3 members")
            with job.store() as store:
                store.delete()
            restored(job, before)
        leader = job.process(job.leader())
        with job.store() as store:
            store.delete()
        leader.kill()
        job.wait(lambda now: leader.pid not in {m["pid"] for m in now["members"]}, "death")
        job.wait_for_size(3)
        job.prove(workers=3)


@pytest.mark.long
def test_under_horovodrun_too(tmp_path: Path, zk_hosts: str) -> None:
    with scenario(
        tmp_path, zk_hosts, np=2, max_np=3, kind=HorovodrunScenario, shield=WORKER
    ) as job:
        job.wait_for_step(5)
        before = job.wait(lambda now: len(now["members"]) == 2, "2 members")
        with job.store() as store:
            store.delete()
        restored(job, before)
        job.scale(3)
        job.wait_for_size(3)
        job.prove(workers=3)


class TestWhatIsWritten:
    """Two processes of a job have read it; ZooKeeper loses it."""

    @pytest.fixture
    def stores(self, session: Session, zk_hosts: str) -> Iterator[tuple[JobStore, JobStore]]:
        with Session(zk_hosts, session_timeout_s=2.0, access=DIGITS) as second:
            stores = JobStore(session, "digits"), JobStore(second, "digits")
            stores[0].create(make_job(), {"alpha": 2})
            yield stores

    @staticmethod
    def lose(stores: tuple[JobStore, JobStore]) -> UnknownJob:
        """Both read it, then it is removed; what the next read says."""
        stores[0].snapshot()
        assert stores[0].nodes.run == stores[1].nodes.run
        stores[1].watch_generation(None)
        stores[0].delete()
        with pytest.raises(UnknownJob) as caught:
            stores[1].snapshot()
        return caught.value

    def test_it_is_as_it_was_and_numbers_go_on(self, stores: tuple[JobStore, JobStore]) -> None:
        one, other = stores
        members = (RingMember(4, "alpha", 0, HERE, 1),)
        ring = Generation(
            3, 2, members, 4, (), (), "why", "g3-ab", (RingMember(6, "beta", 0, HERE, 2),)
        )
        for path, record in ((one.paths.generation, ring), (one.paths.leader, Leader(2, 4))):
            data = encode(record.to_json())
            one.session.call("test", lambda c, p=path, d=data: c.set_async(p, d))
        gone = encode({"reason": "gone", "term": 2})
        path = one.paths.evicted_worker(9)
        one.session.call("test", lambda c: c.create_async(path, gone))
        one.events.add(RESTORED)
        before = one.snapshot()
        error = self.lose(stores)
        assert other.was_lost(error)
        assert other.write_again(RESTORED)
        assert not one.write_again(RESTORED)  # the first one counts
        assert one.snapshot() == before
        assert one.was_lost(error)  # and is there again: nothing that it is for is over
        assert other.members.new_id() == NUMBERS  # 4, 6 and 9 are known, 10 to others perhaps
        assert [number for number, _ in one.events.read(after=0)] == [NUMBERS]
        assert one.events.add(RESTORED) == NUMBERS + 1
        assert [number for number, _ in one.events.read(NUMBERS)] == [NUMBERS + 1]
        assert one.incarnation == (1, 1)

    def test_it_may_be_lost_again(self, stores: tuple[JobStore, JobStore]) -> None:
        for times in (1, 2, 3):
            self.lose(stores)
            assert stores[times % 2].write_again(RESTORED)
            assert [number for number, _ in stores[0].events.read()] == [times * NUMBERS]

    def test_what_has_ended_was_removed(self, stores: tuple[JobStore, JobStore]) -> None:
        stores[0].set_job_state(JobState.FINISHED, "trained 3 steps")
        assert not stores[1].was_lost(self.lose(stores))

    def test_another_job_has_the_name(self, stores: tuple[JobStore, JobStore]) -> None:
        error = self.lose(stores)
        JobStore(stores[0].session, "digits").create(make_job(), {"alpha": 2})
        assert not stores[1].was_lost(error)
        assert not stores[1].write_again(RESTORED)

    def test_who_has_never_read_it_has_lost_nothing(self, session: Session) -> None:
        store = JobStore(session, "digits")
        with pytest.raises(UnknownJob) as caught:
            store.snapshot()
        assert not store.was_lost(caught.value)

    def test_a_tree_that_is_being_removed_is_not_what_is_kept(
        self, stores: tuple[JobStore, JobStore]
    ) -> None:
        one, _ = stores
        before = one.snapshot()
        one.session.read_all(
            "test", [delete_node(one.paths.desired), delete_node(one.paths.assigned)]
        )
        with suppress(EdlError):
            one.snapshot()
        error = self.lose_rest(one)
        assert one.was_lost(error)
        assert one.write_again(RESTORED)
        assert one.snapshot() == before

    @staticmethod
    def lose_rest(store: JobStore) -> UnknownJob:
        store.delete()
        with pytest.raises(UnknownJob) as caught:
            store.snapshot()
        return caught.value


def test_who_was_away_for_longer_than_a_session_knows_nothing(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """A server refuses who has seen more than itself; one that is empty would do so for ever."""
    with ensemble(tmp_path, 1) as (server,), Session(server.hosts, 2.0) as session:
        for _ in range(50):
            session.call("test", lambda c: c.create_async("/n-", sequence=True))
        server.kill()
        server.forget()
        server.start()
        wait_until(lambda: session.connected and session.epoch == 2)
        assert session.read_all("test", [children("/")]) == [["zookeeper"]]
