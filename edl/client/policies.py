"""Set, switch off, resume and explain the policy of a job: the rule by which it finds its size.

The functions are :func:`set_policy`, :func:`switch_off`, :func:`resume` and :func:`explain`;
:func:`checked_policy` checks a policy before its job exists.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from pathlib import Path

from edl.client.waiting import running
from edl.coordination.job_store import JobStore
from edl.core.policy.cost import span
from edl.core.policy.custom_rule import CustomRule
from edl.core.policy.file import PolicyFile, check_change, check_sizes, parse_policy
from edl.core.policy.goodput import Goodput
from edl.core.policy.hill_climbing import HillClimbing, SizeComparison
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.records import JobPolicy
from edl.core.sizes import Sizes
from edl.errors import UsageError


@dataclass(frozen=True)
class Explanation:
    """The policy of a job, with the measurements that it decides from; `explain` returns it."""

    policy: JobPolicy
    # the number of workers in the newest generation; 0: there is none yet, or the job has ended
    np: int
    learned: ScalingProfile  # what was measured of the job, such as its throughput at each size
    # for a hill-climbing rule, whether the larger number of workers is worth its cost, for each
    # pair of measured sizes; empty for other rules
    verdicts: tuple[SizeComparison, ...]
    says: str  # the leader's last word
    # for the rule `goodput`, the goodput (throughput times statistical efficiency) that its model
    # expects at each number of workers, in samples/s; empty for other rules
    modelled: Mapping[int, float] = field(default_factory=dict)


def set_policy(store: JobStore, text: str, source: str) -> JobPolicy:
    """Let the job follow a policy from now on, in place of another; return it as it is stored."""
    now = running(store, f"give job {store.name} a policy")
    new = checked_policy(text, source, now.job.sizes, now.job.spec.command, Path(now.job.spec.cwd))
    given = parse_policy(text, source)

    def changed(before: JobPolicy) -> JobPolicy:
        check_change(_written(before), given, source)
        return new

    return store.policy.change(changed, f"edl policy set: {source}")


def _written(policy: JobPolicy) -> PolicyFile:
    """Return the parsed text of `policy`; without a text that can be parsed, an empty policy."""
    with suppress(UsageError):
        return parse_policy(policy.text, policy.source)
    return PolicyFile("")


def switch_off(store: JobStore) -> JobPolicy:
    running(store, f"switch off the policy of job {store.name}")

    def off(policy: JobPolicy) -> JobPolicy:
        _check_any(store, policy)
        if policy.off:
            raise UsageError(f"the policy of job {store.name} is off already: {policy.off}")
        return replace(policy, off="edl policy off")

    return store.policy.change(off, "edl policy off")


def resume(store: JobStore) -> JobPolicy:
    """Let the job's policy decide again after it was switched off, or held by a user's request."""
    running(store, f"resume the policy of job {store.name}")

    def on(policy: JobPolicy) -> JobPolicy:
        _check_any(store, policy)
        if policy.is_on and not store.policy.learned().held_s(policy):
            raise UsageError(f"the policy of job {store.name} is on, and nobody holds it")
        return replace(policy, off="", held_until_s=0.0)

    return store.policy.change(on, "edl policy resume")


def explain(store: JobStore) -> Explanation:
    """Return the policy of the job, what the leader says about it, and the data behind that."""
    now, learned = store.snapshot(), store.policy.learned()
    _check_any(store, now.policy)
    np = len(now.generation.members) if now.generation is not None else 0
    rule = parse_policy(now.policy.text, now.policy.source).size
    slots = sum(host.slots for host in now.available)
    left, filled = now.status.left, [host.slots for host in now.available]
    last = np or learned.np
    observation = learned.observation(last, now.job.sizes, slots, False, left, (), filled)
    verdicts = tuple(rule.table(observation)) if isinstance(rule, HillClimbing) else ()
    modelled = rule.table(observation) if isinstance(rule, Goodput) else {}
    return Explanation(now.policy, np, learned, verdicts, now.status.policy, modelled)


def checked_policy(
    text: str, source: str, sizes: Sizes, command: Sequence[str], cwd: Path
) -> JobPolicy:
    """Return a job's policy made from `text`, after a check that the job can follow it."""
    policy = parse_policy(text, source)
    check_sizes(policy, sizes, source)
    if isinstance(policy.size, CustomRule):
        scripts = [(cwd / word).parent for word in command if word.endswith(".py")][:1]
        _find(policy.size, [*scripts, cwd], source)
    return JobPolicy(text, source, policy.hold_s)


def _find(rule: CustomRule, directories: Sequence[Path], source: str) -> None:
    """Raise a UsageError if the module or the function of a custom rule does not exist."""
    paths: Sequence[str] | None = [*map(str, directories), *sys.path]
    spec = None
    for number, _ in enumerate(rule.module.split("."), 1):
        name = ".".join(rule.module.split(".")[:number])
        spec = PathFinder.find_spec(name, paths)
        if spec is None:
            where = ", ".join(map(str, dict.fromkeys(directories)))
            raise UsageError(
                f"{source}: there is no module {name} for the rule {rule}, in {where} or among the "
                "installed ones"
            )
        paths = spec.submodule_search_locations
    if spec is None or not (spec.origin or "").endswith(".py"):
        return
    try:
        tree = ast.parse(Path(spec.origin or "").read_text())
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{source}: cannot read the rule {rule}: {error}") from None
    if rule.function not in {name for node in tree.body for name in _names(node)}:
        raise UsageError(f"{source}: {spec.origin} has no function {rule.function}")


def _names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that `node`, a statement at the top level of a module, may define."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, (ast.If, ast.Try)):
        yield from (name for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)
                    for name in _names(inner))  # fmt: skip


def stands(policy: JobPolicy, held_s: float = 0.0) -> str:
    """Return whether a policy is in force, as words for the user."""
    if not policy.text:
        return "no policy"
    if policy.off:
        return f"off: {policy.off}"
    return f"on, held by a person for {span(held_s)} more" if held_s > 0 else "on"


def _check_any(store: JobStore, policy: JobPolicy) -> None:
    """Raise a UsageError if `policy` is empty, because then the job has none."""
    if not policy.text:
        raise UsageError(
            f"job {store.name} has no policy; give it one with `edl policy {store.name} set FILE`"
        )
