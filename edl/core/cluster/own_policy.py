"""Use a cluster policy that a user has written: check its class, its parameters and its answers.

Such a policy is a class of the user, named ``module:Class``. Its objects are called as those of
:class:`edl.core.cluster.state.ClusterPolicy`. Nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

import msgspec

from edl.core.cluster.policies import check_parameters
from edl.core.cluster.state import Allocation, ClusterPolicy, ClusterState
from edl.core.cluster.validity import violation
from edl.errors import UsageError

MOST_STATE_BYTES = 100_000  # of JSON: ZooKeeper holds 1 MB in a node, with all else of a decision
MOST_REASON_CHARS = 300
GUIDE = "see docs/guides/writing-a-policy.md"


@dataclass(frozen=True)
class OwnPolicy:
    """A cluster policy of a user, whose errors and wrong answers are errors of one sentence."""

    name: str  # the policy as the user names it: "module:Class"
    rule: ClusterPolicy  # the object of that class

    def __call__(self, cluster: ClusterState) -> Allocation:
        """Return the decision of the user's policy about `cluster`, as JSON would hold it."""
        try:
            answer = self.rule(cluster)
        except Exception as error:
            raise UsageError(f"the policy {self.name} has failed: {self._told(error)}") from error
        found = checked_allocation(self.name, answer)
        wrong = violation(found, cluster)
        if wrong is not None:
            raise UsageError(f"the decision of the policy {self.name} breaks a rule: {wrong}")
        return found

    def _told(self, error: Exception) -> str:
        """Return what `error` is, and the line of the user's module from which it came."""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        trace, place = error.__traceback__, ""
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__") == type(self.rule).__module__:
                file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
                place = f" ({file}, line {trace.tb_lineno})"
            trace = trace.tb_next
        return f"{what}{place}"


def own_policy(name: str, found: object, parameters: Mapping[str, Any]) -> OwnPolicy:
    """Return the policy that a user's class makes, with these `parameters`."""
    if not isinstance(found, type) or not any("__call__" in vars(one) for one in found.__mro__):
        what = f"is {found!r}" if isinstance(found, type) else f"is a {type(found).__name__}"
        raise UsageError(
            f"{name} {what}, and no policy; write a class with a method `__call__(self, cluster)`: "
            f"{GUIDE}"
        )
    declared = fields(found) if is_dataclass(found) else ()
    known = {one.name: one.default for one in declared if one.init and one.default is not MISSING}
    check_parameters(name, parameters, known)
    try:
        rule: ClusterPolicy = found(**parameters)
    except Exception as error:
        raise UsageError(
            f"no object of the policy {name} can be made: {type(error).__name__}: {error}; give "
            "each of its parameters a default"
        ) from error
    return OwnPolicy(name, rule)


def checked_allocation(name: str, answer: object) -> Allocation:
    """Return `answer` as the decision that JSON would hold, with reasons of limited length."""
    if not isinstance(answer, Allocation):
        raise UsageError(
            f"the policy {name} has answered {type(answer).__name__}; it must return an "
            "edl.core.cluster.state.Allocation"
        )
    try:
        size = len(msgspec.json.encode(answer.state))
        found = msgspec.json.decode(msgspec.json.encode(answer), type=Allocation)
    except (msgspec.ValidationError, msgspec.EncodeError, TypeError, RecursionError) as error:
        raise UsageError(f"the answer of the policy {name} is no Allocation: {error}") from None
    if size > MOST_STATE_BYTES:
        raise UsageError(
            f"the policy {name} wants to keep a state of {size} bytes; at most {MOST_STATE_BYTES} "
            "are allowed"
        )
    reasons = {job: reason[:MOST_REASON_CHARS] for job, reason in found.reasons.items()}
    return replace(found, reasons=reasons)
