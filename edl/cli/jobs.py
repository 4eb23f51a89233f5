"""The commands about jobs of a cluster: list, submit, show, wait, halt, resume, priority, ...

`edl list` also lists the jobs of `edl run`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
import yaml

from edl import config
from edl.cli.common import (
    ClusterJobArgument,
    ClusterOption,
    JsonOption,
    WaitTimeoutOption,
    ZooKeeperOption,
    console,
    moment,
    progress,
)
from edl.cli.ending import complain
from edl.client.connection import connected
from edl.client.job import ObservedJobs
from edl.cluster.candidates import ThroughputPoint
from edl.cluster.client.access import NO_CLUSTER, known_access, known_accesses, known_store
from edl.cluster.client.client import STATES, Cluster, manifest_in, read_job_manifest
from edl.cluster.client.waiting import TIMED_OUT, wait_exit_code
from edl.cluster.lifecycle import ClusterEvent, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import cluster_names
from edl.cluster.records import Goal
from edl.cluster.status import ClusterJobDetails, ClusterJobStatus, SchedulerHints
from edl.errors import ManifestError, TimedOut, UsageError
from edl.host.output import wrapped
from edl.records import JobState
from edl.status import (
    JobSummary,
    hidden_jobs_note,
    newest_jobs,
    summary_lines,
    unreadable_jobs_notes,
)
from edl.text import by_host, counted, rounded, workers

OWN_STATES: tuple[str, ...] = tuple(JobState)  # of jobs of `edl run`


def list_jobs(
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="Only jobs of it.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only jobs in it. Of a cluster: {', '.join(STATES)}. Of `edl run`: "
            f"{', '.join(OWN_STATES)}.",
        ),
    ] = None,
    as_json: JsonOption = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="Jobs of this cluster. Default: EDL_CLUSTER, else the only one whose secret is "
            "known here; without one, jobs of `edl run`. '': jobs of `edl run`.",
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """List the jobs of a cluster, or those of `edl run`, each with its state and the reason.

    Jobs of a cluster are listed in the order of submission. Of the jobs of `edl run`, the running
    ones are listed first, then the newest. Of the jobs that have ended, only the newest are listed;
    --state and --json list all of them. With --json, one line for each job.
    """
    if queue is None and not (cluster or (config.load().cluster and cluster != NO_CLUSTER)):
        with connected(zookeeper) as session:
            if cluster == NO_CLUSTER or known_store(session, None) is None:
                jobs = ObservedJobs(session)
                found = jobs.read()
                names = cluster_names(session) if not found and cluster != NO_CLUSTER else ()
                if names and not known_accesses(session, names, None):
                    known_access(session, None)  # raises the error that names them
                _show_own(found, jobs, state, as_json)
                return
    _show_of_cluster(Cluster(cluster or None, zookeeper), queue, state, as_json)


def _show_own(
    found: Sequence[JobSummary], jobs: ObservedJobs, state: str | None, as_json: bool
) -> None:
    if state is not None and state not in OWN_STATES:
        raise UsageError(f"there is no state {state!r}; use one of {', '.join(OWN_STATES)}")
    chosen = [job for job in found if state in (None, job.state)]
    unreadable = unreadable_jobs_notes(jobs.unreadable)
    if as_json:
        for job in chosen:
            typer.echo(json.dumps(job.to_json()))
        for note in unreadable:
            typer.echo(f"edl: {note}", err=True)
        return
    shown, more = newest_jobs(chosen) if state is None else (chosen, 0)
    width = console().width if console().is_terminal else None
    if not shown and not unreadable:
        such = f"job is {state}" if state else "job is known here; start one with `edl run`"
        typer.echo(f"no {such}")
    for line in summary_lines(shown, time.time(), width) if shown else ():
        typer.echo(line)
    if more:
        typer.echo(hidden_jobs_note(more, "edl list --json"))
    for note in unreadable:
        typer.echo(note)
    if jobs.locked:
        typer.echo(f"{counted(jobs.locked, 'job')} not shown: the secret is not known here")


def _show_of_cluster(cluster: Cluster, queue: str | None, state: str | None, as_json: bool) -> None:
    with cluster:
        jobs, name = cluster.list(queue, state), cluster.name
        has_controller = None if as_json else cluster.has_controller()
    if as_json:
        for job in jobs:
            typer.echo(json.dumps(job.to_json()))
        return
    if not jobs:
        such = " such" if queue or state else ""
        typer.echo(f"cluster {name} has no{such} jobs")
        return
    shown, more = newest_ended(jobs) if state is None else (jobs, 0)
    width = console().width if console().is_terminal else None
    for line in job_table(shown, time.time(), width):
        typer.echo(line.rstrip())
    if more:
        typer.echo(hidden_jobs_note(more, "edl list --state ended"))
    if has_controller is False and not all(job.is_over for job in jobs):
        typer.echo(
            f"no controller of cluster {name} runs: jobs train on, none starts or changes, and the "
            f"reasons are of before; start one with `edl cluster start --name {name}`"
        )


STANDARD_INPUT = "-"


def submit(
    manifest: Annotated[
        str, typer.Argument(metavar="FILE", help="The job's manifest; -: standard input.")
    ],
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="TEXT",
            help="Names this submission: the same key again is the same job.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Show its place in the queue and why it waits, until it trains."
        ),
    ] = False,
    timeout_s: WaitTimeoutOption = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Submit a job to a cluster; it starts when it gets slots.

    Returns as soon as the job is in ZooKeeper. With --watch it ends with 0 when the job trains; if
    it ends or is halted before that, as `edl wait`.
    """
    if timeout_s is not None and not watch:
        raise UsageError("--timeout is for --watch; give both or neither")
    if manifest != STANDARD_INPUT:
        given = read_job_manifest(manifest)
    elif sys.stdin is None:  # the parent has closed it
        raise ManifestError("standard input", 0, "it is closed; name the file of a job's manifest")
    else:
        given = manifest_in(sys.stdin.buffer, "standard input")
    with Cluster(cluster, zookeeper) as client:
        name = client.submit(given, key)
        if not watch:
            if as_json:
                typer.echo(json.dumps(client.show(name).job.to_json()))
            else:
                typer.echo(f"job {name} is submitted to cluster {client.name}")
            return

        def show(now: ClusterJobStatus) -> None:
            typer.echo(json.dumps(now.to_json()) if as_json else f"{name}  {state_line(now)}")

        try:
            end = client.wait_until_running(name, timeout_s, show)
        except KeyboardInterrupt:
            print(f"edl: interrupted; job {name} stays submitted", file=sys.stderr)
            raise typer.Exit(130) from None
        except TimedOut as error:
            complain(error)
            raise typer.Exit(TIMED_OUT) from None
    if end.is_over:
        raise typer.Exit(wait_exit_code(end))


