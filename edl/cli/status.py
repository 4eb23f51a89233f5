"""`edl status`: show which worker leads, which workers train, and how far the job is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from edl.cli.common import (
    FOLLOW_S,
    JobArgument,
    JsonOption,
    ZooKeeperOption,
    console,
    trouble_words,
)
from edl.cli.tables import columns, facts_table, print_table
from edl.client.connection import choose_job, connected
from edl.errors import CoordinationError
from edl.records import Reclaim
from edl.status import JobStatus, job_status
from edl.text import by_host, counted

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
    """Print the status `now` of a job: one line of JSON if `as_json`, else a table."""
    if as_json:
        typer.echo(json.dumps(now.to_json()))
    else:
        print_table(status_table(now))


def status_table(now: JobStatus) -> RenderableType:
    """Lay out the status of a job for a terminal: a row for each fact, then one for each worker."""
    rows = _job_rows(now) | _training_rows(now) | _slot_rows(now) | _given_up_rows(now)
    head = facts_table(rows)
    return Group(head, _members_table(now)) if now.members else head


def _job_rows(now: JobStatus) -> dict[str, str]:
    """Return the rows that the status of every job has: its state, leader, size and progress."""
    wanted = now.desired or now.assigned
    where, has = _listed(now, wanted), _listed(now, now.assigned)
    assigned = "" if where == has else f"; assigned: {has}"
    return {
        "job": now.job,
        "state": _state(now),
        "leader": f"{now.leader or 'nobody'}, term {now.term}",
        "workers": f"{now.world_size} of {sum(wanted.values())} wanted "
        f"({where}){assigned}; {now.sizes}; generation {now.generation}",
        "progress": _progress(now),
        "ZooKeeper": now.zookeeper + (f"; {now.away}" if now.away else ""),
    }


def _training_rows(now: JobStatus) -> dict[str, str]:
    """Return the rows about samples, batches, policy and speed for which the status has values."""
    rows = {}
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
    return rows


def _slot_rows(now: JobStatus) -> dict[str, str]:
    """Return the rows about devices, and about free, borrowed and reclaimed slots."""
    rows = {}
    if now.devices:
        rows["devices"] = "; ".join(
            f"{host}: {', '.join(map(str, numbers))}" for host, numbers in now.devices.items()
        )
    if free := _free(now):
        rows["free slots"] = by_host(free)
    if now.borrowed:
        rows["borrowed slots"] = by_host(now.borrowed)
    if now.reclaims:
        rows["given back"] = "; ".join(map(_due, now.reclaims))
    return rows


def _given_up_rows(now: JobStatus) -> dict[str, str]:
    """Return a row for the `GIVEN_UP_SHOWN` workers evicted last and for each disabled slot."""
    evicted = list(now.evicted.items())[-GIVEN_UP_SHOWN:]
    workers = {f"{worker} evicted": reason for worker, reason in evicted}
    slots = {f"slot {slot} disabled": reason for slot, reason in now.disabled_slots.items()}
    return workers | slots


def _members_table(now: JobStatus) -> Table:
    """Return a table of the workers of the job whose status is `now`, ordered by rank."""
    titles = ["worker", "rank", "stage", "host", "pid", "port"]
    has_devices = any(member.device is not None for member in now.members)
    titles += ["device"] if has_devices else []
    members = Table(*columns(*titles), box=box.SIMPLE_HEAD, pad_edge=False)
    by_rank = sorted(now.members, key=lambda m: (m.rank is None, m.rank or 0, m.id))
    for member in by_rank:
        mark = " (leads)" if member.id == now.leader else ""
        rank = "-" if member.rank is None else str(member.rank)
        cells = [rank, member.stage, member.host, str(member.pid), str(member.port)]
        if has_devices:
            cells.append("-" if member.device is None else str(member.device))
        members.add_row(member.id + mark, *cells)
    return members


def _state(now: JobStatus) -> str:
    return now.state + (f": {now.reason}" if now.reason else "")


def line(now: JobStatus) -> str:
    """Return the status of a job as one line of text, for output that is not a terminal."""
    wanted = sum((now.desired or now.assigned).values())
    away = f"; {now.away}" if now.away else ""
    leads = now.leader or "nobody"
    size = f"{now.world_size} of {wanted} workers"
    return f"{_progress(now)}; {size}; {leads} leads; {_state(now)}{away}"


def _progress(now: JobStatus) -> str:
    """Return the progress of the job whose status is `now` as text: epoch, step and samples/s."""
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


def _free(now: JobStatus) -> dict[str, int]:
    """Return the number of slots, by host, beyond the workers that are desired there."""
    wanted = now.desired or now.assigned
    room = {host: slots - wanted.get(host, 0) for host, slots in now.hosts.items()}
    return {host: n for host, n in room.items() if n > 0}


def _listed(now: JobStatus, hosts: Mapping[str, int]) -> str:
    return by_host({host: n for host, n in hosts.items() if n or host in now.hosts})


def _due(reclaim: Reclaim) -> str:
    """Return a demand for borrowed slots as text, like "2 slots of node7 within 12 s"."""
    # by this host's clock, but at most the time that the demand left
    left_s = min(reclaim.within_s, reclaim.by_s - time.time())
    when = f"within {left_s:.0f} s" if left_s > 0 else "by now"
    return f"{counted(reclaim.slots, 'slot')} of {reclaim.host} {when}"
