"""The nodes of a dead worker are removed, and never those of another start of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from edl.records import Member
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import CHILDREN, Read, encode
from edl.zookeeper.store import MemberNodes

PATHS = JobPaths("digits")
OWN = PATHS.member(3)
CANDIDATE = f"{PATHS.election}/w3-token-0000000001"
MEMBER = Member(3, "alpha", 0, "127.0.0.1", 1, 2, "one")


class Session:
    def __init__(self, member: Member | None) -> None:
        stat = SimpleNamespace(version=0)
        self.member = None if member is None else (encode(member.to_json()), stat)
        self.removed: list[str] = []

    def read_all(self, what: str, reads: Sequence[Read]) -> list[Any]:
        names = [CANDIDATE.rsplit("/", 1)[1], "w30-token-0000000002"]
        return [names if read.method == CHILDREN else self.member for read in reads]

    def transact(self, what: str, build: Callable[[Any], None]) -> None:
        build(SimpleNamespace(check=lambda path, version: None, delete=self.removed.append))


@pytest.mark.parametrize(
    ("member", "attempt_id", "removed"),
    [(MEMBER, "one", [OWN, CANDIDATE]), (None, "one", [CANDIDATE]), (MEMBER, "another", [])],
)
def test_only_the_start_that_has_ended_loses_its_nodes(
    member: Member | None, attempt_id: str, removed: list[str]
) -> None:
    session = Session(member)
    nodes: Any = SimpleNamespace(session=session, paths=PATHS, run="run")
    MemberNodes(nodes).remove(3, attempt_id)
    assert session.removed == removed
