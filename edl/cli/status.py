"""What one sees of a job now: `edl status`, `edl top`, and its page in a file, `edl report`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edl.cli.common import (
    FOLLOW_S,
    JobArgument,
    JsonOption,
    ZooKeeperOption,
    columns,
    console,
    facts_table,
    print_table,
    trouble_words,
)
from edl.client.connection import choose_job, connected
from edl.client.job import ObservedJob, ObservedJobs
from edl.errors import CoordinationError, UnknownJob, UsageError
from edl.records import Reclaim
from edl.status import (
    MAX_EVENTS,
    JobStatus,
    TextLine,
    job_screen,
    job_status,
    jobs_screen,
    pause_s,
)
from edl.text import by_host, counted, cropped, rounded

GIVEN_UP_SHOWN = 3  # workers; the newest
QUIET_S = 2.0  # without a step, and five usual steps: then it is said


def status(
    job: JobArgument = None,
    as_json: JsonOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again twice a second until the job ends.")
    ] = False,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show which worker leads, which workers train, and how far the job is.

    JOB may be left out if one job runs, or if none runs and one has ended.
    """
    with connected(zookeeper) as session:
        store = choose_job(session, job, ended=True)
        if not watch:
            _show(job_status(store.snapshot(), session.hosts), as_json)
            return
        now: JobStatus | None = None
        screen = console()
        with (
            Live(console=screen, auto_refresh=False)
            if screen.is_terminal
            else nullcontext() as live
        ):
            said = ""
            while now is None or not now.state.over:
                if now is not None:
                    time.sleep(FOLLOW_S)
                try:
                    now = job_status(store.snapshot(), session.hosts)
                except CoordinationError as error:
                    if now is None:
                        raise
                    # the rest is as it was last known
                    now = replace(now, away=trouble_words(session.connected, error))
                if as_json:
                    _show(now, as_json)
                elif live is not None:
                    live.update(status_table(now), refresh=True)
                elif (text := line(now)) != said:
                    said = text
                    typer.echo(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S} {text}")


def _show(now: JobStatus, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(now.to_json()))
    else:
        print_table(status_table(now))


def status_table(now: JobStatus) -> RenderableType:
    wanted = now.desired or now.assigned
    where, has = _listed(now, wanted), _listed(now, now.assigned)
    assigned = "" if where == has else f"; assigned: {has}"
    leads = next((member for member in now.members if member.id == now.leader), None)
    at = f" on {leads.host}, process {leads.pid}" if leads is not None else ""
    rows = {
        "job": now.job,
        "state": _state(now),
        "leader": f"{now.leader or 'nobody'}{at}, term {now.term}",
        "workers": f"{now.world_size} of {sum(wanted.values())} wanted "
        f"({where}){assigned}; {now.sizes}; generation {now.generation}",
        "progress": _progress(now),
        "ZooKeeper": now.zookeeper + (f"; {now.away}" if now.away else ""),
    }
    if now.untrained:
        rows["untrained"] = f"{now.untrained:,} samples of epochs that were left before their end"
    if now.policy:
        rows["policy"] = now.policy
    if now.global_batch:
        rows["global batch"] = f"{now.global_batch:,} samples"
    if now.noise_scale is not None:
        biased = ", by a single worker" if now.noise_is_biased else ""
        rows["noise scale"] = (
            f"{now.noise_scale:,.0f} samples{biased}: a larger global batch is worth less and less"
        )
    if now.slowest is not None:
        from edl.step.record import SlowestWorker  # it imports NumPy

        slow = SlowestWorker(int(now.slowest.removeprefix("w")), now.slowest_s, now.others_s)
        rows["slowest"] = str(slow)
    if now.devices:
        rows["devices"] = "; ".join(
            f"{host}: {', '.join(map(str, numbers))}" for host, numbers in now.devices.items()
        )
    room = {host: slots - wanted.get(host, 0) for host, slots in now.hosts.items()}
    if free := {host: n for host, n in room.items() if n > 0}:
        rows["free slots"] = by_host(free)
    if now.borrowed:
        rows["borrowed slots"] = by_host(now.borrowed)
    if now.reclaims:
        rows["given back"] = "; ".join(map(_due, now.reclaims))
    evicted = list(now.evicted.items())[-GIVEN_UP_SHOWN:]
    rows |= {f"{worker} evicted": reason for worker, reason in evicted}
    rows |= {f"slot {slot} disabled": reason for slot, reason in now.disabled_slots.items()}
    head = facts_table(rows)
    if not now.members:
        return head
    titles = ["worker", "rank", "stage", "host", "pid", "port"]
    has_devices = any(member.device is not None for member in now.members)
    titles += ["device"] if has_devices else []
    members = Table(*columns(*titles), box=box.SIMPLE_HEAD, pad_edge=False)
    for member in sorted(now.members, key=lambda m: (m.rank is None, m.rank or 0, m.id)):
        mark = " (leads)" if member.id == now.leader else ""
        rank = "-" if member.rank is None else str(member.rank)
        cells = [rank, member.stage, member.host, str(member.pid), str(member.port)]
        if has_devices:
            cells.append("-" if member.device is None else str(member.device))
        members.add_row(member.id + mark, *cells)
    return Group(head, members)


