"""Draw by seed when nodes fail and when they come back: :class:`Failures`."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edl.core.cluster.state import Node


@dataclass(frozen=True)
class Failures:
    """The rates at which nodes fail and come back; the times between are exponentially distributed.

    :meth:`events` draws the times.

    Attributes:
        mean_up_s: the mean seconds from the return of a node (at first from time 0) to its next
            failure.
        mean_down_s: the mean seconds from the failure of a node to its return.
        seed: the seed of the random times. Each node draws from a generator of its own, so its
            times do not depend on the other nodes.
    """

    mean_up_s: float
    mean_down_s: float
    seed: int = 0

    def events(self, nodes: Sequence[Node]) -> Iterator[tuple[float, str, bool]]:
        """Yield the failures and the returns of all ``nodes``, in order of time, without end.

        Each call begins anew and yields the same events for the same seed and node names.

        Yields:
            The time in seconds from 0, the name of the node, and whether it comes back (True) or
            fails (False). All nodes are up at time 0.
        """
        chance = {node.name: random.Random(f"{self.seed} {node.name}") for node in nodes}
        coming = [(self._after(chance[name], True), name, False) for name in chance]
        heapq.heapify(coming)
        while coming:
            at_s, name, up = coming[0]
            yield at_s, name, up
            heapq.heapreplace(coming, (at_s + self._after(chance[name], up), name, not up))

    def _after(self, chance: random.Random, up: bool) -> float:
        """Draw the seconds from one change of a node to the next.

        Args:
            chance: the generator of the node's random numbers.
            up: True: the node is up, and the result is the time until it fails; False: it is down,
                and the result is the time until it comes back.
        """
        return chance.expovariate(1 / (self.mean_up_s if up else self.mean_down_s))
