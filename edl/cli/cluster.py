"""`edl cluster`: start and show a cluster, which shares hosts among jobs; serve it over HTTP."""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edl import config
from edl.api.listening import check_packages, listen_address, listener
from edl.cli.administration import queue_table
from edl.cli.common import (
    AddressOption,
    ClusterOption,
    JsonOption,
    ZooKeeperOption,
    columns,
    duration,
    facts_table,
    line_writer,
    print_table,
)
from edl.client.connection import connected
from edl.cluster.client.client import Cluster
from edl.cluster.client.connection import DEFAULT_NAME, access_to_start, connected_cluster
from edl.cluster.client.history_file import HistoryFile, HistoryThread, history_path
from edl.cluster.client.plans import plan_with_host
from edl.cluster.controller.controller import Controller
from edl.cluster.controller.policy_runner import BackgroundProcess, slots_here
from edl.cluster.fleet.options import FleetOptions, LeaseOwner, fleet_of
from edl.cluster.nodes import own_version
from edl.cluster.policies.registry import POLICIES, OwnPolicy
from edl.cluster.records import ClusterRecord, ControllerRecord
from edl.cluster.status import ClusterStatus, JobPlan
from edl.cluster_policies import is_own, load_policy
from edl.config import LOOPBACK
from edl.errors import UsageError, some
from edl.host.address import own_address
from edl.host.adoption import machine_name
from edl.host.devices import CUDA
from edl.host.signals import TO_END, handled
from edl.http.signing import new_token
from edl.text import by_host, counted, verb
from edl.zookeeper.access import CLUSTERS
from edl.zookeeper.local_server import start_local

API_END_S = 10.0  # for the requests that the HTTP API is answering
ParametersOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PARAMETER=VALUE", help="A parameter of that policy."),
]


