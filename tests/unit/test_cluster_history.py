"""The history of a cluster, as it follows from the event log."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl.cluster.client import history_file
from edl.cluster.client.history_file import KEPT_S, HistoryFile, HistoryThread
from edl.cluster.history import MISSED, REPLACED, JobHistory, SlotInterval
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeResult, LifeState
from edl.errors import CoordinationError, DataError, EdlError

Numbered = tuple[int, ClusterEvent]
UID = "5-1763632000000"


class Log:
    """An event log that keeps the newest events."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.events: list[Numbered] = []
        self.start_s = start_s
        self.reads: list[int] = []

    def add(self, at_s: float, event: ClusterEvent) -> None:
        number = self.events[-1][0] + 1 if self.events else 0
        self.events.append((number, replace(event, time_s=self.start_s + at_s)))

    def submitted(self, at_s: float, job: str) -> None:
        kind = ClusterEventKind.SUBMITTED
        self.add(at_s, ClusterEvent(0.0, kind, f"job {job} was submitted", job, by="ann@a"))

    def state(
        self, at_s: float, job: str, state: LifeState, result: LifeResult | None = None
    ) -> None:
        kind = ClusterEventKind.STATE
        self.add(at_s, ClusterEvent(0.0, kind, f"-> {state}", job, state=state, result=result))

    def slots(self, at_s: float, job: str, **slots: int) -> None:
        kind = ClusterEventKind.SLOTS
        self.add(at_s, ClusterEvent(0.0, kind, "slots", job, slots=slots))

    def read(self, after: int) -> Sequence[Numbered]:
        self.reads.append(after)
        return [one for one in self.events if one[0] > after]


@pytest.fixture
def file(tmp_path: Path) -> HistoryFile:
    return HistoryFile(tmp_path / "lab" / "history.sqlite")


def story(log: Log) -> None:
    log.submitted(0, "a")
    log.state(1, "a", LifeState.STARTING)
    log.slots(1, "a", h0=2)
    log.state(3, "a", LifeState.RUNNING)
    log.slots(11, "a", h0=2, h1=1)
    log.submitted(12, "b")
    log.slots(21, "a", h0=1, h1=1)
    log.state(22, "b", LifeState.STARTING)
    log.slots(22, "b", h0=1)
    log.state(31, "a", LifeState.ENDED, LifeResult.FINISHED)
    log.slots(31, "a")


A_INTERVALS = (
    SlotInterval(0, "a", "h0", 2, 1001.0, 1021.0),
    SlotInterval(0, "a", "h1", 1, 1011.0, 1031.0),
    SlotInterval(0, "a", "h0", 1, 1021.0, 1031.0),
)


def test_a_story(file: HistoryFile) -> None:
    log = Log()
    story(log)
    assert file.fill(log.read, UID) == len(log.events)
    b, a = file.jobs(1042.0)
    assert a == JobHistory(
        0, "a", "ann@a", 1000.0, 1001.0, 1031.0, LifeState.ENDED, LifeResult.FINISHED, "-> ended",
        1, 2 * 20 + 20 + 10,
    )  # fmt: skip
    assert (b.job, b.state, b.ended_s, b.slot_s) == ("b", LifeState.STARTING, 0.0, 20.0)
    running = SlotInterval(5, "b", "h0", 1, 1022.0, None)
    assert file.slots(0.0, 2000.0) == (*A_INTERVALS, running)
    assert file.slots(1025.0, 1030.0) == (*A_INTERVALS[1:], running)
    assert file.slots(0.0, 2000.0, "a") == A_INTERVALS
    assert [(one.number, one.by, one.job) for one in file.audit()] == [
        (0, "ann@a", "a"),
        (5, "ann@a", "b"),
    ]
    assert file.jobs(1042.0, since_s=1032.0) == (b,)
    assert [one.job for one in file.audit(after=0)] == ["b"]


def test_only_new_events_are_read(file: HistoryFile) -> None:
    log = Log()
    story(log)
    whole = list(log.events)
    for end in range(len(whole) + 1):
        log.events = whole[:end]
        file.fill(log.read, UID)
    assert log.reads[-1] == len(whole) - 3  # the last one again, which shows that it is this log
    assert file.slots(0.0, 2000.0, "a") == A_INTERVALS
    assert [one.slot_s for one in file.jobs(1042.0)] == [20.0, 70.0]


def test_several_fill_one_file(tmp_path: Path) -> None:
    """A controller, an API and a command, each with a file object of its own."""
    log, path = Log(), tmp_path / "history.sqlite"
    story(log)
    with ThreadPoolExecutor(6) as threads:
        filled = list(threads.map(lambda _: HistoryFile(path).fill(log.read, UID), range(24)))
    assert sorted(filled) == [0] * 23 + [len(log.events)]
    file = HistoryFile(path)
    assert file.audit() == (), "whose the file is, is not known yet"
    assert file.fill(log.read, UID) == 0
    assert file.slots(0.0, 2000.0, "a") == A_INTERVALS
    assert len(file.audit()) == 2


