"""Create a job: its specification, its secret and its record in ZooKeeper.

:func:`submit` does all of it for a program; `edl run` calls the other functions. No worker is
started here. Agents start the workers, one agent on each host: the agent of `edl run` in the
process that created the job, the agents of `edl join` on other hosts.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, SupportsIndex

from edl import config, records
from edl.client import changes
from edl.client.connection import choose_job, open_session
from edl.client.job import Job
from edl.client.waiting import OnMessage, flat, ignore
from edl.errors import AccessDenied, EdlError, UnknownJob, UsageError
from edl.host.process import title
from edl.host.supervision import SupervisorLimits
from edl.job.placement import NO_DEVICES, DeviceSets, Placement, check_devices, device_sets, whole
from edl.job.run import check_run_token
from edl.job.snapshot import Snapshot
from edl.records import NO_POLICY, JobPolicy, JobState
from edl.records import Job as JobRecord
from edl.spec import JobSpec
from edl.text import counted, ends_made_up
from edl.zookeeper.access import Access, announce, candidates, keep, new_secret
from edl.zookeeper.local_server import find_local, start_local
from edl.zookeeper.nodes import unlock
from edl.zookeeper.paths import check_name
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Submission:
    """The name and the secret of a job that is about to be created; `prepare` returns it."""

    access: Access  # the name and the secret of the new job
    # the secrets that this user's state directory has for earlier jobs of that name, each with the
    # name
    earlier: tuple[Access, ...]
    replaces: bool  # whether ZooKeeper has a job of that name that one of `earlier` opens


@dataclass(frozen=True)
class CreatedJob:
    """A job that was just created, or was there already; `create` returns it."""

    store: JobStore  # the records of the job in ZooKeeper, in the session that created it
    # the job's record as this call made it; if the job had the run already, the stored one may
    # differ
    record: records.Job
    # the events of the job that it replaced, as `edl events --json` prints them, a line each; empty
    # if no job was replaced, or if a token of the run was given
    replaced_events: str


def submit(
    command: Sequence[str],
    hosts: Mapping[str, SupportsIndex],
    *,
    devices: Mapping[str, Sequence[SupportsIndex]] | None = None,
    name: str | None = None,
    policy: str | None = None,
    cwd: str | Path | None = None,
    zookeeper: str | None = None,
    secret: str | None = None,
    secret_file: str | PathLike[str] | None = None,
    run: str | None = None,
    **settings: Any,
) -> Job:
    """Create a job as `edl run` does, without starting an agent, and return a client of it.

    Each host starts its workers as soon as its agent runs there: `edl join --job NAME --host HOST`,
    or `edl agent --job NAME --run RUN --host HOST`, which joins no other run of that name. A run is
    one start of a job. A job of that name that has ended, or whose processes are all dead, is
    replaced, and its events are removed.

    Without ``run``, until the first host has joined, the job counts as alive only until
    :meth:`Job.close` or the end of a ``with`` block of the returned object; later another job may
    take its name.

    With ``run`` a program can write the token of the run down before it creates the run, and can
    repeat the call after an error or after its own end: the same call changes nothing while the job
    has that run, whatever the state of the job. Therefore a run that was stopped is not started
    again, and the other arguments count the first time only. Such a job counts as alive until it is
    over, even while no process of it lives, for its creator may have died and its hosts may be on
    their way: no other call and no `edl run` takes its name. `edl stop` ends it, also without any
    process of it. A token must not be used for two runs.

    Args:
        command: the command of each worker, like ``["python", "train.py"]``. It is not checked on
            this host; each agent checks it on its own.
        hosts: the number of workers to start, by the name of the host.
        devices: the numbers of the devices (GPUs) that the job may use, by the name of the host; no
            worker may start on a host that is not in it. None: no limit. See :meth:`Job.place`.
        name: the name of the job; None to make one up from the command, see ``job.status().job``.
        policy: the policy of the job in TOML, as a file of `edl run --policy` has it; None to keep
            the size.
        cwd: the working directory of the command on all hosts; None for the one of this process.
        zookeeper: the ZooKeeper servers, "host:port,host:port"; None for EDL_ZOOKEEPER, or else the
            local server of this user, which is started if it does not run.
        secret: the secret of the job; None for the one in ``secret_file``. It is written to this
            user's state directory.
        secret_file: a file, or a pipe, with the secret, which other users cannot read; None for
            EDL_SECRET or EDL_SECRET_FILE, or else the secret of the job that is replaced, or else a
            new one.
        run: the token of the run, 16 to 64 lower-case hexadecimal digits; None to make one up, see
            :meth:`Job.run`. It needs ``name``.
        **settings: settings of the job by name, like ``max_np=8``; settings that are left out come
            from the environment and edl.toml. Without ``max_np`` the job never has more workers
            than at first.

    Raises:
        UsageError: the sizes contradict each other, a name or a token is impossible, a host has
            fewer devices than workers, or the job cannot follow the policy.
        ConfigError: there is no such setting, or a value is out of range.
        JobExists: a job of that name is alive, and has another run.
        AccessDenied: the name is taken by a job that has another secret.
        ZooKeeperUnreachable: ZooKeeper does not answer.
        CoordinationError: ZooKeeper went away; the job may have been created or not.
    """
    if run is not None and name is None:
        raise UsageError("a job with a token of its run needs a name: submit(..., name=, run=)")
    token = None if run is None else check_run_token(run)
    file = None if secret_file is None else fspath(secret_file)
    resolved = config.load(zookeeper=zookeeper, secret=secret, secret_file=file, **settings)
    if isinstance(command, str) or not command or not command[0]:
        raise UsageError(
            f"the command is {command!r}; give its words, for example: "
            'submit(["python", "train.py"], {"a": 2})'
        )
    if not isinstance(hosts, Mapping):
        raise UsageError(
            f"the hosts are {hosts!r}; give the workers to start on each host, for example: "
            'submit(["python", "train.py"], {"a": 2})'
        )
    placement = {check_name("host", host): whole(np, least=1) for host, np in hosts.items()}
    sets = device_sets(devices)
    check_devices("create the job", placement, sets)
    directory = Path.cwd() if cwd is None else Path(cwd).absolute()
    spec = job_spec(command, sum(placement.values()), resolved, directory)
    rule = NO_POLICY
    if policy is not None:
        rule = changes.checked_policy(policy, "a program", spec.sizes, spec.command, directory)
    job = made_up_name(command) if name is None else check_name("job", name)
    servers = resolved.zookeeper or find_local() or start_local()
    with ExitStack() as stack:
        # As long as this session lasts the name is taken.
        session = stack.enter_context(open_session(servers, resolved))
        submission = prepare(session, job, resolved.secret)
        create(session, submission, spec, placement, rule, sets, token)
        keep(config.state_dir(), job, submission.access.secret)
        created = Job(job, servers, secret=submission.access.secret)
        created._keep(stack.pop_all())
    return created


def job_spec(
    command: Sequence[str],
    np: int,
    settings: config.Config,
    cwd: Path,
    slots: int | None = None,
) -> JobSpec:
    """Return the specification of a job that starts with `np` workers."""
    room, of_job = slots or 0, settings.job_settings.of_size(np)
    usable = min(room, of_job.logical or room)
    most = settings.sizes.max_np or max(np, usable)
    least = settings.sizes.min_np
    if settings.sizes.max_np is None and least > most >= 1:  # the user has not given the max
        raise UsageError(
            f"--min-np is {least} and -np is {np}; start with -np {least} or more, or with a lower "
            "--min-np"
        )
    sizes = replace(settings.sizes, max_np=most)
    spec = JobSpec(tuple(command), np, sizes, of_job, str(cwd))
    spec.check()
    return spec


def host_slots(spec: JobSpec, slots: int | None) -> int:
    """Return how many workers fit on this host: `slots`, or the job's maximum if it is None."""
    if slots is None:
        slots = spec.sizes.max_np or spec.np
    if slots < spec.np:
        raise UsageError(
            f"-np is {spec.np} and this host has {counted(slots, 'slot')}; raise --slots, or start "
            f"with -np {max(slots, 1)} and scale after `edl join` on another host"
        )
    return slots


