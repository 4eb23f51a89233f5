"""Register all policies that `edl simulate` knows, by name: edl's own, and those of papers.

:func:`registered_policy` returns one of them.
"""

from __future__ import annotations

from edl.cluster.policies.registry import POLICIES as PRODUCT
from edl.cluster.policies.registry import Registry
from edl.cluster.policies.registry import policy_named as find
from edl.cluster.state import ClusterPolicy
from edl.simulator.published.policies.afs_l import AfsL
from edl.simulator.published.policies.optimus import Optimus
from edl.simulator.published.policies.pollux_policy import Pollux
from edl.simulator.published.policies.srtf import Srtf
from edl.simulator.published.policies.virtualflow_policy import VirtualFlow

PUBLISHED_BEFORE: dict[str, Registry] = {
    "tiresias": {
        "virtualflow": (VirtualFlow(), "shares by weight, in powers of two, of those let in"),
        "srtf": (Srtf(), "shortest remaining time first, with preemption"),
    },
    "edl": {
        "optimus": (Optimus(), "each slot to the job that gains most time by it"),
        "afs_l": (AfsL(), "each slot where it is worth most if nobody knows what comes"),
        "pollux": (Pollux(), "slots and batches by goodput, found by a genetic search"),
    },
}
"""The policies that exist to be compared, by the product's policy that follows them in lists."""

POLICIES: Registry = {
    name: entry
    for following, of_product in PRODUCT.items()
    for name, entry in (*PUBLISHED_BEFORE.get(following, {}).items(), (following, of_product))
}
"""All policies, in the order in which `edl simulate --list` shows them."""


def registered_policy(name: str, seed: int = 0, resize_s: float | None = None) -> ClusterPolicy:
    """Return the policy that is registered as `name`, one of edl's own or one of a paper."""
    return find(name, seed, resize_s, POLICIES)