def start(
    name: Annotated[
        str, typer.Option("--name", "--cluster", metavar="NAME", help="Name of the cluster.")
    ] = DEFAULT_NAME,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Policy of a new cluster; your own as module:Class. Default: edl.",
        ),
    ] = None,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="Also offer this machine as a host, and start a ZooKeeper if none is given.",
        ),
    ] = False,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            min=1,
            help="With --local: workers that fit here. Default: one for each GPU, else for each "
            "processor.",
        ),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            "--fleet",
            metavar="ENGINE",
            help="Borrow hosts from an engine while jobs wait for slots: slurm or ray.",
        ),
    ] = None,
    host_slots: Annotated[
        int | None,
        typer.Option(
            "--host-slots",
            min=1,
            help="With --fleet: the slots of each borrowed host. Required there.",
        ),
    ] = None,
    max_hosts: Annotated[
        int | None,
        typer.Option(
            "--max-hosts",
            min=0,
            help="With --fleet: the most borrowed hosts; 0: give back those without a job. "
            "Required there.",
        ),
    ] = None,
    min_hosts: Annotated[
        int,
        typer.Option(
            "--min-hosts", min=0, help="With --fleet: borrowed hosts that are kept while idle."
        ),
    ] = 0,
    idle: Annotated[
        float,
        typer.Option(
            "--idle",
            metavar="SECONDS",
            min=0.0,
            help="With --fleet: a host without a job for so long is given back.",
        ),
    ] = 300.0,
    host_label: Annotated[
        list[str] | None,
        typer.Option(
            "--host-label",
            metavar="KEY=VALUE",
            help="With --fleet: a label of each borrowed host; may be repeated.",
        ),
    ] = None,
    host_kind: Annotated[
        str | None,
        typer.Option(
            "--host-kind", metavar="NAME", help="With --fleet: the kind of each borrowed host."
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition",
            metavar="NAME",
            help="With --fleet slurm: Slurm's partition. Default: Slurm's.",
        ),
    ] = None,
    fleet_option: Annotated[
        list[str] | None,
        typer.Option(
            "--fleet-option",
            metavar="OPTION",
            help="With --fleet slurm: an option of sbatch, like --fleet-option=--gres=gpu:4. With "
            "--fleet ray: python=PATH or address=HOST:PORT. May be repeated.",
        ),
    ] = None,
    forget_fleet: Annotated[
        str | None,
        typer.Option(
            "--forget-fleet",
            metavar="ENGINE",
            help="With --fleet: a former engine that is gone for good. Jobs leave the hosts that "
            "it lent, and it is told nothing.",
        ),
    ] = None,
    api: Annotated[
        str | None,
        typer.Option(
            "--api",
            metavar="[ADDRESS:]PORT",
            help="Also serve the HTTP API there, in a process of its own. Default: it is not "
            "served; without ADDRESS only this machine reaches it.",
        ),
    ] = None,
    tls_cert: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
    address: AddressOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Run a controller of a cluster, which is created if it is not there yet.

    Of several controllers of a cluster one leads, and another one takes its place when it ends. It
    runs until SIGTERM or Ctrl-C. With --fleet it borrows hosts of another engine while it leads, so
    give all controllers of a cluster the same options.
    """
    if slots is not None and not local:
        raise UsageError("--slots needs --local; on other machines `edl host --slots` offers slots")
    labels = dict(_pair(text, "--host-label gpu=h100") for text in host_label or [])
    options = FleetOptions(
        name=fleet or "",
        slots=host_slots,
        max_hosts=max_hosts,
        min_hosts=min_hosts,
        idle_s=idle,
        labels=labels,
        kind=host_kind or "",
        partition=partition,
        options=fleet_option or (),
        forget=forget_fleet or "",
    )
    limits = options.limits() if fleet or options != FleetOptions() else None
    api_words = api_command(api, tls_cert, tls_key)
    if api is not None:
        listener(listen_address(api)).close()  # nothing else listens there now
    settings = ClusterRecord(version=own_version())
    if policy is not None:
        settings = replace(settings, policy=policy)
    load_policy(settings.policy)
    if local and zookeeper is None and config.load().zookeeper is None:
        zookeeper = start_local(address=address)
    with connected(zookeeper) as session:
        hosts = session.hosts
        access, is_new = access_to_start(session, name, settings)
    write, say = line_writer(), line_writer(with_time=True)
    write(f"cluster {name} {'is created' if is_new else 'is there'}, at ZooKeeper {hosts}")
    client = Cluster(name, hosts, secret=access.secret)
    if policy is not None and (kept := client.policy.get().policy) != policy:
        write(f"its policy stays {kept}; `edl cluster policy {policy}` changes it")
    for sentence in next_steps(name, hosts, local):
        write(sentence)
    about = ControllerRecord(
        controller=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        host=socket.gethostname(),
        pid=os.getpid(),
        address=own_address(address or config.load().address, "", hosts),
        version=own_version(),
        machine=machine_name(),
    )
    lender = None
    if limits is not None:
        own = config.state_dir() / CLUSTERS / name
        owner = LeaseOwner(name, access.secret, own / "secret", hosts, own)
        lender = fleet_of(options, owner), limits
    controller = Controller(hosts, access, about, say, lender=lender)
    where = ["--cluster", name, "--zookeeper", hosts]
    host = None
    if local:
        count = slots or slots_here(config.environment().get(CUDA))
        words = ["host", *where, "--address", about.address]
        words += ["--slots", str(count)] if count else []
        host = BackgroundProcess(words, "edl host", say)
        host.start()
    with ExitStack() as stack:
        if api_words:
            server = BackgroundProcess([*api_words, *where], "the HTTP API", say)
            server.start()
            stack.callback(server.end, API_END_S)
        stack.enter_context(HistoryThread(client, HistoryFile(history_path(name)), say))
        run_controller(controller, host)
    say("has ended")


def run_controller(controller: Controller, host: BackgroundProcess | None) -> None:
    """Run a controller until SIGTERM or Ctrl-C; a host that it keeps leaves the cluster before."""
    signals = 0

    def end() -> None:
        if host is not None:
            host.end()
        controller.stop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1 and host is not None:
            host.kill()
        if signals > 1 or host is None:
            controller.stop()
        else:  # the leader is needed until the host has left
            threading.Thread(target=end, name="edl-end", daemon=True).start()

    gc.disable()  # the controller does it when it has time
    try:
        with handled(TO_END, on_signal):
            controller.run()
    finally:
        gc.enable()
    if host is not None:
        host.end()


def next_steps(name: str, hosts: str, local: bool) -> list[str]:
    steps = ["submit a job: edl submit job.yaml; see it: edl list, edl cluster status"]
    if not local:
        steps.append(f"offer this machine: edl host --cluster {name} --slots N")
    if LOOPBACK in hosts:
        steps.append("ZooKeeper listens on this machine only; for others give its address to")
        steps[-1] += " `edl zookeeper start --address`, while it is stopped"
    else:
        secret = config.state_dir() / CLUSTERS / name / "secret"
        options = f"--cluster {name} --zookeeper {hosts} --secret-file FILE --slots N"
        steps.append(f"on other machines, with a copy of {secret}: edl host {options}")
    return steps


def status(
    cluster: ClusterOption = None, as_json: JsonOption = False, zookeeper: ZooKeeperOption = None
) -> None:
    """Show which controller leads, the hosts and the slots in use, and how many jobs there are."""
    now = Cluster(cluster, zookeeper).status()
    if as_json:
        typer.echo(json.dumps(now.to_json()))
    else:
        print_table(status_table(now))


def plan(
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Another policy; your own as module:Class. Default: that of the cluster.",
        ),
    ] = None,
    parameters: ParametersOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show which slots each job would get if the policy were asked now; nothing is changed."""
    if parameters and policy is None:
        raise UsageError("--set needs --policy; name the policy whose parameters you give")
    values = parameters_of(policy, parameters or []) if policy is not None else {}
    _show(Cluster(cluster, zookeeper).policy.plan(policy, values), as_json)


