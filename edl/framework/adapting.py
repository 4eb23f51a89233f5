"""Let a script choose the rules by which the number of workers of its job is decided.

A script may give its job a policy with :func:`policy`. Or it may name a function with
:func:`on_interval`: each worker calls that function regularly, and it returns how many workers to
add or remove.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from math import inf

from edl.core.policy.custom_rule import CustomRule
from edl.core.policy.file import PolicyFile, check_sizes, parse_policy
from edl.core.policy.votes import MAX, MEAN, SUM, Votes
from edl.core.records import JobPolicy
from edl.errors import UsageError
from edl.framework.process import current_worker
from edl.policy_source import read_policy
from edl.worker.worker import Worker

TOGETHER = (SUM, MEAN, MAX)


def policy(policy: str | os.PathLike[str]) -> None:
    """Propose the job's policy for its size, batches and learning rate; a job has one at a time.

    All workers call this function after ``edl.init()``, and before the script makes its data loader
    and optimizer (docs/guides/job-size.md). The call checks the policy and returns; the first
    proposal is written to ZooKeeper a moment later. If the job has another policy already, that one
    stays: from the command line (`edl run --policy`, `edl policy set`, `edl policy off`), or an
    earlier proposal. Without a launcher the job keeps one worker, whatever the policy says.

    Args:
        policy: the path of a policy file, or the policy's text: TOML, with a line for each key. A
            string that has a newline is taken as text.

    Raises:
        UsageError: if ``edl.init()`` was not called, if the policy cannot be read, if it has a size
            rule and the job may have only one size, if the function of a custom rule cannot be
            imported, or if it sets batches or a learning rate and the data loader or the optimizer
            exists already, or the script has proposed a policy without them (also by
            :func:`on_interval`).
    """
    text, source = read_policy(policy, "edl.policy")
    worker = current_worker()
    found = parse_policy(text, source)
    if worker.is_shared:
        check_sizes(found, worker.sizes, source)
    if isinstance(found.size, CustomRule):
        _find(found.size, source)
    if any(found.of_script) and (worker.loader.progress.attached or worker.replica is not None):
        raise UsageError(
            f"{source} has a [batch] or a [learning_rate], and the script has its data loader or "
            "its optimizer already: call edl.policy before both"
        )
    first = worker.size_request.policy or found
    if any(found.of_script) and found.of_script != first.of_script:
        raise UsageError(
            f"{source} has another [batch] or [learning_rate] than the policy that the script has "
            "proposed before, which stays: call edl.policy before edl.on_interval, and once"
        )
    _propose(worker, found, JobPolicy(text, source, found.hold_s))


def on_interval(
    desired_change: Callable[[], int], every_s: float = 60.0, together: str = SUM
) -> None:
    """Call a function of the script regularly, and change the number of workers by what it returns.

    All workers call this function once, after ``edl.init()``. The answers of all workers are
    combined into one change of the job's size, at most once in ``every_s`` seconds and within the
    limits that users, hosts and allowed sizes set. This is a policy (with the rule ``votes``); it
    has no effect if the job has a policy with another rule. If the script has called :func:`policy`
    with the rule ``votes``, that policy stays, with its own ``every`` and ``together``.

    Args:
        desired_change: a function without arguments, called on each worker between two steps, in
            the thread that trains. It returns how many workers to add, or to remove if negative,
            as a whole number; 0: no change.
        every_s: the least number of seconds between two calls of ``desired_change``, and before the
            first; above 0.
        together: how the workers' answers are combined: ``"sum"``, ``"mean"`` or ``"max"``.

    Raises:
        UsageError: if called twice, or with an argument out of range. Raised later, in training, if
            ``desired_change`` returns anything but a whole number from minus a million to a
            million.
    """
    if not callable(desired_change):
        raise UsageError(
            f"edl.on_interval needs a function that returns how many workers more, or fewer, the "
            f"script wants, and was given {desired_change!r}"
        )
    if isinstance(every_s, bool) or not isinstance(every_s, (int, float)) or not 0 < every_s < inf:
        raise UsageError(f"every_s is {every_s!r}; it must be a number of seconds above 0")
    if together not in TOGETHER:
        raise UsageError(f"together is {together!r}; it must be {' or '.join(TOGETHER)}")
    text = f'[size]\nrule = "votes"\ntogether = "{together}"\nevery = "{every_s:f}s"\n'
    found = parse_policy(text, "edl.on_interval")
    worker = current_worker()
    worker.size_request.ask(desired_change, float(every_s))
    first = worker.size_request.policy
    if first is None or not isinstance(first.size, Votes):
        _propose(worker, found, JobPolicy(text, "edl.on_interval", found.hold_s))


def _propose(worker: Worker, found: PolicyFile, policy: JobPolicy) -> None:
    worker.size_request.policy = worker.size_request.policy or found  # the first one stays
    worker.policy.propose(policy)


def _find(rule: CustomRule, source: str) -> None:
    """Check that this process can import a custom rule's function, as the leader will have to."""
    try:
        found = getattr(importlib.import_module(rule.module), rule.function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{source}: cannot find the rule {rule}: {error}") from None
    if not callable(found):
        raise UsageError(f"{source}: the rule {rule} is no function")
