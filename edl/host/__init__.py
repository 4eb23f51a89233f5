"""Decide what one host does about its worker processes, horovodrun slots and host discovery.

The entry points are :func:`edl.host.decide.decide_agent` for the agent of `edl run`, and
:func:`edl.host.horovodrun.decide.decide_slot` for an `edl-worker` under horovodrun.
"""
