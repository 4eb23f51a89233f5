"""All policies by name: edl's own, and those of papers that exist to be compared with them."""

from __future__ import annotations

from benchmarks.published.afs_l import AfsL
from benchmarks.published.optimus import Optimus
from benchmarks.published.pollux_policy import Pollux
from benchmarks.published.srtf import Srtf
from benchmarks.published.virtualflow_policy import VirtualFlow
from edl.cluster.policies.registry import POLICIES as PRODUCT
from edl.cluster.policies.registry import Registry

PUBLISHED: Registry = {
    "virtualflow": (VirtualFlow(), "shares by weight, in powers of two, of those let in"),
    "srtf": (Srtf(), "shortest remaining time first, with preemption"),
    "optimus": (Optimus(), "each slot to the job that gains most time by it"),
    "afs_l": (AfsL(), "each slot where it is worth most if nobody knows what comes"),
    "pollux": (Pollux(), "slots and batches by goodput, found by a genetic search"),
}
POLICIES: Registry = {**PRODUCT, **PUBLISHED}
