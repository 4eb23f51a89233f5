"""Draw by seed when nodes fail and when they come back: :class:`Failures`."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edl.cluster.state import Node


@dataclass(frozen=True)
class Failures:
    """The rates at which nodes fail and come back."""

    # the mean seconds from the return of a node (at first from time 0) to its next failure
    mean_up_s: float
    mean_down_s: float  # the mean seconds from the failure of a node to its return
    # the seed of the random times. Each node draws from a generator of its own, so its times do not
    # depend on the other nodes.
    seed: int = 0

    def events(self, nodes: Sequence[Node]) -> Iterator[tuple[float, str, bool]]:
        """Yield the failures and the returns of all `nodes`, in order of time, without end."""
        chance = {node.name: random.Random(f"{self.seed} {node.name}") for node in nodes}
        coming = [(self._after(chance[name], True), name, False) for name in chance]
        heapq.heapify(coming)
        while coming:
            at_s, name, up = coming[0]
            yield at_s, name, up
            heapq.heapreplace(coming, (at_s + self._after(chance[name], up), name, not up))

    def _after(self, chance: random.Random, up: bool) -> float:
        return chance.expovariate(1 / (self.mean_up_s if up else self.mean_down_s))