def test_a_file_that_another_process_is_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite does not wait for the transaction of another one that begins to write a new file."""
    log, path, pauses = Log(), tmp_path / "history.sqlite", list[float]()
    story(log)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        def sleep(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 3:
                other.execute("COMMIT")

        waits = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
        monkeypatch.setattr(history_file, "time", waits)
        assert HistoryFile(path).fill(log.read, UID) == len(log.events)
    assert pauses == [history_file.RETRY_S] * 3


def test_a_slow_zookeeper_holds_up_nobody_else(file: HistoryFile) -> None:
    log = Log()
    story(log)
    others = []

    def slow(after: int) -> Sequence[Numbered]:
        found = log.read(after)
        if not others:
            others.append(file.fill(log.read, UID))
            assert len(file.jobs(1042.0)) == 2
        return found

    assert file.fill(slow, UID) == 0, "the other one has added all"
    assert others == [len(log.events)]
    assert file.slots(0.0, 2000.0, "a") == A_INTERVALS
    assert [one.slot_s for one in file.jobs(1042.0)] == [20.0, 70.0], "nothing counts twice"


def test_who_always_comes_second_ends(file: HistoryFile) -> None:
    log = Log()

    def slow(after: int) -> Sequence[Numbered]:
        found = log.read(after)
        log.submitted(len(log.events), f"j{len(log.events)}")
        file.fill(log.read, UID)
        return found

    assert file.fill(slow, UID) == 0
    assert len(file.audit()) == len(log.events) == 2


def test_a_deleted_file_is_made_again(file: HistoryFile, tmp_path: Path) -> None:
    log = Log()
    story(log)
    file.fill(log.read, UID)
    before = file.jobs(1042.0), file.slots(0.0, 2000.0), file.audit()
    (path,) = tmp_path.glob("lab/*.sqlite")
    path.unlink()
    assert file.jobs(1042.0) == ()
    file.fill(log.read, UID)
    assert (file.jobs(1042.0), file.slots(0.0, 2000.0), file.audit()) == before


@pytest.mark.parametrize("content", ["format", "text"])
def test_another_file_is_replaced(file: HistoryFile, tmp_path: Path, content: str) -> None:
    log = Log()
    story(log)
    path = tmp_path / "lab" / "history.sqlite"
    path.parent.mkdir()
    if content == "text":
        path.write_text("this is no database, however long it is" * 100)
    else:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE jobs (old INTEGER)")
            db.execute("PRAGMA user_version = 99")
        db.close()
    file.fill(log.read, UID)
    assert len(file.jobs(1042.0)) == 2


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").mkdir()
    with pytest.raises(DataError, match="delete that file: it is made again"):
        HistoryFile(tmp_path / "history.sqlite").fill(Log().read, UID)


def test_machines_that_share_a_file_share_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's write-ahead log needs that; on NFS it would damage the file."""
    path = tmp_path / "history.sqlite"
    log = Log()
    log.submitted(0, "a")
    modes = []
    for shared in (False, True):
        monkeypatch.setattr(history_file, "is_on_network", lambda directory, is_=shared: is_)
        log.submitted(1, f"b{shared}")
        HistoryFile(path).fill(log.read, UID)
        with closing(sqlite3.connect(path)) as db:
            modes += db.execute("PRAGMA journal_mode").fetchone()
    assert modes == ["wal", "delete"], "a file of before is changed"
    file = HistoryFile(path)
    file.fill(log.read, UID)
    assert {one.job for one in file.jobs(2000.0)} == {"a", "bFalse", "bTrue"}
    assert {one.name for one in tmp_path.iterdir()} == {"history.sqlite"}


def test_several_fill_one_file_of_several_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_file, "is_on_network", lambda directory: True)
    test_several_fill_one_file(tmp_path)


def test_missed_events_end_what_was_running(file: HistoryFile) -> None:
    log = Log()
    story(log)
    file.fill(log.read, UID)
    log.state(40, "b", LifeState.HALTING)
    log.slots(50, "b", h1=2)
    log.state(60, "b", LifeState.ENDED, LifeResult.FAILED)
    log.events = log.events[-2:]  # the one before was removed before it was read
    file.fill(log.read, UID)
    later, b, _ = file.jobs(1100.0)
    assert (b.job, b.ended_s, b.result, b.reason) == ("b", 1022.0, None, MISSED)
    assert (later.job, later.by, later.submitted_s, later.slot_s) == ("b", "", 0.0, 20.0)
    assert later.result is LifeResult.FAILED


