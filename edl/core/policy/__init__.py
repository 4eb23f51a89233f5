"""What a job wishes: how many workers it should have. One rule a file, all of them pure.

A rule is given a value (:mod:`edl.core.policy.observation`), what it has noted the last time, and
the time, and says which size it wants, why, and what it notes. The leader of a live job asks it at
step boundaries; a simulator under its own time. It reads no clock and keeps nothing to itself.
"""
