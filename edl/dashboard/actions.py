"""Carry out a request of a page: a verb of the command line, by the same client.

:func:`act_on_job` and :func:`act_on_cluster` do so. Each returns the sentence that the verb prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edl.client import Job
from edl.client.policies import stands
from edl.cluster.client.client import Cluster
from edl.core.duration import seconds
from edl.errors import UsageError

WAIT_S = 60.0  # for workers, a host or the job to end; then the page says that it goes on
SOURCE = "the dashboard"  # of a policy, in messages

Values = Mapping[str, Any]
"""The values of a request by name, as JSON has them."""


def act_on_job(job: Job, verb: str, values: Values) -> str:
    """Carry out `verb` on `job`; return a sentence that says what was done."""
    return _found(JOB_VERBS, verb)(job, values)


def check_of_cluster(job: str, verb: str) -> None:
    """Raise an error if a cluster would undo `verb` on its job `job`."""
    if verb in JOB_VERBS and verb not in LASTING_VERBS:
        raise UsageError(
            f"job {job} is one of a cluster, which decides how many workers it has and where; halt "
            "it, or change its priority"
        )


def act_on_cluster(cluster: Cluster, verb: str, values: Values) -> str:
    """Carry out `verb` on `cluster`; return a sentence that says what was done."""
    return _found(CLUSTER_VERBS, verb)(cluster, values)


def _found(verbs: Mapping[str, Callable[[Any, Values], str]], verb: str) -> Callable[..., str]:
    """Return the function that carries out `verb`."""
    if verb not in verbs:
        raise UsageError(f"there is no action {verb[:40]!r}; there are {', '.join(sorted(verbs))}")
    return verbs[verb]


def _number(values: Values, name: str) -> int:
    """Return the whole number that `values` has under `name`."""
    found = values.get(name)
    if isinstance(found, bool) or not isinstance(found, int):
        raise UsageError(f"{name} must be a whole number; give one")
    return found


def _text(values: Values, name: str) -> str:
    """Return the text that `values` has under `name`, without spaces around it."""
    found = values.get(name)
    if not isinstance(found, str) or not found.strip():
        raise UsageError(f"{name} is missing; give one")
    return found.strip()


def _scale(job: Job, values: Values) -> str:
    return str(job.scale(_number(values, "np")))


def _drain(job: Job, values: Values) -> str:
    return job.drain(_number(values, "worker"))


def _drain_host_of_job(job: Job, values: Values) -> str:
    return job.drain_host(_text(values, "host"), WAIT_S)


def _migrate(job: Job, values: Values) -> str:
    np = None if values.get("np") is None else _number(values, "np")
    return str(job.migrate(_text(values, "from"), _text(values, "to"), np, WAIT_S))


def _preempt(job: Job, values: Values) -> str:
    """Let the job save within a bound, written like "30s", and end."""
    within = _text(values, "within")
    within_s = seconds(within)
    if not within_s:
        raise UsageError(f"{within} is no time to save in; write it as 30s, or 2m")
    return job.preempt(within_s, WAIT_S)


def _stop(job: Job, values: Values) -> str:
    return job.stop(WAIT_S)


def _set_policy(job: Job, values: Values) -> str:
    return f"policy of {SOURCE}: {stands(job.set_policy(_text(values, 'text'), SOURCE))}"


def _switch_policy_off(job: Job, values: Values) -> str:
    job.switch_policy_off()
    return "the policy is off; the job keeps its size"


def _resume_policy(job: Job, values: Values) -> str:
    job.resume_policy()
    return "the policy decides again"


JOB_VERBS: Mapping[str, Callable[[Job, Values], str]] = {
    "scale": _scale,
    "drain": _drain,
    "drain-host": _drain_host_of_job,
    "migrate": _migrate,
    "preempt": _preempt,
    "stop": _stop,
    "policy": _set_policy,
    "policy-off": _switch_policy_off,
    "policy-resume": _resume_policy,
}
"""Verb -> the function that carries it out on a job."""

LASTING_VERBS = frozenset({"policy", "policy-off", "policy-resume"})
"""The verbs of ``JOB_VERBS`` that a cluster does not undo on a job of it."""


def _halt(cluster: Cluster, values: Values) -> str:
    """Let a job save, and give its slots to others."""
    job = _text(values, "job")
    cluster.halt(job)
    return f"job {job} is to halt"


def _resume(cluster: Cluster, values: Values) -> str:
    """Let a halted job go on."""
    job = _text(values, "job")
    cluster.resume(job)
    return f"job {job} is to run"


def _delete(cluster: Cluster, values: Values) -> str:
    """End a job for good, or remove the records of one that has ended."""
    job = _text(values, "job")
    removed = cluster.delete(job).removed
    return f"the records of job {job} will be removed" if removed else f"job {job} will be deleted"


def _set_priority(cluster: Cluster, values: Values) -> str:
    """Change the priority of a job."""
    job, priority = _text(values, "job"), _number(values, "priority")
    cluster.priority(job, priority)
    return f"job {job} has priority {priority}"


def _drain_host(cluster: Cluster, values: Values) -> str:
    """Let all jobs leave a host, which gets no others."""
    host = _text(values, "host")
    cluster.hosts.drain(host)
    return f"host {host} is drained"


def _undrain_host(cluster: Cluster, values: Values) -> str:
    """Let a host have jobs again."""
    host = _text(values, "host")
    cluster.hosts.undrain(host)
    return f"host {host} may have jobs again"


CLUSTER_VERBS: Mapping[str, Callable[[Cluster, Values], str]] = {
    "halt": _halt,
    "resume": _resume,
    "delete": _delete,
    "priority": _set_priority,
    "drain": _drain_host,
    "undrain": _undrain_host,
}
"""Verb -> the function that carries it out on a cluster."""
