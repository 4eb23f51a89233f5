"""Keep the history of a cluster in an SQLite file, which is filled from the cluster's event log.

The file may be deleted at any time: it is then made again from the events that ZooKeeper still has,
the newest 10,000. Several processes of a user may fill and read one file, also on several machines
that share the user's home directory.

Clusters of one name, in several ZooKeepers or one after another, have files of their own, beside
each other. A file says in the table ``cluster`` which one it is of.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from edl import config
from edl.cluster.client.access import is_on_network
from edl.cluster.client.client import Cluster
from edl.cluster.history import (
    AuditEntry,
    EventOutcome,
    JobHistory,
    JobHistoryState,
    SlotInterval,
    missed,
    replayed,
)
from edl.cluster.lifecycle import ClusterEvent
from edl.errors import DataError, EdlError
from edl.zookeeper.access import CLUSTERS

logger = logging.getLogger(__name__)
FORMAT = 1  # of the file; one of another format is made again
LOCKED_S = 20.0  # for another process to write what it has read
RETRY_S = 0.01  # between two tries to get the file alone
# If others are faster twice, a call is done: the second one has read the log after it began.
FILLS = 2
KEPT_S = 365 * 86400.0  # what ended so long before the newest event is removed
MAX_ROWS = 1000  # of one answer
ReadEvents = Callable[[int], Sequence[tuple[int, ClusterEvent]]]
"""Returns the events of a cluster with a number above the given one, the oldest first."""

_FIRST = "begin_s, submission, host"
_LAST = "begin_s DESC, submission DESC, host DESC"
_TABLES = """
CREATE TABLE log (number INTEGER NOT NULL, event TEXT NOT NULL);
CREATE TABLE jobs (
    submission INTEGER PRIMARY KEY, job TEXT NOT NULL, ended_s REAL NOT NULL, record TEXT NOT NULL
);
CREATE INDEX jobs_by_name ON jobs (job);
CREATE INDEX jobs_by_end ON jobs (ended_s);
CREATE TABLE intervals (
    submission INTEGER NOT NULL, job TEXT NOT NULL, host TEXT NOT NULL, slots INTEGER NOT NULL,
    begin_s REAL NOT NULL, end_s REAL NOT NULL
);
CREATE INDEX intervals_by_end ON intervals (end_s);
CREATE TABLE audit (number INTEGER PRIMARY KEY, job TEXT NOT NULL, time_s REAL NOT NULL,
    record TEXT NOT NULL);
