"""Register the cluster policies that edl offers, by name.

Policies of papers that exist only to be compared with them are in ``benchmarks/published``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

import msgspec

from edl.cluster.policies.edl import EdlPolicy
from edl.cluster.policies.jsa import LARGEST, RANDOM, SMALLEST, Jsa
from edl.cluster.policies.simple import Fifo, MaxMin
from edl.cluster.policies.tiresias import ElasticTiresias, Tiresias
from edl.cluster.state import Allocation, ClusterPolicy, ClusterState, violation
from edl.errors import UsageError
from edl.spec import check_settings

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


def policy_named(name: str, seed: int = 0, resize_s: float | None = None) -> ClusterPolicy:
    if name not in POLICIES:
        raise UsageError(
            f"there is no policy {name!r}; use one of {', '.join(POLICIES)}, or name your own: "
            "module:Class"
        )
    return with_run(POLICIES[name][0], seed, resize_s)


def with_run(
    policy: ClusterPolicy, seed: int = 0, resize_s: float | None = None, speeds: str = ""
) -> ClusterPolicy:
    rule: Any = policy  # a frozen dataclass with the policy's parameters
    # 0, None and an empty text change nothing.
    given = {"seed": seed or None, "resize_s": resize_s, "speeds": speeds or None}
    own = {one.name for one in fields(rule)} if is_dataclass(rule) else set()
    changes = {key: value for key, value in given.items() if key in own and value is not None}
    found: ClusterPolicy = replace(rule, **changes) if changes else rule
    return found


def with_parameters(name: str, parameters: Mapping[str, Any]) -> ClusterPolicy:
    rule: Any = policy_named(name)
    known = {one.name: getattr(rule, one.name) for one in fields(rule) if one.metadata}
    check_parameters(name, parameters, known)
    changed: Any = replace(rule, **parameters)
    check_settings(changed)
    found: ClusterPolicy = changed
    return found


def check_parameters(name: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if key not in known:
            have = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            raise UsageError(f"the policy {name} has no parameter {key!r}; {have}")
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        is_number = isinstance(known[key], float) and is_whole
        if type(value) is not type(known[key]) and not is_number:
            raise UsageError(
                f"the parameter {key} of the policy {name} is {value!r}; it must be like "
                f"{known[key]!r}"
            )


# ------------------------------------------------------------
# Use a cluster policy that a user has written: check its class, its parameters and its answers.
#
# Such a policy is a class of the user, named `module:Class`. Its objects are called as those of
# `ClusterPolicy`. Nothing here imports it.


MAX_STATE_BYTES = 100_000  # of JSON: ZooKeeper holds 1 MB in a node, with all else of a decision
MAX_REASON_CHARS = 300
GUIDE = "see docs/guides/writing-a-policy.md"


@dataclass(frozen=True)
class OwnPolicy:
    """A cluster policy of a user, whose errors and wrong answers are errors of one sentence."""

    name: str  # the policy as the user names it: "module:Class"
    rule: ClusterPolicy  # the object of that class

    def __call__(self, cluster: ClusterState) -> Allocation:
        try:
            answer = self.rule(cluster)
        except Exception as error:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            trace, place = error.__traceback__, ""
            while trace is not None:
                if trace.tb_frame.f_globals.get("__name__") == type(self.rule).__module__:
                    file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
                    place = f" ({file}, line {trace.tb_lineno})"
                trace = trace.tb_next
            raise UsageError(f"the policy {self.name} has failed: {what}{place}") from error
        found = checked_allocation(self.name, answer)
        wrong = violation(found, cluster)
        if wrong is not None:
            raise UsageError(f"the decision of the policy {self.name} breaks a rule: {wrong}")
        return found


def own_policy(name: str, kind: object, parameters: Mapping[str, Any]) -> OwnPolicy:
    if not isinstance(kind, type) or not any("__call__" in vars(one) for one in kind.__mro__):
        what = f"is {kind!r}" if isinstance(kind, type) else f"is a {type(kind).__name__}"
        raise UsageError(
            f"{name} {what}, and no policy; write a class with a method `__call__(self, cluster)`: "
            f"{GUIDE}"
        )
    declared = fields(kind) if is_dataclass(kind) else ()
    known = {one.name: one.default for one in declared if one.init and one.default is not MISSING}
    check_parameters(name, parameters, known)
    try:
        rule: ClusterPolicy = kind(**parameters)
    except Exception as error:
        raise UsageError(
            f"no object of the policy {name} can be made: {type(error).__name__}: {error}; give "
            "each of its parameters a default"
        ) from error
    return OwnPolicy(name, rule)


def checked_allocation(name: str, answer: object) -> Allocation:
    if not isinstance(answer, Allocation):
        raise UsageError(
            f"the policy {name} has answered {type(answer).__name__}; it must return an "
            "edl.cluster.state.Allocation"
        )
    try:
        size = len(msgspec.json.encode(answer.state))
        found = msgspec.json.decode(msgspec.json.encode(answer), type=Allocation)
    except (msgspec.ValidationError, msgspec.EncodeError, TypeError, RecursionError) as error:
        raise UsageError(f"the answer of the policy {name} is no Allocation: {error}") from None
    if size > MAX_STATE_BYTES:
        raise UsageError(
            f"the policy {name} wants to keep a state of {size} bytes; at most {MAX_STATE_BYTES} "
            "are allowed"
        )
    reasons = {job: reason[:MAX_REASON_CHARS] for job, reason in found.reasons.items()}
    return replace(found, reasons=reasons)
