"""Run a job under elastic `horovodrun`: its driver, host discovery, the process of each slot.

The entries are :func:`~edl.host.horovodrun.discovery.desired_hosts` for `edl-discover`, and
:class:`~edl.host.horovodrun.slot.SlotSupervisor` for `edl-worker`.
"""