def what_if(
    add_host: Annotated[
        int, typer.Option("--add-host", metavar="SLOTS", min=1, help="A host with so many slots.")
    ],
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label of that host.")
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show which slots each job would get if there were another host; nothing is changed."""
    labels = dict(_pair(text, "--label gpu=h100") for text in label or [])
    with connected_cluster(cluster, zookeeper) as store:
        _show(plan_with_host(store, add_host, labels), as_json)


def policy(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME [PARAMETER=VALUE]...]",
            help="Another policy, your own as module:Class; parameters that are not to be as "
            "registered.",
        ),
    ] = None,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show by which policy the cluster gives slots, or change it while jobs run."""
    name, texts = (words[0], words[1:]) if words else (None, [])
    values = {} if name is None else parameters_of(name, texts)
    own = Cluster(cluster, zookeeper).policy
    now = own.get() if name is None else own.set(name, values)
    changed = "".join(f" {key}={value}" for key, value in sorted(now.parameters.items()))
    typer.echo(f"policy: {now.policy}{changed}")
    if is_own(now.policy):
        about = "your own; the leading controller imports it, and `edl cluster status` says if not"
    else:
        about = POLICIES[now.policy][1] if now.policy in POLICIES else "this edl does not have it"
    typer.echo(about)


def parameters_of(policy: str, texts: Sequence[str]) -> dict[str, object]:
    rule, found = load_policy(policy), {}
    known = rule.rule if isinstance(rule, OwnPolicy) else rule
    for text in texts:
        key, value = _pair(text, f"edl cluster policy {policy} patience=3")
        found[key] = _value(value, getattr(known, key, None))
    load_policy(policy, found)
    return found


def status_table(now: ClusterStatus) -> RenderableType:
    jobs = ", ".join(f"{count} {state}" for state, count in now.jobs.items()) or "none"
    waits = f"; {counted(now.waiting, 'more controller')} {verb(now.waiting, 'waits', 'wait')}"
    rows = {
        "cluster": now.cluster,
        "leader": f"{now.leader or 'nobody leads now'}, term {now.term}"
        + (waits if now.waiting else ""),
        "policy": now.policy + "".join(f" {k}={v}" for k, v in sorted(now.parameters.items())),
        "slots": f"{now.used} of {now.slots} in use",
        "jobs": jobs,
        "ZooKeeper": now.zookeeper,
    }
    if now.fleet:
        rows["fleet"] = now.fleet
    if now.problem:
        rows["problem"] = now.problem
    found: dict[str, list[str]] = {now.version: ["the leader"]} if now.version else {}
    for host in now.hosts:
        if host.version:
            found.setdefault(host.version, []).append(host.host)
    if len(found) > 1:  # else it is the same everywhere
        versions = (f"{version} ({some(names)})" for version, names in sorted(found.items()))
        rows["edl"] = ", ".join(versions)
    for host in now.hosts:
        if host.problem:
            rows[f"host {host.host}"] = host.problem
    titles = columns("host", "state", "slots", "used", "jobs")
    hosts = Table(*titles, box=box.SIMPLE_HEAD, pad_edge=False)
    for host in now.hosts:
        cells = host.host, host.state, str(host.slots), str(host.used), by_host(host.jobs)
        hosts.add_row(*map(Text, cells))
    parts = [hosts] if now.hosts else []
    parts += [queue_table(now.queues)] if now.queues else []
    return Group(facts_table(rows), *parts)


def _show(found: Sequence[JobPlan], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([one.to_json() for one in found]))
        return
    if not found:
        typer.echo("there is no job that has not ended")
        return
    titles = columns("job", "state", "now", "planned", "why")
    table = Table(*titles, box=box.SIMPLE_HEAD, pad_edge=False)
    for one in found:
        cells = one.job, one.state, by_host(one.now) or "-", by_host(one.planned) or "-"
        table.add_row(*map(Text, cells), Text(one.reason))
    print_table(table)


def _pair(text: str, example: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise UsageError(f"{text!r} is no KEY=VALUE; write it like `{example}`")
    return key, value


def _value(text: str, known: object) -> object:
    try:
        found: object = json.loads(text)
    except ValueError:
        return text
    return float(found) if isinstance(known, float) and isinstance(found, int) else found


TlsCertificateOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="A certificate with its chain, in PEM: the HTTP API is served over TLS.",
    ),
]
TlsKeyOption = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate.")
]


