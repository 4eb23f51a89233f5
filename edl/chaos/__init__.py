"""The parts of ``edl chaos``, which injects faults into a running job and waits for its recovery.

The parts are the schedule of the faults, the faults themselves, and the endpoints by which a worker
injects a fault into itself.
"""