"""
_OWNER = "CREATE TABLE IF NOT EXISTS cluster (uid TEXT NOT NULL)"  # an older edl makes none


def history_path(cluster: str) -> Path:
    return config.state_dir() / CLUSTERS / cluster / "history.sqlite"


class HistoryFile:
    """The file with the history of a cluster; until `fill` finds it, it is read as empty."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._chosen: Path | None = None
        self._uid = ""  # of the cluster that the file was chosen for

    @property
    def is_chosen(self) -> bool:
        """Whether `fill` has found or made the cluster's file; until then nothing is read."""
        return self._chosen is not None

    def fill(self, read: ReadEvents, uid: str) -> int:
        if uid != self._uid:
            self._chosen, self._uid = None, uid
        for path in self._paths(uid):
            with _opened(path) as db:
                if self._chosen is None and _owner(db) == uid:
                    self._chosen = path  # it is read also if the events cannot be
                added = _filled(db, read, uid, self._clock)
            if added is not None:
                self._chosen = path
                return added
        return 0

    def _paths(self, uid: str) -> list[Path]:
        beside: list[Path] = []
        stem = f"{self._path.stem}-{uid}"
        while (path := self._path.with_name(f"{stem}-{len(beside) + 1}.sqlite")).exists():
            beside.append(path)
        return [*reversed(beside), self._path, path]

    def jobs(
        self, now_s: float, job: str | None = None, since_s: float = 0.0, most: int = MAX_ROWS
    ) -> tuple[JobHistory, ...]:
        where, values = _where(
            {"job = ?": job, "(ended_s = 0 OR ended_s >= ?)": since_s, "submission >= ?": 0}
        )
        rows = self._read(
            f"SELECT record FROM jobs WHERE {where} ORDER BY submission DESC LIMIT ?",
            (*values, most),
        )
        return tuple(JobHistoryState.from_json(json.loads(row[0])).until(now_s) for row in rows)

    def slots(
        self,
        begin_s: float,
        end_s: float,
        job: str | None = None,
        most: int = MAX_ROWS,
        is_newest: bool = False,
    ) -> tuple[SlotInterval, ...]:
        """Return who had which slots between two times, the earliest first: a Gantt chart."""
        where, values = _where({"job = ?": job, "end_s > ?": begin_s, "begin_s < ?": end_s})
        rows = self._read(
            "SELECT submission, job, host, slots, begin_s, end_s FROM intervals "
            f"WHERE {where} ORDER BY {_LAST if is_newest else _FIRST} LIMIT ?",
            (*values, most),
        )
        where, values = _where({"job = ?": job, "ended_s = ?": 0.0})
        running = self._read(f"SELECT record FROM jobs WHERE {where}", values)
        now = [
            one
            for row in running
            for one in JobHistoryState.from_json(json.loads(row[0])).open_intervals()
            if one.begin_s < end_s
        ]
        found = [*(SlotInterval(*row) for row in rows), *now]
        found.sort(key=lambda one: (one.begin_s, one.submission, one.host))
        return tuple(found[-most:] if is_newest else found[:most])

    def audit(
        self, after: int = -1, job: str | None = None, most: int = MAX_ROWS
    ) -> tuple[AuditEntry, ...]:
        where, values = _where({"job = ?": job, "number > ?": after})
        rows = self._read(
            f"SELECT record FROM audit WHERE {where} ORDER BY number LIMIT ?", (*values, most)
        )
        return tuple(AuditEntry.from_json(json.loads(row[0])) for row in rows)

    def _read(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        chosen = self._chosen
        with _opened(chosen or self._path) as db:
            return db.execute(query, values).fetchall() if chosen else []


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        db = _connected(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise _unusable(path, error) from error
        _remove(path)  # it is no SQLite file
        db = _connected(path)
    with closing(db):
        try:
            yield db
        except sqlite3.Error as error:
            raise _unusable(path, error) from error


def _connected(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the history in {path} cannot be kept: {error.strerror}; let this user "
            "write there, or set XDG_STATE_HOME to another directory"
        ) from None
    db = sqlite3.connect(path, timeout=LOCKED_S, isolation_level=None)
    try:
        _choose_journal(db, is_on_network(path.parent))
        if db.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
            with _transaction(db):
                if db.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
                    _make(db)
        db.execute(_OWNER)
    except BaseException:
        db.close()
        raise
    return db


def _choose_journal(db: sqlite3.Connection, is_shared: bool) -> None:
    # A write-ahead log lets others read while one writes. Its index is in memory that the processes
    # of one machine share: written by several, as on NFS, the file would be damaged.
    mode = "DELETE" if is_shared else "WAL"
    deadline = time.monotonic() + LOCKED_S
    # Who changes it needs the file alone: often SQLite does not wait, but says that it is locked.
    while True:
        try:
            db.execute(f"PRAGMA journal_mode = {mode}")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
    if not is_shared:
        db.execute("PRAGMA synchronous = NORMAL")  # a lost transaction is replayed again


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _unusable(path: Path, error: sqlite3.Error) -> DataError:
    return DataError(
        f"the history in {path} cannot be used: {error}; if the disk has room, delete "
        "that file: it is made again from the cluster's events"
    )


def _filled(
    db: sqlite3.Connection, read: ReadEvents, uid: str, clock: Callable[[], float]
) -> int | None:
    """Add new events of a cluster to a file, if it is that cluster's; return how many were new."""
    for _ in range(FILLS):
        if _owner(db) not in (None, uid):
            return None
        known = _last(db)
        events, has_gap = read(-1) if known is None else (), False
        if known is not None:
            # The last one again: it tells whether the file was made from this log.
            again = list(read(known[0] - 1))
            is_there = bool(again) and again[0][0] == known[0]
            if not again or (is_there and _text(again[0][1]) != known[1]):
                return None
            # Without it, the log has lost events since then.
            events, has_gap = again[1:] if is_there else again, not is_there
        with _transaction(db):
            owner = _owner(db)
            if _last(db) != known or owner not in (None, uid):
                continue
            if owner is None and has_gap:
                return None  # whose events the file has, nobody can tell
            if owner is None:
                db.execute("INSERT INTO cluster VALUES (?)", (uid,))
            if has_gap:
                _end_all(db)
            _add(db, events, clock())
            return len(events)
    return 0


def _owner(db: sqlite3.Connection) -> str | None:
    found: tuple[str] | None = db.execute("SELECT uid FROM cluster").fetchone()
    return None if found is None else found[0]


def _last(db: sqlite3.Connection) -> tuple[int, str] | None:
    found: tuple[int, str] | None = db.execute("SELECT number, event FROM log").fetchone()
    return found


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Write all that is written in the block, or none of it; others who write wait."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _make(db: sqlite3.Connection) -> None:
    named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    for (name,) in db.execute(named).fetchall():
        db.execute(f'DROP TABLE "{name}"')
    for statement in (_OWNER, *_TABLES.split(";")):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {FORMAT}")


def _add(db: sqlite3.Connection, events: Sequence[tuple[int, ClusterEvent]], now_s: float) -> None:
    if not events:
        return
    rows = db.execute("SELECT record FROM jobs WHERE ended_s = 0").fetchall()
    loaded = [JobHistoryState.from_json(json.loads(row[0])) for row in rows]
    living = {one.history.job: one for one in loaded}
    changed: dict[int, JobHistoryState] = {}
    for number, event in events:
        found = replayed(living.get(event.job), number, event)
        _write_rest(db, found)
        for job in found.jobs:
            changed[job.history.submission] = job
            if job.is_over:
                living.pop(job.history.job, None)
            else:
                living[job.history.job] = job
    _write_jobs(db, changed)
    number, event = events[-1]
    db.execute("DELETE FROM log")
    db.execute("INSERT INTO log VALUES (?, ?)", (number, _text(event)))
    old_s = min(event.time_s, now_s) - KEPT_S  # the clock of the event's machine may be ahead
    db.execute("DELETE FROM jobs WHERE ended_s > 0 AND ended_s < ?", (old_s,))
    db.execute("DELETE FROM intervals WHERE end_s < ?", (old_s,))
    db.execute("DELETE FROM audit WHERE time_s < ?", (old_s,))


def _end_all(db: sqlite3.Connection) -> None:
    """End all jobs that have not ended with what is known of them: events are missing."""
    for (text,) in db.execute("SELECT record FROM jobs WHERE ended_s = 0").fetchall():
        found = missed(JobHistoryState.from_json(json.loads(text)))
        _write_rest(db, found)
        _write_jobs(db, {job.history.submission: job for job in found.jobs})


def _write_jobs(db: sqlite3.Connection, jobs: Mapping[int, JobHistoryState]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?)",
        (
            (number, one.history.job, one.history.ended_s, json.dumps(one.to_json()))
            for number, one in jobs.items()
        ),
    )


def _write_rest(db: sqlite3.Connection, outcome: EventOutcome) -> None:
    db.executemany(
        "INSERT INTO intervals VALUES (?, ?, ?, ?, ?, ?)",
        (
            (one.submission, one.job, one.host, one.slots, one.begin_s, one.end_s)
            for one in outcome.intervals
        ),
    )
    if outcome.audit is not None:
        one = outcome.audit
        row = one.number, one.job, one.time_s, json.dumps(one.to_json())
        db.execute("INSERT OR REPLACE INTO audit VALUES (?, ?, ?, ?)", row)


def _where(conditions: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    chosen = {text: value for text, value in conditions.items() if value is not None}
    return " AND ".join(chosen), tuple(chosen.values())


def _text(event: ClusterEvent) -> str:
    return json.dumps(event.to_json(), sort_keys=True)


# ------------------------------------------------------------
# Keep the history beside a controller, in a thread of its own.


FILL_S = 10.0  # between two looks at the event log; it keeps 10,000 events
END_S = 2.0  # for a look that is under way to end; without it, the next one does the same


class HistoryThread:
    def __init__(
        self,
        cluster: Cluster,
        file: HistoryFile,
        say: Callable[[str], None],
        fill_s: float = FILL_S,
    ) -> None:
        self._cluster = cluster
        self._file = file
        self._say = say
        self._fill_s = fill_s
        self._said = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="edl-history", daemon=True)

    def __enter__(self) -> HistoryThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(END_S)

    def _keep(self) -> None:
        while not self._ends.wait(self._fill_s):
            try:
                with self._cluster as cluster:
                    while not self._ends.is_set():
                        self._file.fill(lambda after: cluster.events(after=after), cluster.uid)
                        self._said = ""
                        self._ends.wait(self._fill_s)
            except EdlError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    self._say(f"cannot write the history: {error}")
            except Exception:  # a defect here must not end the controller's process
                logger.exception("the history cannot be filled")