def show(
    job: ClusterJobArgument,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show a job of a cluster: its state, slots by host, runs, manifest and history."""
    details = Cluster(cluster, zookeeper).show(job)
    if as_json:
        typer.echo(json.dumps(details.to_json()))
        return
    width = console().width if console().is_terminal else None
    typer.echo(details_text(details, time.time(), width))


def wait(
    job: ClusterJobArgument,
    timeout_s: WaitTimeoutOption = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Wait until a job of a cluster has ended, or a user has halted it.

    Ends with 0 if the job has finished; if it has failed with the exit code of its last run, or 1;
    with 90 if it is halted, 94 if it was deleted, 124 if --timeout is over.
    """
    with progress() as on_message:
        try:
            end = Cluster(cluster, zookeeper).wait(
                job, timeout_s, lambda now: on_message(f"{job}  {state_line(now)}")
            )
        except TimedOut as error:
            complain(error)
            raise typer.Exit(TIMED_OUT) from None
    typer.echo(json.dumps(end.to_json()) if as_json else f"job {job} {state_line(end)}")
    raise typer.Exit(wait_exit_code(end))


def halt(
    job: ClusterJobArgument, cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None
) -> None:
    """Let a job of a cluster stop with a checkpoint and give its slots to others.

    Returns as soon as that is written into ZooKeeper; `edl wait` waits for it. `edl resume` lets
    the job go on.
    """
    Cluster(cluster, zookeeper).halt(job)
    typer.echo(f"job {job} is to halt")


def resume(
    job: ClusterJobArgument, cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None
) -> None:
    """Let a halted job of a cluster go on from its newest checkpoint when it gets slots."""
    Cluster(cluster, zookeeper).resume(job)
    typer.echo(f"job {job} is to run")


def priority(
    job: ClusterJobArgument,
    number: Annotated[int, typer.Argument(metavar="N", help="The new priority.")],
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Change the priority of a job of a cluster; jobs of a higher one get slots first."""
    Cluster(cluster, zookeeper).priority(job, number)
    typer.echo(f"job {job} has priority {number}")


def undrain(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Name of the host.")],
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let a host of a cluster that was drained have jobs again."""
    Cluster(cluster, zookeeper).hosts.undrain(host)
    typer.echo(f"host {host} may have jobs again")


def hints(
    job: ClusterJobArgument,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show how fast a job of a cluster trains, as another scheduler needs it.

    With --json also in the words of AdaptDL's jobs, in `sched_hints`.
    """
    found = Cluster(cluster, zookeeper).hints(job)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
        return
    for line in hint_lines(found):
        typer.echo(line)


def hint_lines(found: SchedulerHints) -> list[str]:
    most = "any number" if found.max is None else str(found.max)
    only = f", only {', '.join(map(str, found.sizes))}" if found.sizes else ""
    noise, left = found.noise_scale, found.samples_left
    return [
        f"workers      {found.min} to {most}{only}; it asks for {found.np}",
        f"samples/s    {throughput_text(found.throughput)}",
        f"noise scale  {'not known' if noise is None else f'{noise:,.0f} samples'}",
        f"left         {'not known' if left is None else f'{left:,.0f} samples'}",
    ]


ENDED_SHOWN = 10  # jobs that have ended, the newest, if the user did not ask for a state
_GAP = "  "  # between two columns


def job_table(jobs: Sequence[ClusterJobStatus], now_s: float, width: int | None) -> list[str]:
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "SLOTS", "PRIORITY", "QUEUE", "AGE", "REASON")]
    rows += [(*_columns(job), rounded(now_s - job.submitted_s), job.reason) for job in jobs]
    if all(job.queue == "default" for job in jobs):
        rows = [(*row[:4], *row[5:]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.ljust(size) for text, size in zip(row[:-1], widths, strict=False)]
        head = "".join(f"{cell}{_GAP}" for cell in cells)
        line = f"{head}{row[-1]}"
        lines.append(line if width is None else wrapped(line, width, len(head)))
    return lines


def newest_ended(jobs: Sequence[ClusterJobStatus]) -> tuple[list[ClusterJobStatus], int]:
    ended = [job for job in jobs if job.state is LifeState.ENDED]
    by_end = sorted(ended, key=lambda job: job.ended_s)
    old = {job.name for job in by_end[: max(0, len(ended) - ENDED_SHOWN)]}
    return [job for job in jobs if job.name not in old], len(old)


def state_line(job: ClusterJobStatus) -> str:
    return f"{job.outcome}: {job.reason}"


def details_text(details: ClusterJobDetails, now_s: float, width: int | None) -> str:
    rows = _rows(details, now_s)
    size = max(map(len, rows)) + len(_GAP)
    lines = [f"{title.ljust(size)}{text}" for title, text in rows.items()]
    lines = [line if width is None else wrapped(line, width, size) for line in lines]
    given = _differing(details.manifest.to_json(), JobManifest("", (), 0, 0).to_json())
    manifest = yaml.safe_dump(given, sort_keys=False, default_flow_style=None, allow_unicode=True)
    lines += ["", "manifest", *(f"  {line}" for line in manifest.splitlines()), "", "history"]
    lines += [f"  {event_line(event, None, named=False)}" for event in details.history]
    return "\n".join(lines)


def event_line(event: ClusterEvent, width: int | None, named: bool = True) -> str:
    clock = datetime.fromtimestamp(event.time_s).strftime("%m-%d %H:%M:%S")
    about = f"{event.job or event.host}: " if named and (event.job or event.host) else ""
    head = f"{clock}  {event.kind:<9}  "
    by = f" [{event.by}]" if event.by else ""
    line = f"{head}{about}{event.reason}{by}"
    return line if width is None else wrapped(line, width, len(head))


def _columns(job: ClusterJobStatus) -> tuple[str, str, str, str, str]:
    surplus = f" ({job.surplus} surplus)" if job.surplus else ""
    slots = f"{job.slots}/{_range(job.min, job.max)}{surplus}"
    return job.name, job.outcome, slots, str(job.priority), job.queue


def _range(least: int, most: int) -> str:
    return f"{least}-{most}" if least < most else str(most)


def _rows(details: ClusterJobDetails, now_s: float) -> dict[str, str]:
    job, where = details.job, ""
    if details.devices:
        has = by_host({host: len(devices) for host, devices in details.devices.items()})
        back = {host: len(devices) for host, devices in details.leaving.items()}
        where = f" ({has}{f'; giving back {by_host(back)}' if back else ''})"
    failed = f", {job.failures} failed" if job.failures else ""
    token = f"; the last one is {details.run}" if details.run else ""
    wanted = {Goal.RUN: "", Goal.HALT: "that it halts"}.get(job.wanted, "that it is gone")
    left_s = details.not_before_s - now_s
    waits = job.state is LifeState.QUEUED and left_s > 0
    since = f", for {rounded(now_s - job.since_s)}" if job.since_s else ""
    rows = {
        "job": job.name,
        "state": f"{job.outcome}{since}: {job.reason}",
        "wanted": wanted,
        "slots": f"{job.slots} of {_range(job.min, job.max)}, {job.np} wanted{where}"
        + (f"; {job.surplus} beyond the quota of its queue" if job.surplus else ""),
        "priority": f"{job.priority}, queue {job.queue}",
        "submitted": f"{moment(job.submitted_s)}, {rounded(now_s - job.submitted_s)} ago",
        "started": moment(job.started_s) if job.started_s else "",
        "ended": f"{moment(job.ended_s)}, exit code {job.exit_code}" if job.ended_s else "",
        "runs": f"{job.runs}{failed}{token}; {details.slot_s:,.0f} slot-seconds",
        "next start": f"not in the next {rounded(left_s)}" if waits else "",
        "samples/s": throughput_text(details.throughput),
    }
    return {title: text for title, text in rows.items() if text}


def throughput_text(curve: Sequence[ThroughputPoint]) -> str:
    known = [point for point in curve if point.samples_per_s is not None]
    if not known:
        return "not known; it is assumed to grow in proportion to the workers"
    return ", ".join(
        f"{point.samples_per_s:,.4g} with {workers(point.np)} ({point.source})" for point in known
    )


def _differing(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in values.items():
        other = usual.get(key)
        if value != other:
            both = isinstance(value, Mapping) and isinstance(other, Mapping)
            found[key] = _differing(value, other) if both and other else value
    return found