def _state(now: JobStatus) -> str:
    return now.state + (f": {now.reason}" if now.reason else "")


def line(now: JobStatus) -> str:
    wanted = sum((now.desired or now.assigned).values())
    away = f"; {now.away}" if now.away else ""
    leads = now.leader or "nobody"
    size = f"{now.world_size} of {wanted} workers"
    return f"{_progress(now)}; {size}; {leads} leads; {_state(now)}{away}"


def _progress(now: JobStatus) -> str:
    total = now.epoch_total
    # A script that keeps its own place in its data has no epochs that are known here.
    epoch = (
        f"epoch {now.epoch}: {now.epoch_done} of {total} samples ({now.epoch_done / total:.0%}), "
        if total
        else f"epoch {now.epoch}: {now.epoch_done} samples, "  # of a stream
        if now.epoch_done
        else ""
    )
    quiet = now.quiet_s >= max(QUIET_S, 5 * now.median_step_s) and not now.state.over and now.step
    last = f", the last one {now.quiet_s:.0f} s ago" if quiet else ""
    return f"{epoch}step {now.step}{last}, {now.samples_per_s:.0f} samples/s"


def _listed(now: JobStatus, hosts: Mapping[str, int]) -> str:
    return by_host({host: n for host, n in hosts.items() if n or host in now.hosts})


def _due(reclaim: Reclaim) -> str:
    # by this host's clock, but at most the time that the demand left
    left_s = min(reclaim.within_s, reclaim.by_s - time.time())
    when = f"within {left_s:.0f} s" if left_s > 0 else "by now"
    return f"{counted(reclaim.slots, 'slot')} of {reclaim.host} {when}"


REDRAWN_PER_S = 2.0
STALE_S = 3.0  # without an answer from ZooKeeper: then the age of what is shown is said
Lines = Callable[[int, int], list[TextLine]]
"""A function that returns the lines to show for a width and a height of the terminal."""


class Screen:
    """The content of the screen of `edl top`: lines for the size of the terminal, and a foot."""

    def __init__(self, read: Callable[[], Lines], connected: Callable[[], bool]) -> None:
        self._read, self._connected = read, connected
        self._lines, self._read_at_s = read(), time.monotonic()
        self._away = ""  # why nothing newer could be read, as "ZooKeeper is away: ..."

    def renew(self) -> None:
        """Read what is shown; a read that fails leaves it as it is, with the reason."""
        try:
            self._lines = self._read()
        except UnknownJob:
            raise
        except CoordinationError as error:
            self._away = trouble_words(self._connected(), error)
        else:
            self._away, self._read_at_s = "", time.monotonic()

    def text(self, to: Console, foot: bool = True) -> Text:
        lines = self._lines(to.width, to.height - 1)[: max(1, to.height - 1)]
        if foot:
            age_s = time.monotonic() - self._read_at_s
            if self._away:
                lines.append(TextLine(f"{rounded(age_s)} old: {self._away}", "bold red"))
            else:
                clock = f"{datetime.now().astimezone():%H:%M:%S}"
                old = f", {rounded(age_s)} old" if age_s > STALE_S else ""
                lines.append(TextLine(f"{clock}{old}  Ctrl-C leaves", "dim"))
        texts = [Text(cropped(line.text, to.width), style=line.style) for line in lines]
        return Text("\n", no_wrap=True).join(texts)


