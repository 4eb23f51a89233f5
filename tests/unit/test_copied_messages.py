"""What a process remembers of a job, and writes into an empty ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import make_job

from edl.events import Event, JobRestoredDetails
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import Read, children, encode
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

PATHS = JobPaths("digits")
RESTORED = Event(1.0, 3, 7, "w4 wrote it again", JobRestoredDetails("w4"))
SCRIPT = encode({"exchanges": [{"answer": ["mean"]}]})
LISTS = children("").method


class ZooKeeper:
    """A session with a ZooKeeper that has the fixed nodes of a job; it notes what is created.

    ``wakes`` has what is called when a node changes that was read, by path.
    """

    def __init__(self) -> None:
        self.nodes = dict.fromkeys(PATHS.fixed, b"")
        self.nodes |= {PATHS.job: encode(make_job().to_json()), PATHS.script: SCRIPT}
        self.nodes[f"{PATHS.run}/run"] = b""
        self.wakes: dict[str, Any] = {}
        self.created: dict[str, bytes] = {}

    def read_all(self, _: str, issues: Sequence[Read]) -> list[Any]:
        self.wakes |= {issue.path: issue.wake for issue in issues}
        return [
            [] if issue.method == LISTS else (self.nodes[issue.path], SimpleNamespace(version=0))
            for issue in issues
        ]

    client = SimpleNamespace(chroot="")

    def call(self, *_: Any, **__: Any) -> None:
        """Create the parents of all jobs."""

    def transact(self, _: str, build: Callable[[Any], None]) -> None:
        build(SimpleNamespace(create=self._create))

    def _create(self, path: str, data: bytes, **_: Any) -> None:
        assert path not in self.created
        self.created[path] = data


@pytest.mark.parametrize("read", [JobStore.watch_generation, JobStore.snapshot])
def test_what_a_script_has_exchanged_is_written_again(read: Callable[..., Any]) -> None:
    zookeeper, woken = ZooKeeper(), SimpleNamespace()
    store = JobStore(cast(Session, zookeeper), "digits")
    store.nodes.belong_to("run")
    read(store, woken)
    assert store.write_again(RESTORED)
    assert zookeeper.created[PATHS.script] == SCRIPT
    assert zookeeper.wakes[PATHS.script] not in (woken, None), "kept, and no reason to read again"
