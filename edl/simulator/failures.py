"""When nodes fail and come back, drawn by seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edl.core.cluster.state import Node


@dataclass(frozen=True)
class Failures:
    """Exponential times between failures of a node, and of its repairs.

    Attributes:
        mean_up_s, mean_down_s: of one node.
        seed: each node draws from a generator of its own, so another node changes nothing for it.
    """

    mean_up_s: float
    mean_down_s: float
    seed: int = 0

    def events(self, nodes: Sequence[Node]) -> Iterator[tuple[float, str, bool]]:
        """Time in seconds, node, and whether it comes up (else it fails); in order, endless."""
        chance = {node.name: random.Random(f"{self.seed} {node.name}") for node in nodes}
        coming = [(self._after(chance[name], True), name, False) for name in chance]
        heapq.heapify(coming)
        while coming:
            at_s, name, up = coming[0]
            yield at_s, name, up
            heapq.heapreplace(coming, (at_s + self._after(chance[name], up), name, not up))

    def _after(self, chance: random.Random, up: bool) -> float:
        return chance.expovariate(1 / (self.mean_up_s if up else self.mean_down_s))
