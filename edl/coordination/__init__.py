"""Read and write in ZooKeeper the state of jobs: workers, leader, requests and generation.

A process opens a ``Session`` (``session``) with the ``Access`` (``access``) that the job's secret
gives, and makes a ``JobStore`` (``job_store``) from it. The package ``cluster`` does for a cluster
what these modules do for a job; they import nothing of it.

- ``session`` keeps one connection alive; ``reads`` describes its reads, and ``watched_reads`` keeps
  their answers.
- ``access`` says who may read and write a job; ``secrets`` keeps a job's secret on this machine.
- ``paths`` is the layout in ZooKeeper, ``wire`` the format of a node, and ``nodes`` reads and
  writes the nodes of one job.
- ``lifecycle`` creates, lists and removes jobs; ``job_store`` reads and writes a job as a whole,
  and ``desired`` the number of workers that each host shall have.
- ``registrations``, ``requests``, ``events``, ``profile`` and ``policy`` read and write one kind of
  node each.
- ``observations`` writes what launchers and clients have observed: how workers and the job ended.
- ``election`` elects a leader and refuses the writes of a leader whose term is over; ``decisions``
  writes what the leader of a job decides.
- ``job_copy`` and ``lost_job`` write a job again that ZooKeeper has lost.
- ``local_server`` runs a ZooKeeper of edl's own on this machine.
"""
