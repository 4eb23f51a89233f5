"""ZooKeeper: who is there, who leads, what was asked for, which generation is current.

``session`` keeps one connection alive, ``access`` says who may read and write a job, ``secrets``
keeps a job's secret on this machine, ``paths`` is the layout, ``nodes`` reads and writes a job's
nodes, ``job_store`` what concerns the job as a whole, ``registrations``, ``requests``, ``events``
and ``profile`` the rest of it, ``election`` elects a leader and refuses the writes of one whose
term is over, ``decisions`` writes what the leader of a job decides, ``job_copy`` and ``lost_job``
write a job again that ZooKeeper has lost, ``local_server`` runs a ZooKeeper of our own on this
machine.
"""
