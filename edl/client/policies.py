"""The policy of a job: given, switched off, given back, and explained."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from pathlib import Path

from edl.client.waiting import running
from edl.coordination.job_store import JobStore
from edl.core.policy.cost import span
from edl.core.policy.custom_rule import CustomRule
from edl.core.policy.file import Policy, check_change, check_sizes, parse
from edl.core.policy.goodput import Goodput
from edl.core.policy.hill_climbing import Comparison, HillClimbing
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.records import JobPolicy
from edl.core.sizes import Sizes
from edl.errors import UsageError


@dataclass(frozen=True)
class Explanation:
    """What a policy decides from now: ``np`` workers train.

    Attributes:
        verdicts: of a rule that climbs.
        modelled: samples/s that a model expects of each size.
    """

    policy: JobPolicy
    np: int
    learned: ScalingProfile
    verdicts: tuple[Comparison, ...]
    says: str  # the leader's last word
    modelled: Mapping[int, float] = field(default_factory=dict)


def set_policy(store: JobStore, text: str, source: str) -> JobPolicy:
    """Let the job follow the policy in ``text`` from now on.

    Raises:
        UsageError: it cannot be read, it cannot reach another size of the job, its [batch] or
            [learning_rate] is another one than the job began with, or the job is over.
    """
    now = running(store, f"give job {store.name} a policy")
    new = read(text, source, now.job.sizes, now.job.spec.command, Path(now.job.spec.cwd))
    given = parse(text, source)

    def changed(before: JobPolicy) -> JobPolicy:
        check_change(_written(before), given, source)
        return new

    return store.policy.change(changed, f"edl policy set: {source}")


def _written(policy: JobPolicy) -> Policy:
    """As it reads; one that nobody can read says nothing."""
    with suppress(UsageError):
        return parse(policy.text, policy.source)
    return Policy("")


def switch_off(store: JobStore) -> JobPolicy:
    """Let the job keep the size that it has; its policy stays, off.

    Raises:
        UsageError: it has none, or it is off already, or the job is over.
    """
    running(store, f"switch off the policy of job {store.name}")

    def off(policy: JobPolicy) -> JobPolicy:
        _check_any(store, policy)
        if policy.off:
            raise UsageError(f"the policy of job {store.name} is off already: {policy.off}")
        return replace(policy, off="edl policy off")

    return store.policy.change(off, "edl policy off")


def resume(store: JobStore) -> JobPolicy:
    """Let the policy decide again, which was off or held by a person's word.

    Raises:
        UsageError: the job has none, or it decides anyway, or the job is over.
    """
    running(store, f"resume the policy of job {store.name}")

    def on(policy: JobPolicy) -> JobPolicy:
        _check_any(store, policy)
        if policy.is_on and policy.held_until_s <= time.time():
            raise UsageError(f"the policy of job {store.name} is on, and nobody holds it")
        return replace(policy, off="", held_until_s=0.0)

    return store.policy.change(on, "edl policy resume")


def explain(store: JobStore) -> Explanation:
    """What the policy decides from now.

    Raises:
        UsageError: the job has none.
    """
    now, learned = store.snapshot(), store.policy.learned()
    _check_any(store, now.policy)
    np = len(now.generation.members) if now.generation is not None else 0
    rule = parse(now.policy.text, now.policy.source).size
    slots = sum(host.slots for host in now.available)
    left, filled = now.status.left, [host.slots for host in now.available]
    observation = learned.observation(np, now.job.sizes, slots, False, left, (), filled)
    verdicts = tuple(rule.table(observation)) if isinstance(rule, HillClimbing) else ()
    modelled = rule.table(observation) if isinstance(rule, Goodput) else {}
    return Explanation(now.policy, np, learned, verdicts, now.status.policy, modelled)


def read(text: str, source: str, sizes: Sizes, command: Sequence[str], cwd: Path) -> JobPolicy:
    """The policy in ``text``, if the job can follow it; nothing of the user's is run for that.

    Args:
        command: of the workers, which run it in ``cwd``: a rule of one's own is found from there.

    Raises:
        UsageError: it cannot be read, it can reach no other size, or its rule is not there.
    """
    policy = parse(text, source)
    check_sizes(policy, sizes, source)
    if isinstance(policy.size, CustomRule):
        scripts = [(cwd / word).parent for word in command if word.endswith(".py")][:1]
        _find(policy.size, [*scripts, cwd], source)
    return JobPolicy(text, source, policy.hold_s)


def _find(rule: CustomRule, directories: Sequence[Path], source: str) -> None:
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
    """What a statement at the top of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, (ast.If, ast.Try)):
        yield from (name for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)
                    for name in _names(inner))  # fmt: skip


def stands(policy: JobPolicy) -> str:
    """Whether a policy counts, in words."""
    if not policy.text:
        return "no policy"
    if policy.off:
        return f"off: {policy.off}"
    left_s = policy.held_until_s - time.time()
    return f"on, held by a person for {span(left_s)} more" if left_s > 0 else "on"


def _check_any(store: JobStore, policy: JobPolicy) -> None:
    if not policy.text:
        raise UsageError(
            f"job {store.name} has no policy; give it one with `edl policy {store.name} set FILE`"
        )