def test_what_ended_long_ago_is_removed(file: HistoryFile) -> None:
    log = Log()
    story(log)
    log.submitted(30 + KEPT_S, "c")
    file.fill(log.read, UID)
    assert [one.job for one in file.jobs(1042.0)] == ["c", "b", "a"]
    log.submitted(32 + KEPT_S, "d")
    file.fill(log.read, UID)
    assert [one.job for one in file.jobs(1042.0)] == ["d", "c", "b"]
    assert [one.job for one in file.slots(0.0, 2000.0)] == ["b"]
    assert [one.job for one in file.audit()] == ["c", "d"]


def test_a_clock_that_is_years_ahead_removes_nothing(tmp_path: Path) -> None:
    file, log = HistoryFile(tmp_path / "history.sqlite", clock=lambda: 1042.0), Log()
    story(log)
    log.submitted(2 * KEPT_S, "c")
    file.fill(log.read, UID)
    assert [one.job for one in file.jobs(1042.0)] == ["c", "b", "a"]
    assert file.slots(0.0, 2000.0, "a") == A_INTERVALS
    assert [one.job for one in file.audit()] == ["a", "b", "c"]


def names(file: HistoryFile) -> set[str]:
    return {one.job for one in file.jobs(6000.0)}


def test_clusters_of_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    """A production cluster and a trial one of another ZooKeeper, both called main."""
    path, log, trial = tmp_path / "history.sqlite", Log(), Log(5000.0)
    story(log)
    trial.submitted(0, "toy")
    for _ in range(2):
        ours, theirs = HistoryFile(path), HistoryFile(path)
        ours.fill(log.read, UID)
        theirs.fill(trial.read, "6-0")
        assert (names(ours), names(theirs)) == ({"a", "b"}, {"toy"})
        trial.submitted(1, "toy")
        log.submitted(50, "a")
        log.events = log.events[5:]  # what the file still knows
    assert ours.slots(0.0, 2000.0, "a")[:3] == A_INTERVALS


def test_a_cluster_that_is_begun_again_leaves_the_old_history_beside(tmp_path: Path) -> None:
    path, log, again = tmp_path / "history.sqlite", Log(), Log(5000.0)
    story(log)
    file = HistoryFile(path)
    file.fill(log.read, UID)
    file.fill(again.read, "6-0")  # the same dashboard sees it
    assert file.jobs(6000.0) == ()
    again.submitted(0, "new")
    file.fill(again.read, "6-0")
    assert names(file) == {"new"}
    file.fill(log.read, UID)
    assert names(file) == {"a", "b"}


def test_another_log_of_the_cluster_clears_nothing(file: HistoryFile, tmp_path: Path) -> None:
    """As when ZooKeeper is restored from a backup."""
    log, restored = Log(), Log(5000.0)
    story(log)
    file.fill(log.read, UID)
    for number in range(20):
        restored.submitted(number, f"j{number}")
    for read, jobs in ((restored.read, 20), (log.read, 2), (restored.read, 20)):
        file.fill(read, UID)
        assert len(file.jobs(6000.0)) == jobs
    assert len([*tmp_path.glob("lab/*.sqlite")]) == 2


def test_a_file_of_an_older_edl_is_taken_over_by_its_cluster(tmp_path: Path) -> None:
    path, log, trial = tmp_path / "history.sqlite", Log(), Log(5000.0)
    story(log)
    HistoryFile(path).fill(log.read, UID)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE cluster")
    db.close()
    trial.submitted(0, "toy")
    ours, theirs = HistoryFile(path), HistoryFile(path)
    theirs.fill(trial.read, "6-0")
    assert ours.fill(log.read, UID) == 0
    assert (names(ours), names(theirs)) == ({"a", "b"}, {"toy"})
    assert [one.name for one in tmp_path.glob("*.sqlite") if one != path] == [
        "history-6-0-1.sqlite"
    ]


def test_a_file_of_an_older_edl_is_not_taken_by_a_log_that_begins_later(tmp_path: Path) -> None:
    """A log without the file's last event may be another cluster's: both would be mixed."""
    path, log, trial = tmp_path / "history.sqlite", Log(), Log(5000.0)
    log.submitted(0, "a")
    HistoryFile(path).fill(log.read, UID)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE cluster")
    db.close()
    for number in range(3):
        trial.submitted(number, "toy")
    trial.events = trial.events[2:]  # as one of 10,000 events
    ours, theirs = HistoryFile(path), HistoryFile(path)
    for _ in range(2):
        theirs.fill(trial.read, "6-0")
        assert names(theirs) == {"toy"}
    ours.fill(log.read, UID)
    assert names(ours) == {"a"}


