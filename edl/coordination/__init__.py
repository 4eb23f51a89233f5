"""ZooKeeper: who is there, who leads, what was asked for, which generation is current.

``session`` keeps one connection alive, ``access`` says who may read and write a job, ``paths`` is
the layout, ``store`` reads and writes a job, ``election`` decides who leads and refuses the writes
of a deposed leader, ``local_server`` runs a ZooKeeper of our own on this machine.
"""
