"""What a script says of its job's size: a policy to follow, and what it wishes itself."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from math import inf
from pathlib import Path

from edl.core.policy.custom_rule import CustomRule
from edl.core.policy.file import check_sizes, parse
from edl.core.policy.votes import MAX, MEAN, SUM
from edl.core.records import JobPolicy
from edl.errors import UsageError
from edl.framework.process import current_worker

TOGETHER = (SUM, MEAN, MAX)


def policy(policy: str | os.PathLike[str]) -> None:
    """Let the job follow a policy, unless it has one: of its size, its batches, its learning rate.

    Call it after ``edl.init()``, before the data loader and the optimizer
    (docs/guides/job-size.md). What people say counts more: `edl run --policy`, `edl policy set` and
    `edl policy off`. Without a launcher the job has one worker, whatever a policy says.

    Args:
        policy: the name of a file, or its text: TOML, with a line for each key.

    Raises:
        UsageError: it cannot be read, the job can follow no such policy, or it is too late.
    """
    text, source = _read(policy)
    worker = current_worker()
    found = parse(text, source)
    if worker.is_shared:
        check_sizes(found, worker.sizes, source)
    if isinstance(found.size, CustomRule):
        _find(found.size, source)
    if any(found.of_script) and (worker.loader.progress.attached or worker.replica is not None):
        raise UsageError(
            f"{source} has a [batch] or a [learning_rate], and the script has its data loader or "
            "its optimizer already: call edl.policy before both"
        )
    worker.size_request.policy = found
    worker.policy.propose(JobPolicy(text, source, found.hold_s))


def on_interval(
    desired_change: Callable[[], int], every_s: float = 60.0, together: str = SUM
) -> None:
    """Ask the script every so often how many workers more, or fewer, it wants.

    ``desired_change()`` is called on each worker between two steps, and returns a whole number. The
    job's size changes by all of them together, at most once in ``every_s``, within what people,
    hosts and sizes allow. It is the policy of the job, unless that has one (rule ``votes``).

    Args:
        every_s: seconds between two calls.
        together: ``"sum"`` of the wishes, their ``"mean"`` or their ``"max"``.

    Raises:
        UsageError: called twice, or with values that cannot be; later, the function returns
            something else than a whole number.
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
    found = parse(text, "edl.on_interval")
    worker = current_worker()
    worker.size_request.ask(desired_change, float(every_s))
    worker.policy.propose(JobPolicy(text, "edl.on_interval", found.hold_s))


def _read(policy: str | os.PathLike[str]) -> tuple[str, str]:
    """Text and name of a policy."""
    if isinstance(policy, str) and "\n" in policy:
        return policy, "edl.policy"
    try:
        return Path(policy).read_text(), os.fspath(policy)
    except TypeError:
        raise UsageError(f"edl.policy needs a file or its text, and was given {policy!r}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"cannot read the policy {os.fspath(policy)}: {why}") from None


def _find(rule: CustomRule, source: str) -> None:
    """Make sure that the worker which leads finds it."""
    try:
        found = getattr(importlib.import_module(rule.module), rule.function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{source}: cannot find the rule {rule}: {error}") from None
    if not callable(found):
        raise UsageError(f"{source}: the rule {rule} is no function")
