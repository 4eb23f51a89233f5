"""Offer a host to a cluster, read what is assigned to it, and report what lives there.

`edl host` uses it, by one :class:`HostRegistration`. A host belongs to one process, its *owner*,
which writes itself into the host's node; each write of the owner checks that the node still has the
version that this process wrote (the fence). A process that was frozen, and whose host another one
has registered meanwhile, can therefore report and withdraw nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kazoo.client import TransactionRequest
from kazoo.exceptions import NoNodeError

from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.nodes import ATTEMPTS, content, record
from edl.coordination.reads import OnChange, exists, get
from edl.coordination.session import Refused
from edl.coordination.wire import encode
from edl.core.cluster.records import HostAssignment, HostOffer, HostReport
from edl.core.record import Record
from edl.errors import CoordinationError, HostTaken, UsageError


@dataclass(frozen=True)
class HostOwner(Record):
    """The record, at the node of a host, of the process that has registered the host."""

    token: str  # that the process has made up, and that no other process has
    machine: str  # a name that no other machine has
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.machine}"


class HostRegistration:
    """One process's side of a host of a cluster; call `register` again after a lost session."""

    def __init__(self, nodes: ClusterNodes, host: str, owner: HostOwner) -> None:
        self.host = host
        self.owner = owner
        self._nodes = nodes
        self._path = nodes.paths.host(host)
        self._offer = nodes.paths.offer(host)
        self._fence: int | None = None  # the version of the host's node since we own it
        self._reported: bytes | None = None

    def register(self, offer: HostOffer, is_dead: Callable[[HostOwner], bool]) -> None:
        """Make this process the owner of the host, and offer the host while this session lasts."""
        self._nodes.check_session()
        for _ in range(ATTEMPTS):
            mine, offered = self._nodes.read(get(self._path), get(self._offer))
            if mine is not None and offered is not None:
                self._check_owner(HostOwner.from_json(content(self._path, mine)), is_dead)
            version = None if mine is None else mine[1].version
            # A dead process's offer goes at once, before its session ends.
            stale = None if offered is None else offered[1].version
            build = partial(self._build, offer=offer, version=version, stale=stale)
            try:
                results = self._nodes.session.transact(f"offer host {self.host}", build)
            except Refused as refused:
                if mine is None and isinstance(refused.error, NoNodeError):
                    raise self._nodes.unknown() from None
                continue  # another process was faster, or an offer has vanished: look again
            self._fence = 0 if version is None else results[0].version
            self._reported = None
            return
        raise self._nodes.changed_too_often(self._path)

    def assigned(self, wake: OnChange = None) -> tuple[HostAssignment, int]:
        """Return what is assigned to the host, and the version of the node that says so."""
        path = self._nodes.paths.assigned(self.host)
        answer = self._nodes.read(get(path, wake))[0]
        if answer is None:
            raise self._unregistered()
        return record(HostAssignment, (path, answer[0])), answer[1].version

    def report(self, report: HostReport) -> None:
        """Replace the report of what lives on the host, unless the last one was equal."""
        if self._fence is None:
            raise self._unregistered()
        data = encode(report.to_json())
        if data == self._reported:
            return
        fence, path = self._fence, self._nodes.paths.report(self.host)

        def build(transaction: TransactionRequest) -> None:
            transaction.check(self._path, fence)
            transaction.set_data(path, data)

        try:
            self._nodes.session.transact(f"report on host {self.host}", build)
        except Refused as refused:
            raise self._lost() from refused
        self._reported = data

    def withdraw(self) -> None:
        """Remove the offer, so that the host gets no slots any more."""
        if self._fence is None:
            raise self._unregistered()
        fence = self._fence
        if self._nodes.read(exists(self._offer))[0] is None:
            return

        def build(transaction: TransactionRequest) -> None:
            transaction.check(self._path, fence)
            transaction.delete(self._offer)

        try:
            self._nodes.session.transact(f"withdraw host {self.host}", build)
        except Refused as refused:
            if refused.index == 0:
                raise self._lost() from refused

    def _check_owner(self, owner: HostOwner, is_dead: Callable[[HostOwner], bool]) -> None:
        """Raise a UsageError if `owner`, which offers the host, is not known to be dead."""
        if owner.token != self.owner.token and not is_dead(owner):
            raise UsageError(
                f"host {self.host} of {self._nodes.what} is offered by {owner}; end that `edl "
                "host`, or give this one another name"
            )

    def _build(
        self,
        transaction: TransactionRequest,
        offer: HostOffer,
        version: int | None,
        stale: int | None,
    ) -> None:
        """Add to `transaction` the writes that make this process own and offer the host."""
        paths, mine = self._nodes.paths, encode(self.owner.to_json())
        if version is None:
            transaction.create(self._path, mine)
            transaction.create(paths.assigned(self.host))
            transaction.create(paths.report(self.host))
        else:
            transaction.set_data(self._path, mine, version)
        if stale is not None:
            transaction.delete(self._offer, stale)
        transaction.create(self._offer, encode(offer.to_json()), ephemeral=True)

    def _lost(self) -> CoordinationError:
        """Return the error for a write of this process that was refused, which names the owner."""
        answer = self._nodes.read(get(self._path))[0]
        if answer is None:
            return self._unregistered()
        owner = HostOwner.from_json(content(self._path, answer))
        return HostTaken(
            self.host,
            f"host {self.host} of {self._nodes.what} belongs to {owner} now; nothing was written, "
            "and this process must end",
        )

    def _unregistered(self) -> CoordinationError:
        what = f"host {self.host} is not registered in {self._nodes.what}"
        return CoordinationError(f"{what}; register it again")
