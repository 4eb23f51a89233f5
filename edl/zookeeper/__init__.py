"""Read and write in ZooKeeper the state of jobs: workers, leader, requests and generation.

A process opens a ``Session`` with the ``Access`` that the job's secret gives, and makes a
``JobStore`` from it; ``paths`` lists the nodes. The package ``cluster`` does for a cluster what
these modules do for a job; they import nothing of it.
"""
