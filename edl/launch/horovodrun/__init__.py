"""Run a job under elastic `horovodrun`: its driver, host discovery, the process of each slot.

The entries are :func:`~edl.launch.horovodrun.discovery.desired_hosts` for `edl-discover`, and
:class:`~edl.launch.horovodrun.slot.SlotSupervisor` for `edl-worker`.
"""
