"""The node above all jobs is created in any chroot, also in one whose parents are missing."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create

from edl.errors import CoordinationError
from edl.zookeeper.kazoo_client import Client
from edl.zookeeper.nodes import ensure_shared
from edl.zookeeper.session import Session

JOBS = "/edl/jobs"


class Server(Client):
    """A client whose requests are answered at once, from a tree of nodes.

    Args:
        chroot: The chroot of the client.
        nodes: The nodes that exist.
        closed: Nodes in which nobody may create another one.
    """

    def __init__(self, chroot: str, nodes: set[str], closed: set[str]) -> None:
        super().__init__(hosts=f"127.0.0.1:1{chroot}")
        self.nodes = nodes | {"/"}
        self.closed = closed

    def _call(self, request: Any, pending: Any) -> None:
        parent = request.path.rsplit("/", 1)[0] or "/"
        if not isinstance(request, Create):
            pending.set("stat" if request.path in self.nodes else None)
        elif parent not in self.nodes:
            pending.set_exception(NoNodeError())
        elif parent in self.closed:  # ZooKeeper looks at this before it looks for the node
            pending.set_exception(NoAuthError())
        elif request.path in self.nodes:
            pending.set_exception(NodeExistsError())
        else:
            self.nodes.add(request.path)
            pending.set(request.path)


def ensured(
    monkeypatch: pytest.MonkeyPatch, chroot: str, nodes: set[str], *closed: str
) -> set[str]:
    server = Server(chroot, nodes, set(closed))
    session = Session(server.hosts)
    session._client = server
    monkeypatch.setattr(session, "_await_connection", lambda what, deadline: server)
    ensure_shared(session, "create a job", JOBS)
    return server.nodes - {"/"} - nodes


@pytest.mark.parametrize(
    ("chroot", "nodes", "created"),
    [
        ("", set(), {"/edl", JOBS}),
        ("/one", set(), {"/one", "/one/edl", "/one/edl/jobs"}),
        ("/a/b", set(), {"/a", "/a/b", "/a/b/edl", "/a/b/edl/jobs"}),
        ("/a/b/c", {"/a"}, {"/a/b", "/a/b/c", "/a/b/c/edl", "/a/b/c/edl/jobs"}),
        ("/a/b", {"/a", "/a/b", "/a/b/edl", "/a/b/edl/jobs"}, set()),
    ],
)
def test_all_that_is_missing_is_created(
    monkeypatch: pytest.MonkeyPatch, chroot: str, nodes: set[str], created: set[str]
) -> None:
    assert ensured(monkeypatch, chroot, nodes) == created


def test_a_closed_node_that_has_what_is_needed_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created = {"/a/b", "/a/b/c", "/a/b/c/edl", "/a/b/c/edl/jobs"}
    assert ensured(monkeypatch, "/a/b/c", {"/a"}, "/") == created


def test_a_chroot_that_cannot_be_created_is_an_error_of_edl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(CoordinationError, match=r"cannot create a job: .* has no node /a/b, and"):
        ensured(monkeypatch, "/a/b", set(), "/")
