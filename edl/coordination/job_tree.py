"""Read which nodes a job has in ZooKeeper: all of them, or of an untrusted job a bounded part.

Whoever knows the secret of a job may have created any nodes below the job's own: millions, in wide
or deep trees. :func:`some_nodes` reads a part of them that can be removed, at a bounded cost.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from edl.coordination.reads import children, exists
from edl.coordination.session import Session

READ_AT_ONCE = 100  # nodes that are read together: a time limit must be enough, though all are busy
MOST_CHILDREN = 200_000  # of a node whose children are read
MOST_NAMES = 300_000  # of children, in all answers to one call
MOST_BYTES = 2_000_000  # of the paths in all requests of one call
REQUEST_BYTES = 400  # that a request counts beside its path: so they are 5,000 at most
SHARE = 8  # nodes that are looked at together take up to 1/8 of the bytes that are left


@dataclass(frozen=True)
class Tree:
    """The nodes of a job that a bounded read has found."""

    # children come before their parents, and no node has a child that is not in the list
    nodes: list[str]
    # why nodes are missing, as the end of a sentence about a node below the job's; empty: none is
    unread: str


def all_nodes(session: Session, root: str) -> list[str]:
    """Return the paths of the node `root` and of all nodes below it, children first."""
    found: list[str] = []
    unread = [root]
    while unread:
        batch, unread = unread[-READ_AT_ONCE:], unread[:-READ_AT_ONCE]
        answers = session.read_all("read a job", [children(path) for path in batch])
        for path, names in zip(batch, answers, strict=True):
            if names is not None:
                found.append(path)
                unread += [f"{path}/{name}" for name in sorted(names)]
    return found[::-1]


def some_nodes(session: Session, root: str, kept: Collection[str]) -> Tree:
    """Read the nodes from `root` down, at a bounded cost, and return those that can be removed."""
    # Down one branch, at each node to the child with the fewest children, until a node is found
    # that can be removed, so that some are found; then several branches together.
    read = _BoundedRead(session, frozenset(kept))
    read.run(root)
    return read.tree(root)


class _BoundedRead:
    """One read of a part of a job's nodes, depth first; `exists` counts children before a read."""

    def __init__(self, session: Session, kept: frozenset[str]) -> None:
        self._session = session
        self._kept = kept
        self._found: list[str] = []  # the nodes that exist, parents before their children
        self._removable = 0  # how many nodes without children were found that are not kept
        self._unseen: list[tuple[str, list[str]]] = []  # parents, and children not looked at
        self._inner: list[tuple[str, int]] = []  # nodes with so many children, whose names are next
        self._skipped: list[str] = []  # nodes whose children are not read
        self._why = ""  # the last of them, if no later read can do it
        self._names, self._bytes = MOST_NAMES, MOST_BYTES  # that are left

    def run(self, root: str) -> None:
        """Read from `root` down until all is read or the bounds are reached."""
        parent, _, name = root.rpartition("/")
        self._unseen.append((parent, [name]))
        while self._inner or self._unseen:
            parents = self._read_names()
            if not self._see(parents or 1) and not self._inner:
                return

    def tree(self, root: str) -> Tree:
        """Return what was found below `root`, without nodes of which a descendant is not known."""
        unread = [*self._skipped, *(path for path, _ in self._inner)]
        unread += [parent for parent, names in self._unseen if names]
        above: set[str] = set()
        for path in unread:
            while path not in above and path.startswith(root):
                above.add(path)
                path = path.rpartition("/")[0]
        nodes = [path for path in reversed(self._found) if path not in above]
        bounds = f"{MOST_NAMES} names and {MOST_BYTES} bytes of paths"
        too_deep = f"is nested too deeply: nothing that has no children is among the first {bounds}"
        return Tree(nodes, (self._why or too_deep) if unread else "")

    def _read_names(self) -> int:
        """Read the names of the children of the next nodes; return of how many nodes."""
        # One node until one was found that can be removed: else a few chains would use up what may
        # be read before one of them ends.
        batch: list[str] = []
        while self._inner and len(batch) < min(1 + self._removable, READ_AT_ONCE):
            path, count = self._inner.pop()
            if count > MOST_CHILDREN:
                self._why = f"has {count} children, more than the {MOST_CHILDREN} that are read"
            if count > min(self._names, MOST_CHILDREN) or not self._pays(path):
                self._skipped.append(path)
            else:
                self._names -= count
                batch.append(path)
        if not batch:
            return 0
        answers = self._session.read_open("read a job", [children(path) for path in batch])
        closed = [path for path, names in zip(batch, answers, strict=True) if names is None]
        read = [
            (path, sorted(names, reverse=True))
            for path, names in zip(batch, answers, strict=True)
            if names
        ]
        self._unseen += read
        if closed:
            self._skip_closed(closed)
        return len(read)

    def _skip_closed(self, paths: list[str]) -> None:
        """Note that the names of children could not be read, except of nodes that are gone now."""
        stats = self._session.read_all("read a job", [exists(path) for path in paths])
        if closed := [path for path, stat in zip(paths, stats, strict=True) if stat]:
            self._skipped += closed
            self._why = "has an ACL by which the job's secret does not open it"

    def _see(self, parents: int) -> bool:
        """Find out how many children the next unseen nodes have; return whether there were any."""
        paths = self._take(parents)
        if not paths:
            return False
        stats = self._session.read_all("read a job", [exists(path) for path in paths])
        seen = [(p, stat.numChildren) for p, stat in zip(paths, stats, strict=True) if stat]
        self._found += [path for path, _ in seen]
        self._removable += sum(not count and path not in self._kept for path, count in seen)
        inner = [(path, count) for path, count in seen if count]
        self._inner += sorted(inner, key=lambda one: one[1], reverse=True)  # the last is read next
        return True

    def _take(self, parents: int) -> list[str]:
        """Remove the next unseen nodes, children of up to `parents` parents; return their paths."""
        # Only 1/8 of the bytes that are left, so that much is left for what is below.
        least = self._bytes - self._bytes // SHARE
        taken: list[str] = []
        for _ in range(min(parents, len(self._unseen))):
            parent, names = self._unseen.pop()
            while names and len(taken) < READ_AT_ONCE and (self._bytes > least or not taken):
                path = f"{parent}/{names[-1]}"
                if not self._pays(path):
                    break
                taken.append(path)
                names.pop()
            if names:
                self._unseen.append((parent, names))
                break
        return taken

    def _pays(self, path: str) -> bool:
        """Subtract a request about `path` from what may be read; False: it is too much."""
        size = len(path.encode()) + REQUEST_BYTES
        if size > self._bytes:
            return False
        self._bytes -= size
        return True
