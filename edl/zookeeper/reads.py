"""Describe requests about one node each, which :meth:`Session.read_all` sends together.

:func:`get`, :func:`children`, :func:`exists`, :func:`acl` and :func:`delete_node` make them; they
send nothing.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, NamedTuple, TypeGuard

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, MarshallingError, UnimplementedError
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    MultiHeader,
    int_struct,
    long_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import Callback, ZnodeStat

from edl.errors import CoordinationError
from edl.zookeeper.kazoo_client import PollHandler, SignalSafeSocket

OnChange = Callable[[], None] | None
"""Called once when what was read changes, or when the connection is lost; must not block.

It runs on the thread that reads from the connection.
"""

Issue = Callable[[KazooClient], Any]
"""Starts a request on a client and returns kazoo's asynchronous result."""


def ignore_changes() -> None:
    """Do nothing; as the `wake` of a read, make the session keep the answer until a change."""


GET, CHILDREN, _EXISTS = "get_async", "get_children_async", "exists_async"


@dataclass(frozen=True)
class Read:
    method: str  # of kazoo's client
    path: str
    # called once, on kazoo's connection thread, when the node changes or the connection is lost, so
    # it must not block; with it the session keeps the answer until then
    wake: OnChange = None

    def __hash__(self) -> int:
        # Fast: a leader looks up thousands of reads each time it reads its job.
        return hash(self.path)

    @property
    def watches_absent(self) -> bool:
        """Whether this read sets its watch also on a node that does not exist."""
        return self.method == _EXISTS

    def __call__(self, client: KazooClient, watch: Callable[[object], None] | None = None) -> Any:
        return getattr(client, self.method)(self.path, watch=watch)


def get(path: str, wake: OnChange = None) -> Read:
    """Return a read of the (data, stat) of a node, or None; an absent node is not watched."""
    return Read(GET, path, wake)


def children(path: str, wake: OnChange = None) -> Read:
    """Return a read of the names of the children of a node, unordered; None without a node."""
    return Read(CHILDREN, path, wake)


def exists(path: str, wake: OnChange = None) -> Read:
    """Return a read of the stat of the node at `path`, or None; an absent node is watched, too."""
    return Read(_EXISTS, path, wake)


def acl(path: str) -> Issue:
    return methodcaller("get_acls_async", path)


def delete_node(path: str) -> Issue:
    return methodcaller("delete_async", path)


# ------------------------------------------------------------
# Convert JSON objects to the bytes of a ZooKeeper node and back: `encode`, `decode`.
#
# Equal objects have equal bytes. A large object is compressed by zlib, for ZooKeeper takes at most
# 1 MB: what a cluster says of 10,000 jobs takes that, and a tenth of it compressed.

COMPRESSED_FROM = 65_536  # bytes of JSON; most nodes stay readable by any tool
MOST_BYTES = 1 << 26  # of JSON that a compressed node may have
_LEVEL = 1  # the fastest one
_ZLIB = b"\x78"  # the first byte that zlib writes, with which no JSON begins


def encode(value: Mapping[str, Any]) -> bytes:
    """Return `value` as the ASCII bytes of compact JSON with sorted keys, compressed if large."""
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return data if len(data) < COMPRESSED_FROM else zlib.compress(data, _LEVEL)


def decode(path: str, data: bytes, most_bytes: int | None = None) -> dict[str, Any]:
    """Return the JSON object in `data`, the bytes of the node at `path`; no bytes are `{}`."""
    if not data:
        return {}
    try:
        most = MOST_BYTES if most_bytes is None else most_bytes
        if data.startswith(_ZLIB):  # cut off, so that it is no JSON, if it is too large
            data = zlib.decompressobj().decompress(data, most)
        value = json.loads(data)
    except (ValueError, zlib.error, RecursionError) as error:
        raise CoordinationError(f"the node {path} does not hold JSON: {error}") from error
    if not isinstance(value, dict):
        raise CoordinationError(f"the node {path} does not hold a JSON object")
    return value


