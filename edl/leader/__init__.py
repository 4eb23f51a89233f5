"""Run the leader of a job: read the job's state, decide, write the decision, find dead workers.

The main entry is :class:`edl.leader.leader.LeaderTerm`, which the daemon of the leading worker
calls.
"""
