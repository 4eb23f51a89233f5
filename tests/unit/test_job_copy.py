"""What is written into an emptied ZooKeeper: the numbers there are above all that were used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from edl.events import Event, JobRestoredDetails
from edl.records import Generation, RingMember
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import decode, encode
from edl.zookeeper.store import NUMBERS, JobCopy

PATHS = JobPaths("digits")
EVENT = Event(1.0, 1, 7, "w0 wrote it again", JobRestoredDetails("w0"))
STAT = SimpleNamespace(version=0)
RING = Generation(1, 1, tuple(RingMember(n, "a", n, "127.0.0.1", 1) for n in (0, 1)), 0, (), (), "")


class Transaction:
    def __init__(self) -> None:
        self.created: dict[str, bytes] = {}

    def create(self, path: str, data: bytes, sequence: bool = False) -> None:
        self.created[path] = data


def written(events: bytes) -> dict[str, bytes]:
    contents = {PATHS.generation: encode(RING.to_json()), PATHS.events: events}
    copy = JobCopy(PATHS)
    copy.keep({path: (contents.get(path, b"{}"), STAT) for path in PATHS.describing}, ())
    transaction = Transaction()
    session: Any = SimpleNamespace(
        client=SimpleNamespace(chroot=""),
        call=lambda what, issue, repeat: True,
        transact=lambda what, build: build(transaction),
    )
    assert copy.write(session, "run", EVENT)
    return transaction.created


def test_workers_that_the_writer_has_not_read_of_keep_their_ids() -> None:
    """A worker that has not joined yet has an id, and is in no generation."""
    nodes = written(b"")
    assert nodes[PATHS.generation] == encode(RING.to_json())
    assert decode(PATHS.ids, nodes[PATHS.ids]) == {"first": NUMBERS}


def test_the_numbers_rise_with_each_writing() -> None:
    nodes = written(encode({"first": 2 * NUMBERS}))
    for path in (PATHS.ids, PATHS.events):
        assert decode(path, nodes[path]) == {"first": 3 * NUMBERS}
