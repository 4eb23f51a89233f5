"""Decide what one host does about its worker processes, horovodrun slots and host discovery.

The entry points are :func:`edl.core.host.agent.decide_agent` for the agent of `edl run`, and
:func:`edl.core.host.horovodrun_slot.decide_slot` for an `edl-worker` under horovodrun.
"""
