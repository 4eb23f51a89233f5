"""Keep secrets that users give to a cluster for its jobs, sealed, in ZooKeeper.

The nodes have the ACL of the cluster, as all of its nodes. Their content is sealed with a key that
follows from the cluster's secret, which is never sent. So neither a listener on the network, who
learns the key that opens the nodes, nor a reader of ZooKeeper's files learns a secret of a user.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from kazoo.client import TransactionRequest
from kazoo.exceptions import NodeExistsError

from edl.coordination.cluster.events import ClusterEvents
from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.nodes import ATTEMPTS, record
from edl.coordination.reads import children, exists, get
from edl.coordination.session import Refused
from edl.coordination.wire import encode
from edl.core.cluster.events import ClusterEvent, ClusterEventKind
from edl.core.cluster.records import StoredSecret
from edl.errors import FEW, CoordinationError, UsageError, nearest
from edl.keys import NONCE_BYTES, derived, seal, unseal

MOST_BYTES = 65536  # of a secret
MOST_SECRETS = 1000  # of a cluster


@dataclass(frozen=True)
class SecretStatus:
    """A secret that a cluster keeps, without its content."""

    name: str
    set_s: float  # in seconds since 1970
    by: str  # a user and a machine


class ClusterSecrets:
    """The secrets of users that a cluster keeps."""

    def __init__(self, nodes: ClusterNodes, events: ClusterEvents) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events

    def set(self, name: str, content: bytes) -> bool:
        """Keep `content` as the secret called `name`; replace one of that name."""
        self._nodes.check_session()
        path = self._paths.user_secret(name)
        _check_content(name, content)
        sealed = seal(self._key, name, content, os.urandom(NONCE_BYTES))
        for _ in range(ATTEMPTS):
            before, parent = self._nodes.read(get(path), exists(self._paths.secrets))
            if before is not None and self._content(name, path, before[0]) == content:
                return False
            if before is None and parent is not None and parent.numChildren >= MOST_SECRETS:
                raise UsageError(
                    f"{self._nodes.what} has {MOST_SECRETS} secrets, and may have no more; delete "
                    "some with `edl secret delete`"
                )
            event = self._event(f"the secret {name} was set{'' if before is None else ' anew'}")
            stored = StoredSecret(base64.b64encode(sealed).decode(), time.time(), event.by)
            version = None if before is None else before[1].version
            if self._write(path, encode(stored.to_json()), version, parent is None, event):
                return True
        raise self._nodes.changed_too_often(path)

    def delete(self, name: str) -> None:
        """Remove the secret called `name`."""
        self._nodes.check_session()
        path, event = self._paths.user_secret(name), self._event(f"the secret {name} was deleted")

        def build(transaction: TransactionRequest) -> None:
            transaction.delete(path)
            self._events.append_in(transaction, event)

        names = self.names()
        if name in names:
            try:
                self._nodes.session.transact(f"delete secret {name}", build)
                return
            except Refused:  # another process was faster
                names = self.names()
        raise UsageError(self.unknown(name, names))

    def names(self) -> tuple[str, ...]:
        """Return the names of all secrets, sorted."""
        return tuple(sorted(self._nodes.read(children(self._paths.secrets))[0] or ()))

    def list(self) -> tuple[SecretStatus, ...]:
        """Return all secrets without their contents, sorted by name."""
        found = []
        for name, stored in self._read(self.names()).items():
            found.append(SecretStatus(name, stored.set_s, stored.by))
        return tuple(found)

    def contents(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the secrets called `names`, by name; unknown ones are left out."""
        found = self._read(names)
        return {name: self._unsealed(name, stored) for name, stored in found.items()}

    def unknown(self, name: str, names: Iterable[str], asks: str = "") -> str:
        """Return the sentence that says that there is no secret called `name`, and what to do."""
        known = sorted(names)
        what = f"{self._nodes.what} has no secret {name!r}{asks}"
        hint = f"; give it one with `edl secret set {name}`" if asks else ""
        if not known:
            return f"{what}{hint}" if hint else f"{what}, and no other"
        near = known if len(known) <= FEW else nearest(name, known)
        return f"{what}{hint}; it has {', '.join(near)}{'' if near == known else ', ...'}"

    # --- the nodes

    @property
    def _key(self) -> str:
        access = self._nodes.session.access
        assert access is not None
        return derived(access.secret, "secrets", self._paths.name)

    def _read(self, names: Iterable[str]) -> dict[str, StoredSecret]:
        """Return the records of the secrets called `names` that exist, by name."""
        paths = {name: self._paths.user_secret(name) for name in names}
        answers = self._nodes.read(*(get(path) for path in paths.values()))
        pairs = zip(paths.items(), answers, strict=True)
        return {
            name: record(StoredSecret, (path, answer[0]))
            for (name, path), answer in pairs
            if answer is not None
        }

    def _content(self, name: str, path: str, data: bytes) -> bytes | None:
        """Return the content of the node at `path`; None if nobody can unseal it any more."""
        try:
            return self._unsealed(name, record(StoredSecret, (path, data)))
        except CoordinationError:
            return None

    def _unsealed(self, name: str, stored: StoredSecret) -> bytes:
        """Return the content of a secret; raise a CoordinationError if it was changed by others."""
        try:
            content = unseal(self._key, name, base64.b64decode(stored.sealed))
        except ValueError:
            content = None
        if content is None:
            raise CoordinationError(
                f"the secret {name} of {self._nodes.what} was sealed with another key; set it "
                f"again with `edl secret set {name}`"
            )
        return content

    def _write(
        self, path: str, data: bytes, version: int | None, is_first: bool, event: ClusterEvent
    ) -> bool:
        """Write a secret and an event; return False if others have changed the node meanwhile."""

        def build(transaction: TransactionRequest) -> None:
            if is_first:  # a cluster of an earlier version of edl
                transaction.create(self._paths.secrets)
            if version is None:
                transaction.create(path, data)
            else:
                transaction.set_data(path, data, version)
            self._events.append_in(transaction, event)

        try:
            self._nodes.session.transact("set a secret", build)
        except Refused as refused:
            if is_first and not isinstance(refused.error, NodeExistsError):
                raise self._nodes.unknown() from None
            return False
        return True

    def _event(self, reason: str) -> ClusterEvent:
        return self._events.new(ClusterEventKind.SECRET, reason)


def _check_content(name: str, content: bytes) -> None:
    """Raise a UsageError if `content` cannot be that of the secret called `name`."""
    if not content:
        raise UsageError(f"the secret {name} would be empty; give its value")
    if len(content) > MOST_BYTES:
        raise UsageError(
            f"the secret {name} has more than {MOST_BYTES} bytes; put large data into files of the "
            "hosts"
        )
