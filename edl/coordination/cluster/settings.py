"""Read and change the settings of a cluster: its policy and time limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edl.coordination.cluster.events import ClusterEvents
from edl.coordination.cluster.format import check_settings
from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.nodes import Values, record
from edl.coordination.reads import get
from edl.core.cluster.events import ClusterEvent, ClusterEventKind
from edl.core.cluster.records import ClusterRecord


class ClusterSettings:
    """The settings of one cluster.

    Args:
        nodes: The nodes of the cluster.
        events: The event log of the cluster.
    """

    def __init__(self, nodes: ClusterNodes, events: ClusterEvents) -> None:
        self._nodes = nodes
        self._path = nodes.paths.cluster
        self._events = events

    def get(self) -> ClusterRecord:
        """Read and return the settings of the cluster: its policy and time limits.

        Raises:
            UsageError: this is a tenant.
            UnknownCluster: the cluster does not exist.
            CoordinationError: ZooKeeper is away.
        """
        self._nodes.check_administrator("see the settings of the cluster")
        answer = self._nodes.read(get(self._path))[0]
        if answer is None:
            raise self._nodes.unknown()
        return record(ClusterRecord, (self._path, answer[0]))

    def change(self, change: Callable[[ClusterRecord], ClusterRecord]) -> ClusterRecord:
        """Change how the cluster decides, such as its policy, log it, and return the new settings.

        The change and its event are one transaction. If the settings stay the same, nothing is
        written.

        Args:
            change: Gets the settings and returns the new ones. It is called again when another
                process wrote meanwhile, and may raise an error to change nothing.

        Raises:
            UsageError: this is a tenant.
            UnknownCluster: the cluster does not exist.
            UnsupportedFormat: its records have a format that this edl does not write.
            CoordinationError: ZooKeeper is away, or others keep changing the settings.
        """
        self._nodes.check_administrator("change the settings of the cluster")
        path = self._path

        def changed(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], ClusterEvent]:
            before = found[path]
            settings = ClusterRecord.from_json(before)
            check_settings(self._nodes.paths.name, settings)
            after = change(settings).to_json()
            news = [f"{name} is {after[name]}" for name in after if after[name] != before.get(name)]
            return {path: after}, self._events.new(ClusterEventKind.POLICY, ", ".join(news))

        return ClusterRecord.from_json(self._nodes.change_together((path,), changed)[path])
