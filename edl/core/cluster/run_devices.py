"""Decide which devices a run that trains may use next, on its way to the slots of its target.

A run changes its devices in one step where it can: the new ones are free and assigned to its job
before the run is told of them, and with the same order it gives up the old ones; a worker that
moves starts on its new host before the old one leaves. Where not all new devices are free yet, the
run keeps old ones in their place. It never gets a number of workers that the job may not have, and
never fewer than its minimum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from edl.core.cluster.devices import DeviceTable
from edl.core.cluster.view import Devices, JobView, RunView


class DeviceChange(NamedTuple):
    """The devices that a run may use next."""

    # host -> devices; hosts without any are left out. None: no change is possible now.
    devices: Devices | None
    lacking: int  # how many devices the run needs for its target beyond those that it has and keeps
    # the hosts of the target where the run has devices and no agent yet
    without_agent: tuple[str, ...]
    survivors: int  # how many devices the run uses now on hosts that are not lost
    # how many devices on such hosts are assigned to the run, without those that it is to give back
    # and does not use
    owned: int

    def is_too_few(self, least: int) -> bool:
        """Return whether `survivors` is 0, or `owned` is below `least`."""
        return self.survivors == 0 or self.owned < least


def next_devices(
    job: JobView,
    run: RunView,
    target: Mapping[str, int],
    table: DeviceTable,
    lost: Collection[str],
    may_wait: bool,
) -> DeviceChange:
    """Return the devices that a run is to use next, and how many it lacks."""
    present, final = [], []
    for host, entry in table.entries(job.name, run.token).items():
        if host not in lost:
            used = run.devices.get(host, ())
            present += [(host, device) for device in entry.devices if device in used]
            final += [(host, device) for device in entry.devices if device not in entry.leaving]
    # Where it has no agent, `edl host` starts one when a device is assigned to the run.
    ready = [one for one in final if one[0] in run.agents or one in present]
    unready = tuple(sorted({host for host, _ in final} - {host for host, _ in ready}))
    wanted, survivors = sum(target.values()), len(present)
    lacking = max(0, wanted - len(final))
    surplus = [one for one in present if one not in final]
    owned = len(final) + len(surplus)
    if len(ready) >= wanted:
        return DeviceChange(_by_host(ready), 0, (), survivors, owned)
    size = job.manifest.allowed_sizes.below(min(wanted, len(ready) + len(surplus)))
    # It waits rather than grow by a part of what it lacks.
    if size is None or (may_wait and survivors < size < wanted):
        return DeviceChange(None, lacking, unready, survivors, owned)
    ordered = sorted(ready, key=lambda one: one not in present) + surplus
    return DeviceChange(_by_host(ordered[:size]), lacking, unready, survivors, owned)


def _by_host(devices: Collection[tuple[str, int]]) -> Devices:
    hosts = sorted({host for host, _ in devices})
    return {host: tuple(sorted(d for at, d in devices if at == host)) for host in hosts}
