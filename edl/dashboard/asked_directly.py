"""Ask workers and the servers of ZooKeeper directly, while ZooKeeper does not answer."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from edl.core.dashboard.outage import WorkerReports
from edl.core.dashboard.server_probe import ServerProbe
from edl.core.snapshot import Snapshot
from edl.http.client import ask_all

MOST_ASKED = 8  # workers, the first ranks
ASK_S = 1.0  # for a worker to answer
MOST_SERVERS = 7  # of ZooKeeper
CONNECT_S = 0.5  # for a server to take a connection


def ask_workers(snapshot: Snapshot, run: str) -> WorkerReports:
    """Ask the first workers of the newest ring for their health, all at the same time."""
    generation = snapshot.generation
    members = generation.members[:MOST_ASKED] if generation is not None else ()
    answers = ask_all({one.id: (one.address, one.port) for one in members}, ASK_S)
    return WorkerReports.of(run, {worker: one.report for worker, one in answers.items()})


def probe_servers(hosts: str) -> Mapping[str, ServerProbe]:
    """Try to connect to each server of ZooKeeper, one after the other; nothing is sent."""
    servers = [one.strip() for one in hosts.split("/")[0].split(",")][:MOST_SERVERS]
    return {one: found for one in servers if (found := _probe(one)) is not None}


def _probe(server: str) -> ServerProbe | None:
    """Return what `server`, as "host:port", does with a connection; None: it has no address."""
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            return ServerProbe.OPEN
    except ConnectionRefusedError:
        return ServerProbe.REFUSED
    except (socket.gaierror, ValueError, OverflowError):
        return None
    except OSError:
        return ServerProbe.SILENT
