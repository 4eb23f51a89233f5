"""Register the cluster policies that edl offers, by name.

Further published policies, for comparison, are in :mod:`edl.simulator.published`; only the
simulator registers those (:mod:`edl.simulator.registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from edl.core.cluster.edl_policy import EdlPolicy
from edl.core.cluster.elastic_tiresias import ElasticTiresias
from edl.core.cluster.fifo import Fifo
from edl.core.cluster.jsa import LARGEST, RANDOM, SMALLEST, Jsa
from edl.core.cluster.max_min import MaxMin
from edl.core.cluster.state import ClusterPolicy
from edl.core.cluster.tiresias import Tiresias
from edl.core.settings import check_settings
from edl.errors import UsageError

Registry = Mapping[str, tuple[ClusterPolicy, str]]
"""Name -> the policy with its published parameters, and what it does."""

POLICIES: Registry = {
    "fifo": (Fifo(), "in the order of submission; a job that does not fit holds up later ones"),
    "fifo_backfill": (Fifo(backfill=True), "the same, and later ones that fit go ahead"),
    "priority": (Fifo(by_weight=True), "as fifo, heavier ones first among those that wait"),
    "max_min": (MaxMin(), "equal shares of the slots, within each job's limits"),
    "tiresias": (Tiresias(), "least attained service in two queues, with preemption"),
    "elastic_tiresias": (ElasticTiresias(), "the same, and slots left over where most is gained"),
    "edl": (EdlPolicy(), "least mean completion time: goodput, what is left, cost of a resize"),
    "jsa": (Jsa(), "batches and slots with the highest throughput of all jobs together"),
    "jsa_max": (Jsa(LARGEST), "as jsa, each job with its largest batch"),
    "jsa_min": (Jsa(SMALLEST), "as jsa, each job with its smallest batch"),
    "jsa_random": (Jsa(RANDOM), "as jsa, each job with a random batch"),
    "jsa_max_fixed": (Jsa(LARGEST, False), "on the fewest slots that hold that batch"),
    "jsa_min_fixed": (Jsa(SMALLEST, False), "on the fewest slots that hold that batch"),
    "jsa_random_fixed": (Jsa(RANDOM, False), "on the fewest slots that hold that batch"),
}
"""The policies of the product."""


def policy_named(
    name: str, seed: int = 0, resize_s: float | None = None, known: Registry = POLICIES
) -> ClusterPolicy:
    """Return the policy that is registered as `name`, with the given parameters."""
    if name not in known:
        raise UsageError(
            f"there is no policy {name!r}; use one of {', '.join(known)}, or name your own: "
            "module:Class"
        )
    return with_run(known[name][0], seed, resize_s)


def with_run(
    policy: ClusterPolicy, seed: int = 0, resize_s: float | None = None, speeds: str = ""
) -> ClusterPolicy:
    """Return `policy` with the seed, the cost of a resize and the speeds of one simulation."""
    rule: Any = policy  # a frozen dataclass with the policy's parameters
    # 0, None and an empty text change nothing.
    given = {"seed": seed or None, "resize_s": resize_s, "speeds": speeds or None}
    own = {one.name for one in fields(rule)} if is_dataclass(rule) else set()
    changes = {key: value for key, value in given.items() if key in own and value is not None}
    found: ClusterPolicy = replace(rule, **changes) if changes else rule
    return found


def with_parameters(name: str, parameters: Mapping[str, Any]) -> ClusterPolicy:
    """Return the policy that is registered as `name`, with other values of some parameters."""
    rule: Any = policy_named(name)
    known = {one.name: getattr(rule, one.name) for one in fields(rule) if one.metadata}
    check_parameters(name, parameters, known)
    changed: Any = replace(rule, **parameters)
    check_settings(changed)
    found: ClusterPolicy = changed
    return found


def check_parameters(name: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise UsageError unless each parameter is known, and its value is like the known one."""
    for key, value in given.items():
        if key not in known:
            have = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            raise UsageError(f"the policy {name} has no parameter {key!r}; {have}")
        if type(value) is not type(known[key]) and not _is_number(value, known[key]):
            raise UsageError(
                f"the parameter {key} of the policy {name} is {value!r}; it must be like "
                f"{known[key]!r}"
            )


def _is_number(value: object, known: object) -> bool:
    return isinstance(known, float) and isinstance(value, int) and not isinstance(value, bool)
