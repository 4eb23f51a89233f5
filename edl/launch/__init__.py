"""Start and supervise workers on a host: by an agent, or under horovodrun; handle their output.

:mod:`edl.launch.host_agent` builds the agent of a host, an :class:`edl.launch.agent.Agent`;
:mod:`edl.launch.horovodrun` has the parts for horovodrun.
"""