# ------------------------------------------------------------
# Read many nodes by one request, which kazoo does not know: `multiRead` of ZooKeeper 3.6.
#
# A request costs kazoo 0.1 ms of processor time, and whoever reads a cluster of 10,000 jobs reads
# 30,000 nodes. Together they cost a tenth of that.
#
# Such a request sets no watches. They are set by another one, `setWatches`, with which clients of
# ZooKeeper set their watches again on a new connection. It names a transaction: of a node that has
# changed since, the server tells at once. So nothing is missed between the two.

UNREADABLE = (struct.error, ValueError, KeyError, UnimplementedError, MarshallingError)
"""The errors of a request of which the server knows nothing."""

FEWEST = 16  # reads for which it is worth it
_MULTI_READ, _SET_WATCHES = 22, 101  # ZooDefs.OpCode
_ERROR = -1
_CODES = {GET: GetData.type, CHILDREN: GetChildren.type}
Watcher = Callable[[object], None]
"""A function that kazoo calls, with its event, when a watch fires."""


@dataclass(frozen=True)
class WatchedRead:
    read: Read
    watch: Watcher

    def __call__(self, client: KazooClient) -> Any:
        return self.read(client, watch=self.watch)


def can_be_read_together(issues: Sequence[Issue]) -> bool:
    return len(issues) >= FEWEST and all(_read_of(one) is not None for one in issues)


def _read_of(issue: Issue) -> Read | None:
    read = issue.read if isinstance(issue, WatchedRead) else issue
    return read if isinstance(read, Read) and read.method in _CODES else None


def read_together(client: KazooClient, issues: Sequence[Issue]) -> Any:
    """Send reads as one request, without watches; its result is a list of answers and errors."""
    reads = [read for one in issues if (read := _read_of(one)) is not None]
    parts = tuple((_CODES[one.method], _full_path(client, one.path)) for one in reads)
    return _send(client, _ReadRequest(parts))


def watch_together(
    client: KazooClient, issues: Sequence[Issue], answers: Sequence[Any], zxid: int
) -> Any:
    """Set the watches of reads that were sent together; return kazoo's pending result, or None."""
    # `zxid` is of before the reads: when the answer comes, the watches of nodes that have changed
    # since have fired.
    watched = [
        (one.read.method == CHILDREN, _full_path(client, one.read.path), one.watch)
        for one, answer in zip(issues, answers, strict=True)
        if isinstance(one, WatchedRead) and not isinstance(answer, Exception)
    ]
    return _send(client, _WatchRequest(client, zxid, tuple(watched))) if watched else None


def _full_path(client: KazooClient, path: str) -> str:
    return _prefix_root(client.chroot, path) if client.chroot else path


def _send(client: KazooClient, request: Any) -> Any:
    result = client.handler.async_result()
    client._call(request, result)
    return result


class _ReadRequest(NamedTuple):
    """The request that reads many nodes, as kazoo's client sends it."""

    parts: tuple[tuple[int, str], ...]  # the code of the operation, and the path, of each read

    @property
    def type(self) -> int:
        return _MULTI_READ

    def serialize(self) -> bytes:
        data = bytearray()
        for code, path in self.parts:
            data += multiheader_struct.pack(code, False, -1)
            data += write_string(path)
            data.append(0)  # no watch
        data += multiheader_struct.pack(-1, True, -1)
        return bytes(data)

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        answers: list[Any] = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            answer, offset = _answer(header.type, data, offset)
            answers.append(answer)
            header, offset = MultiHeader.deserialize(data, offset)
        if len(answers) != len(self.parts):
            raise ValueError(f"{len(answers)} answers to {len(self.parts)} reads")
        return answers


class _WatchRequest(NamedTuple):
    client: KazooClient  # in which the watches are noted
    zxid: int  # since which a change counts
    watched: tuple[tuple[bool, str, Watcher], ...]  # of children?, path, who is called

    @property
    def type(self) -> int:
        return _SET_WATCHES

    def serialize(self) -> bytes:
        # On the connection thread, which alone may change this, and before the server can tell of a
        # change.
        for of_children, path, watch in self.watched:
            noted = self.client._child_watchers if of_children else self.client._data_watchers
            noted[path].add(watch)
        contents = [path for of_children, path, _ in self.watched if not of_children]
        parents = [path for of_children, path, _ in self.watched if of_children]
        data = bytearray(long_struct.pack(self.zxid))
        for paths in (contents, [], parents):  # the second are nodes that do not exist
            data += int_struct.pack(len(paths))
            for path in paths:
                data += write_string(path)
        return bytes(data)

    def deserialize(self, data: bytes, offset: int) -> bool:
        return True


