"""Read the hosts of a cluster, and drain them.

What a host offers and reports, ``host_registration`` writes; what it is assigned, ``writer`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from edl.coordination.cluster.events import ClusterEvents
from edl.coordination.cluster.job_reader import in_threes
from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.nodes import record, record_or_none
from edl.coordination.reads import OnChange, children, exists, get
from edl.coordination.session import Refused
from edl.coordination.wire import encode
from edl.core.cluster.events import ClusterEventKind
from edl.core.cluster.records import HostAssignment, HostOffer, HostReport
from edl.core.cluster.view import HostView
from edl.errors import FEW, CoordinationError, UsageError, nearest


class ClusterHosts:
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events

    def list(self) -> tuple[HostView, ...]:
        """Return the hosts of the cluster, in the order of their names."""
        names = self._nodes.read(children(self._paths.hosts))[0]
        if names is None:
            raise self._nodes.unknown()
        return self.read(names)

    def read(self, names: Iterable[str], wake: OnChange = None) -> tuple[HostView, ...]:
        """Return the hosts called `names` that exist, sorted by name."""
        p, known = self._paths, sorted(names)
        parts = [(p.assigned(name), p.report(name)) for name in known]
        reads = (
            (children(p.host(name), wake), *(get(path, wake) for path in part))
            for name, part in zip(known, parts, strict=True)
        )
        answers = self._nodes.read(*(read for three in reads for read in three))
        threes = tuple(in_threes(answers))
        offering = [
            n for n, three in zip(known, threes, strict=True) if "offer" in (three[0] or ())
        ]
        [offers] = self._nodes.read_groups([p.offer(name) for name in offering], wake=wake)
        offered = dict(offers)
        found = []
        for name, part, (nodes, assigned, report) in zip(known, parts, threes, strict=True):
            if nodes is not None and assigned and report:
                path = p.offer(name)
                found.append(
                    HostView(
                        name,
                        offer=record(HostOffer, (path, offered[path])) if path in offered else None,
                        drained="drained" in nodes,
                        assigned=record(HostAssignment, (part[0], assigned[0])),
                        version=assigned[1].version,
                        report=record_or_none(HostReport, part[1], report),
                    )
                )
        return tuple(found)

    def set_drained(self, host: str, drained: bool) -> bool:
        """Say whether a host shall be without jobs, and log it; the leader acts on it later."""
        self._nodes.check_administrator("drain hosts")
        self._nodes.check_session()
        path = self._paths.drained(host)
        reason = f"host {host} is drained" if drained else f"host {host} may have jobs again"
        event = self._events.new(ClusterEventKind.DRAIN, reason, host=host)

        def build(transaction: TransactionRequest) -> None:
            if drained:
                transaction.create(path)
            elif there is not None:
                transaction.delete(path)
            if forgets:
                tried = replace(view.assigned, failures={}, out="")
                data = encode(tried.to_json())
                transaction.set_data(self._paths.assigned(host), data, view.version)
            self._events.append_in(transaction, event)

        names, there = self._nodes.read(children(self._paths.hosts), exists(path))
        if names is None:
            raise self._nodes.unknown()
        if host not in names:
            raise UsageError(
                f"{self._nodes.what} has no host named {host!r}{_known_hosts(host, names)}"
            )
        view = next(iter(self.read([host])), HostView(host))
        forgets = not drained and bool(view.assigned.failures)
        if (there is not None) is drained and not forgets:
            return False
        try:
            self._nodes.session.transact(f"drain {host}", build)
        except Refused as refused:
            if isinstance(refused.error, BadVersionError):  # the leader has just planned
                return self.set_drained(host, drained)
            if isinstance(refused.error, NodeExistsError | NoNodeError):
                return False  # another process was faster
            raise CoordinationError(f"{path} could not be written: {refused.error}") from refused
        return True


def _known_hosts(host: str, names: Sequence[str]) -> str:
    """Return the end of an error message about `host`, which the cluster does not have."""
    if not names:
        return "; start one with `edl host`"
    if len(names) <= FEW:
        return f"; its hosts: {', '.join(sorted(names))}"
    return f"; the nearest of {len(names)}: {', '.join(nearest(host, sorted(names)))}"
