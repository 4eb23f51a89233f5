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
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents) -> None:
        self._nodes = nodes
        self._path = nodes.paths.cluster
        self._events = events

    def get(self) -> ClusterRecord:
        """Read and return the settings of the cluster: its policy and time limits."""
        self._nodes.check_administrator("see the settings of the cluster")
        answer = self._nodes.read(get(self._path))[0]
        if answer is None:
            raise self._nodes.unknown()
        return record(ClusterRecord, (self._path, answer[0]))

    def change(self, change: Callable[[ClusterRecord], ClusterRecord]) -> ClusterRecord:
        """Change how the cluster decides, such as its policy, log it; return the new settings."""
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