def _answer(code: int, data: bytes, offset: int) -> tuple[Any, int]:
    if code == GetData.type:
        content, offset = read_buffer(data, offset)
        stat = ZnodeStat._make(stat_struct.unpack_from(data, offset))
        return (content, stat), offset + stat_struct.size
    count = int_struct.unpack_from(data, offset)[0]
    offset += int_struct.size
    if code == _ERROR:
        return EXCEPTIONS[count](), offset
    names = []
    for _ in range(count):
        name, offset = read_string(data, offset)
        names.append(name)
    return names, offset


# ------------------------------------------------------------
# Keep the answers to reads until their watches fire, so that only what has changed is read again.
#
# A job of a thousand workers has thousands of nodes, and its leader, each agent and each worker
# look at their part of the nodes every half second. While nothing changes, that costs ZooKeeper
# nothing. When one worker changes, it costs each reader the read of that worker's node.
#
# ZooKeeper tells a client of a change before it answers any request that was made after the change,
# and kazoo reads both from one connection. The watches of this module run there, in that order
# (`InOrder`): a caller that has an answer, for instance to its own write, gets no older answer from
# here.

UNKNOWN = object()  # no answer is kept


class WatchedReads:
    """A cache of the answers to reads of one session that set a watch, until the watch fires."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Issue, Any] = {}  # reads with a watch
        self._asked: dict[Issue, object] = {}  # the call that asked last, while it waits

    def answers(
        self, issues: Sequence[Issue], ask: Callable[[Sequence[Issue]], list[Any]]
    ) -> list[Any]:
        """Return the answers to `issues` in order; send only those without a kept answer."""
        me = object()
        with self._lock:
            answers = [self._kept.get(one, UNKNOWN) for one in issues]
            places = [place for place, answer in enumerate(answers) if answer is UNKNOWN]
            rest = [issues[place] for place in places]
            new = [one for one in rest if _is_watched(one)]
            self._asked.update(dict.fromkeys(new, me))
        try:
            asked = ask([self._watching(one) for one in rest])
            with self._lock:
                for place, read, answer in zip(places, rest, asked, strict=True):
                    answers[place] = answer
                    holds = _is_watched(read) and (answer is not None or read.watches_absent)
                    if holds and self._asked.get(read) is me:
                        self._kept[read] = answer
        finally:
            with self._lock:
                for read in new:
                    if self._asked.get(read) is me:
                        del self._asked[read]
        return answers

    def fired(self, read: Read) -> None:
        with self._lock:
            self._kept.pop(read, None)
            self._asked.pop(read, None)  # its answer may be older than this change
        if read.wake is not None:
            read.wake()

    def _watching(self, issue: Issue) -> Issue:
        return WatchedRead(issue, Watch(self, issue)) if _is_watched(issue) else issue


def _is_watched(issue: Issue) -> TypeGuard[Read]:
    return isinstance(issue, Read) and issue.wake is not None


@dataclass(frozen=True)
class Watch:
    # Equal for equal reads, so that kazoo keeps, and calls, only one of them.
    reads: WatchedReads = field(repr=False)
    read: Read

    def __call__(self, event: object) -> None:
        self.reads.fired(self.read)


class InOrder(PollHandler):
    """kazoo's threads, but a `Watch` runs at once, before a later answer comes."""

    def create_socket_pair(self) -> tuple[Any, SignalSafeSocket]:
        reads, wakes = super().create_socket_pair()
        return reads, SignalSafeSocket(wakes)

    def dispatch_callback(self, callback: Callback) -> None:
        """Run `callback` at once if it is a `Watch`; else queue it as kazoo does."""
        if isinstance(callback.func, Watch):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)