def made_up_name(command: Sequence[str]) -> str:
    """Return a name for a job that the user has not named."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(title(command)).stem).strip("-_")[:40] or "job"
    name = ""
    while not ends_made_up(name):
        name = f"{stem}-{uuid.uuid4().hex[:4]}"
    return name


def prepare(session: Session, name: str, secret: str | None = None) -> Submission:
    """Choose the secret of a job that is about to be created; nothing is stored yet."""
    earlier = tuple(Access(name, one) for one in candidates(config.state_dir(), name, None))
    before = unlock(session, earlier).get(name)
    chosen = secret or (before.secret if before else new_secret())
    return Submission(Access(name, chosen), earlier, replaces=before is not None)


def create(
    session: Session,
    submission: Submission,
    spec: JobSpec,
    hosts: Placement,
    policy: JobPolicy = NO_POLICY,
    devices: DeviceSets = NO_DEVICES,
    run: str | None = None,
) -> CreatedJob:
    """Create a job in ZooKeeper, before the return, and return it with its records."""
    name, secret = submission.access.job, submission.access.secret
    announce(config.state_dir(), name, secret)
    session.identify(*submission.earlier, submission.access)  # an earlier job is replaced
    store = JobStore(session, name)
    events = _events_of(store) if submission.replaces and run is None else ""
    record = records.Job(name=name, spec=spec, created=time.time(), reserved=run is not None)
    store.create(record, hosts, policy=policy, devices=devices, run=run)
    return CreatedJob(store, record, events)


def _events_of(store: JobStore) -> str:
    try:
        return "".join(f"{json.dumps(flat(event))}\n" for _, event in store.events.read_known())
    except EdlError as error:
        logger.warning("the events of the last run of job %s are lost: %s", store.name, error)
        return ""


# ------------------------------------------------------------
# Find the job that `edl run --or-join` joins, or wait until a job of that name can be created.
#
# With `--or-join` all hosts run the same command: the first creates the job, the others join it.
# `has_finished` waits, `same_job` finds the job.

POLL_S = 0.5  # for the end of a job that stops
LIMITS = SupervisorLimits()


def has_finished(session: Session, own: Access, on_message: OnMessage = ignore) -> bool:
    """Return whether the job that `own` names, started with its secret, has trained to its end."""
    job = _present(session, own)
    # It cannot be joined, but started again after its end.
    if job is not None and job.state is JobState.STOPPING:
        on_message(f"job {job.name} stops; waiting for its end to start it anew")
        deadline = time.monotonic() + LIMITS.stop_limit_s(job) + LIMITS.stop_s
        while job is not None and job.state is JobState.STOPPING and time.monotonic() < deadline:
            time.sleep(POLL_S)
            job = _present(session, own)
    return job is not None and job.state is JobState.FINISHED


def same_job(session: Session, own: Access, spec: JobSpec) -> tuple[JobStore, Snapshot]:
    """Return the records, and a snapshot of them, of a job that the same command started."""
    store = choose_job(session, own.job, secret=own.secret)
    _check_ours(session, own)
    snapshot = store.snapshot()
    for what, (theirs, mine) in snapshot.job.spec.differences(spec).items():
        raise UsageError(
            f"job {own.job} runs with {what} {_shown(theirs)}, not {_shown(mine)}; with --or-join "
            "all hosts run the same `edl run`"
        )
    return store, snapshot


def _present(session: Session, own: Access) -> JobRecord | None:
    try:
        job = choose_job(session, own.job, secret=own.secret).snapshot().job
    except AccessDenied:
        raise
    except UnknownJob:
        return None
    if not job.state.over or job.state is JobState.FINISHED:  # any other is replaced
        _check_ours(session, own)
    return job


def _check_ours(session: Session, own: Access) -> None:
    # With its own secret this host would write nodes that the job's processes could not read: they
    # would think that ZooKeeper had lost the job.
    if session.access != own:
        raise AccessDenied(
            own.job,
            f"job {own.job} has another secret than this host's EDL_SECRET; with --or-join all "
            "hosts have the same EDL_SECRET, or choose another --job",
        )


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return repr(shlex.join(map(str, value))) if isinstance(value, tuple) else str(value)
