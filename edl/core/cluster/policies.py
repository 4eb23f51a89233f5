"""The policies by name."""

from __future__ import annotations

from dataclasses import replace

from edl.core.cluster.afs_l import AfsL
from edl.core.cluster.edl_policy import EdlPolicy
from edl.core.cluster.elastic_tiresias import ElasticTiresias
from edl.core.cluster.fifo import Fifo
from edl.core.cluster.jsa import LARGEST, RANDOM, SMALLEST, Jsa
from edl.core.cluster.max_min import MaxMin
from edl.core.cluster.optimus import Optimus
from edl.core.cluster.pollux import Pollux
from edl.core.cluster.srtf import Srtf
from edl.core.cluster.state import Policy
from edl.core.cluster.tiresias import Tiresias
from edl.core.cluster.virtualflow import VirtualFlow
from edl.errors import UsageError

POLICIES: dict[str, tuple[Policy, str]] = {
    "fifo": (Fifo(), "in the order of submission; a job that does not fit holds up later ones"),
    "fifo_backfill": (Fifo(backfill=True), "the same, and later ones that fit go ahead"),
    "priority": (Fifo(by_weight=True), "as fifo, heavier ones first among those that wait"),
    "max_min": (MaxMin(), "equal shares of the slots, within each job's limits"),
    "virtualflow": (VirtualFlow(), "shares by weight, in powers of two, of those let in"),
    "srtf": (Srtf(), "shortest remaining time first, with preemption"),
    "tiresias": (Tiresias(), "least attained service in two queues, with preemption"),
    "elastic_tiresias": (ElasticTiresias(), "the same, and slots left over where most is gained"),
    "optimus": (Optimus(), "each slot to the job that gains most time by it"),
    "afs_l": (AfsL(), "each slot where it is worth most if nobody knows what comes"),
    "pollux": (Pollux(), "slots and batches by goodput, found by a genetic search"),
    "edl": (EdlPolicy(), "least mean completion time: goodput, what is left, cost of a resize"),
    "jsa": (Jsa(), "batches and slots with the highest throughput of all jobs together"),
    "jsa_max": (Jsa(LARGEST), "as jsa, each job with its largest batch"),
    "jsa_min": (Jsa(SMALLEST), "as jsa, each job with its smallest batch"),
    "jsa_random": (Jsa(RANDOM), "as jsa, each job with a random batch"),
    "jsa_max_fixed": (Jsa(LARGEST, False), "on the fewest slots that hold that batch"),
    "jsa_min_fixed": (Jsa(SMALLEST, False), "on the fewest slots that hold that batch"),
    "jsa_random_fixed": (Jsa(RANDOM, False), "on the fewest slots that hold that batch"),
}
"""Name -> the policy with its published parameters, and what it does."""


def policy(name: str, seed: int = 0, resize_s: float | None = None) -> Policy:
    """The policy of that name.

    Args:
        seed: of what it draws at random, if it does.
        resize_s: what a change of a job's size costs, for who weighs that; None: as by default.

    Raises:
        UsageError: there is none.
    """
    if name not in POLICIES:
        raise UsageError(f"there is no policy {name!r}; use one of {', '.join(POLICIES)}")
    rule = POLICIES[name][0]
    if resize_s is not None and isinstance(rule, EdlPolicy):
        return replace(rule, resize_s=resize_s)
    return replace(rule, seed=seed) if seed and isinstance(rule, Pollux | Jsa) else rule
