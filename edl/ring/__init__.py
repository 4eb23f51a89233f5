"""Build, use, close and, when a worker is lost, break the ring (Horovod's communicator).

The main class is :class:`edl.ring.ring.Ring`; :func:`edl.ring.gloo.gloo_ring` makes one.
"""