def serve_api(
    listen: Annotated[
        str,
        typer.Argument(
            metavar="[ADDRESS:]PORT",
            help="Where to listen; without ADDRESS only this machine reaches it.",
        ),
    ],
    tls_cert: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Serve the verbs of a cluster over HTTP, until SIGTERM or Ctrl-C.

    Any number may run. `edl cluster start --api` runs one beside a controller.
    """
    api_command(listen, tls_cert, tls_key)
    from edl.api.embedded_server import TlsFiles  # what they import is an extra
    from edl.api.server import run_server

    tls = TlsFiles(tls_cert, tls_key) if tls_cert and tls_key else None
    with connected_cluster(cluster, zookeeper) as store:
        store.nodes.check_administrator("serve the HTTP API")
        hosts, access = store.nodes.session.hosts, store.nodes.session.access
        assert access is not None
    run_server(hosts, access, listen_address(listen), tls, line_writer(with_time=True))


def api_command(listen: str | None, tls_cert: str | None, tls_key: str | None) -> list[str]:
    """Return the words of the command that serves the API, without the cluster; check them."""
    if listen is None:
        if tls_cert or tls_key:
            raise UsageError("--tls-cert and --tls-key need --api, which says where to listen")
        return []
    if (tls_cert is None) != (tls_key is None):
        missing = "--tls-key" if tls_key is None else "--tls-cert"
        raise UsageError(f"{missing} is missing: TLS needs a certificate and its key")
    where = listen_address(listen)
    check_packages()
    words = ["cluster", "api", str(where)]
    for option, path in (("--tls-cert", tls_cert), ("--tls-key", tls_key)):
        words += [option, path] if path is not None else []
    return words


def token(
    valid: Annotated[
        str, typer.Option("--valid", metavar="DURATION", help="How long it is accepted: 12h, 30d.")
    ] = "30d",
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Print a bearer token for the HTTP API, which accepts it over TLS only.

    Whoever has it may do with the cluster what you may, until it expires; it cannot be taken back.
    """
    valid_s = duration("--valid", valid)
    with connected_cluster(cluster, zookeeper) as store:
        store.nodes.check_administrator("make tokens for the HTTP API")
        access = store.nodes.session.access
        assert access is not None
    typer.echo(new_token(access.secret, access.job, time.time() + valid_s))
