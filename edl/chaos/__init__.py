"""The modules behind ``edl chaos``, which causes faults in a running job and awaits its recovery.

:mod:`edl.chaos.fault_schedule` decides which faults, :mod:`edl.chaos.faults` causes them, and
:mod:`edl.chaos.endpoints` lets a worker inject a fault into itself.
"""
