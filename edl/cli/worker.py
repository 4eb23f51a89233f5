"""`edl-worker COMMAND…`: the process that elastic `horovodrun` starts in each slot.

It starts and supervises the user's script. If horovodrun has started the script itself,
`edl.init()` replaces that process by an `edl-worker` that starts the script again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from edl import config
from edl.cli.common import settings_of_agent
from edl.cli.main import configure_logging, run_command
from edl.client.connection import in_session_of_job, open_session
from edl.config import Config, HorovodSlot
from edl.errors import EdlError, JobExists, UsageError
from edl.host.address import address_of, check_own_name, own_address
from edl.host.command import check_command
from edl.host.horovodrun.decide import SlotLimits, with_answer
from edl.host.horovodrun.driver import Driver, find_launcher
from edl.host.horovodrun.slot import SlotSupervisor, SlotWorkers
from edl.host.host_agent import worker_environment
from edl.host.workers import behind_a_shell, log_directory
from edl.records import Host, Job
from edl.spec import JobSpec
from edl.zookeeper.access import Access, announce, candidates, keep, new_secret
from edl.zookeeper.local_server import find_local, start_local
from edl.zookeeper.paths import check_name
from edl.zookeeper.store import JobStore


def main() -> None:
    behind_a_shell()
    code = run_command(lambda: work(sys.argv[1:]))
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    # The driver kills a process that still runs 5 s after SIGTERM. If it has assigned the slot anew
    # by then, it takes the kill for a failure of the slot's next process, and horovodrun ends with
    # an error. To tear down the interpreter takes 0.1 s of processor time, on a busy machine 1 s.
    os._exit(code)


def work(command: Sequence[str]) -> int:
    """Run a worker in the slot of horovodrun for which this process was started."""
    configure_logging()
    slot = config.horovod_slot()
    if slot is None:
        raise UsageError(
            "edl-worker is started by elastic horovodrun, in front of the training script: "
            "`horovodrun -np 2 --host-discovery-script edl-discover edl-worker python train.py`"
        )
    check_command(command, Path.cwd(), config.environment().get("PATH"))
    check_own_name()
    settings = config.load(host=check_name("host", slot.host))
    driver = Driver(slot)
    found = driver.identity(0.0)
    ours = _new_identity(slot, settings) if found is None and slot.rank == 0 else None
    limit_s = settings.job_settings.start_timeout_s
    found = found or ours or driver.identity(limit_s)
    if found is None:
        raise EdlError(
            f"no job of the driver of horovodrun at {slot.driver} came up within "
            f"{limit_s:g} s; its rank 0 should have made it, see its output"
        )
    try:
        return _serve(slot, settings, command, driver, found, create=ours is not None)
    except EdlError as error:
        if ours is not None:
            driver.refuse(str(error))
        raise
    finally:
        driver.close()


def _serve(
    slot: HorovodSlot,
    settings: Config,
    command: Sequence[str],
    driver: Driver,
    found: Mapping[str, str],
    create: bool,
) -> int:
    name, secret, hosts = found["job"], found["secret"], found["zookeeper"]
    with ExitStack() as sessions:
        session = sessions.enter_context(open_session(hosts, settings, Access(name, secret)))
        store = JobStore(session, name)
        if create:
            _create(store, slot, settings, command, secret)
        else:
            store = sessions.enter_context(in_session_of_job(store))
        keep(config.state_dir(), name, secret)
        logs = log_directory(config.state_dir(), name, fresh=create)  # before the others come
        job = store.snapshot().job
        if job.driver != slot.driver:
            raise UsageError(_taken(name))
        here = Host(slot.host, slot.local_size, _reachable(slot, settings, hosts))
        store.assign(lambda now: with_answer(now, slot.host, slot.slot, slot.local_size))
        driver.identify(found)
        environment = worker_environment(job, hosts, here, secret, settings.network_interface)
        workers = SlotWorkers(command, Path.cwd(), environment, logs)
        limits = SlotLimits(
            start_timeout_s=job.spec.settings.start_timeout_s,
            backoff_max_s=settings.backoff_max_s,
            frozen_s=settings.frozen_s,
            suspended_s=settings.suspended_s,
        )
        supervisor = SlotSupervisor(
            store, driver, slot.host, slot.slot, command, workers, limits, settings.stack_signal
        )
        driver.start(supervisor.on_change)
        return supervisor.run()


def _reachable(slot: HorovodSlot, settings: Config, zookeeper: str) -> str:
    interface = settings.network_interface
    if not interface and not settings.address and address_of(slot.interface):
        interface = slot.interface  # on this host it may have another name
    return own_address(settings.address, interface, zookeeper)


def _new_identity(slot: HorovodSlot, settings: Config) -> dict[str, str]:
    return {
        "job": check_name("job", settings.job or f"horovod-{slot.address}-{slot.port}"),
        "secret": settings.secret or new_secret(),
        "zookeeper": settings.zookeeper or find_local() or start_local(),
    }


def _create(
    store: JobStore, slot: HorovodSlot, settings: Config, command: Sequence[str], secret: str
) -> None:
    state, name = config.state_dir(), store.name
    launcher = find_launcher()
    seen = launcher.limits() if launcher is not None else None
    limits = {} if seen is None else {"min_np": seen.min_np, "max_np": seen.max_np}
    asked = settings_of_agent(defaults=limits)
    of_job = asked.job_settings.of_size(slot.size)
    spec = JobSpec(tuple(command), slot.size, asked.sizes, of_job, str(Path.cwd()))
    job = Job(name=name, spec=spec, created=time.time(), driver=slot.driver)
    earlier = [Access(name, one) for one in candidates(state, name, None)]
    announce(state, name, secret)
    store.session.identify(*earlier, Access(name, secret))  # an earlier job is replaced
    try:
        store.create(job, {slot.host: slot.local_size}, by_slot=True)
    except JobExists:
        raise UsageError(_taken(name)) from None


def _taken(name: str) -> str:
    return (
        f"the job {name} is running, and another launcher has started it; give this one another "
        "name by EDL_JOB, or leave that out"
    )


if __name__ == "__main__":
    main()
