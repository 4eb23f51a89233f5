"""Hold policies, workloads and results that papers published, to compare edl with them.

The policies are in ``policies``, the jobs in ``workloads``, and the published times of jobs in
``pollux_answers`` and ``virtualflow_answers``.
"""