def test_a_history_that_cannot_be_filled_shows_what_it_has(tmp_path: Path) -> None:
    """A process has just started, and ZooKeeper is away; or it is asked for another cluster."""
    path, log = tmp_path / "history.sqlite", Log()
    story(log)
    HistoryFile(path).fill(log.read, UID)
    fresh = HistoryFile(path)
    assert names(fresh) == set()

    def away(_: int) -> Sequence[Numbered]:
        raise CoordinationError("ZooKeeper is away")

    for uid, shown in ((UID, {"a", "b"}), ("6-0", set())):
        with pytest.raises(CoordinationError):
            fresh.fill(away, uid)
        assert names(fresh) == shown


def test_a_name_is_used_again(file: HistoryFile) -> None:
    log = Log()
    story(log)
    log.submitted(40, "a")
    log.submitted(45, "b")  # its end was never logged
    file.fill(log.read, UID)
    assert [(one.job, one.submission, one.reason) for one in file.jobs(1100.0)][:3] == [
        ("b", 12, "job b was submitted"),
        ("a", 11, "job a was submitted"),
        ("b", 5, REPLACED),
    ]
    assert [one.submission for one in file.jobs(1100.0, "a")] == [11, 0]


def test_clocks_that_differ_make_no_negative_time(file: HistoryFile) -> None:
    log = Log()
    log.submitted(10, "a")
    log.slots(20, "a", h0=2)
    log.slots(15, "a", h0=1)  # another leader's clock
    log.slots(18, "a")
    file.fill(log.read, UID)
    assert file.slots(0.0, 2000.0) == ()
    assert file.jobs(1100.0)[0].slot_s == 0.0


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_the_clock_of_a_user_is_not_the_leaders(file: HistoryFile, ahead_s: float) -> None:
    log = Log(start_s=10_000.0)
    log.submitted(0 + ahead_s, "a")
    log.state(1, "a", LifeState.STARTING)
    log.slots(1, "a", h0=2)
    log.state(61, "a", LifeState.ENDED, LifeResult.FINISHED)
    log.slots(61, "a")
    log.submitted(62 + ahead_s, "b")
    log.state(63, "b", LifeState.STARTING)
    log.slots(63, "b", h0=2)
    log.submitted(73 + ahead_s, "b")  # its end was never logged
    file.fill(log.read, UID)
    assert file.slots(0.0, 20_000.0) == (SlotInterval(0, "a", "h0", 2, 10_001.0, 10_061.0),)
    [a] = file.jobs(20_000.0, "a")
    assert (a.started_s, a.ended_s, a.slot_s) == (10_001.0, 10_061.0, 120.0)
    assert a.submitted_s == min(10_000.0 + ahead_s, a.started_s)
    _, b = file.jobs(20_000.0, "b")
    assert (b.ended_s, b.slot_s, b.reason) == (10_063.0, 0.0, REPLACED)


def test_missed_events_of_a_job_that_was_only_submitted(file: HistoryFile) -> None:
    log = Log()
    log.submitted(0, "a")
    file.fill(log.read, UID)
    log.submitted(9, "x")
    log.submitted(10, "b")
    log.events = log.events[-1:]
    file.fill(log.read, UID)
    [a] = file.jobs(1100.0, "a")
    assert (a.submitted_s, a.ended_s, a.reason) == (1000.0, 1000.0, MISSED)


def test_events_of_an_older_edl_say_nothing(file: HistoryFile) -> None:
    log = Log()
    log.submitted(0, "a")
    kind = ClusterEventKind.STATE
    log.add(1, ClusterEvent(0.0, kind, "queued -> starting: it may", "a"))
    log.add(2, ClusterEvent(0.0, ClusterEventKind.SLOTS, "slots h0: 0, 1", "a"))
    file.fill(log.read, UID)
    assert file.jobs(1100.0)[0].state is LifeState.QUEUED


class FakeCluster:
    """The events of a log, or an error, for whoever asks the cluster."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.error: EdlError | None = None
        self.refused = 0

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    uid = UID

    def events(self, after: int) -> Sequence[Numbered]:
        if self.error is not None:
            self.refused += 1
            raise self.error
        return self.log.read(after)


def test_the_keeper_adds_what_is_new_and_says_once_what_is_wrong(file: HistoryFile) -> None:
    log, said = Log(), list[str]()
    story(log)
    cluster = FakeCluster(log)

    def until(condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 30.0
        while not condition():
            assert time.monotonic() < deadline_s
            time.sleep(0.002)

    with HistoryThread(cluster, file, said.append, fill_s=0.001):  # type: ignore[arg-type]
        until(lambda: len(file.jobs(1042.0)) == 2)
        reads, cluster.error = len(log.reads), CoordinationError("ZooKeeper is away")
        until(lambda: cluster.refused >= 3)
        cluster.error = None
        log.submitted(50, "c")
        until(lambda: len(file.jobs(1042.0)) == 3)
        assert len(log.reads) > reads
    assert said == ["cannot write the history: ZooKeeper is away"]