def top(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Name of one job. Default: all jobs.")
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show all jobs, or JOB, on the whole terminal, and keep that current until Ctrl-C.

    All jobs: those of `edl run` whose secrets are known here. JOB: its progress, its workers and
    its newest events, until it ends. If the output is no terminal, it is shown once. The job is not
    disturbed: at most 200 nodes a second are read from ZooKeeper.
    """
    with connected(zookeeper) as session:
        if job is None:
            jobs = ObservedJobs(session)

            def read_all() -> Lines:
                found, locked, unreadable = jobs.read(), jobs.locked, jobs.unreadable
                return lambda width, height: jobs_screen(
                    found, locked, time.time(), width, height, unreadable
                )

            _show_screen(read_all, lambda: jobs.due_reads, lambda: False, lambda: session.connected)
            return
        one = ObservedJob(choose_job(session, job, ended=True))

        def read() -> Lines:
            now, newest = one.read(), one.events(MAX_EVENTS)
            status = job_status(now, session.hosts)
            timed = [(_clock(event.time, time.time()), event) for event in newest]

            def lines(width: int, height: int) -> list[TextLine]:
                age_s = (now.job.ended or time.time()) - now.job.created
                return job_screen(status, timed, age_s, width, height)

            return lines

        def over() -> bool:
            return one.snapshot is not None and one.snapshot.job.state.over

        _show_screen(read, lambda: one.due_reads, over, lambda: session.connected)


def _show_screen(
    read: Callable[[], Lines],
    due_reads: Callable[[], int],
    over: Callable[[], bool],
    connected: Callable[[], bool],
) -> None:
    to = console()
    screen = Screen(read, connected)
    if to.is_terminal and not to.is_dumb_terminal:
        with (
            suppress(KeyboardInterrupt),
            Live(
                get_renderable=lambda: screen.text(to),
                console=to,
                screen=True,
                refresh_per_second=REDRAWN_PER_S,
                vertical_overflow="crop",
            ),
        ):
            while not over():
                time.sleep(pause_s(due_reads()))
                screen.renew()
    to.print(screen.text(to, foot=False), soft_wrap=True)


def _clock(time_s: float, now_s: float) -> str:
    moment = datetime.fromtimestamp(time_s)
    is_today = moment.date() == datetime.fromtimestamp(now_s).date()
    return moment.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M:%S")


def report(
    job: JobArgument = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The file to write, if not JOB.html."),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Write the dashboard's page of a job into one HTML file, to look at later or elsewhere.

    The file needs no server and no internet: send it with a question, or keep it with the results.
    It has the job's command, hosts, state and newest 2,000 events, and no secret. A file that is
    there already is replaced. Without JOB, if no job runs, the only one that has ended is reported.
    """
    from edl.dashboard.job_watcher import JobWatcher
    from edl.dashboard.report import report_page

    with connected(zookeeper) as session:
        store = choose_job(session, job, ended=True)
        store.snapshot()  # what cannot be read is an error here, and no page without a job
        watcher = JobWatcher(store)
        watcher.turn()
        path = output or Path(f"{store.name}.html")
        try:
            path.write_text(report_page(watcher), "utf-8")
        except OSError as error:
            raise UsageError(f"the report cannot be written to {path}: {error.strerror}") from error
    typer.echo(f"edl: job {store.name} is reported in {path}; open it in a browser")
