"""Choose a job's number of workers, its batches, its learning rate, and measures for slow workers.

A job's policy file says which of these are chosen, and how.
:func:`edl.policy.file.parse_policy` reads it,
:func:`edl.policy.goodput.decide_size` chooses the number of workers,
:func:`edl.policy.goodput.choose_batch` the global batch, and
:class:`edl.policy.stragglers.Stragglers` the measures for slow workers. The functions here
change no argument, read no clock and write nothing.

A size rule chooses the number of workers; each rule has a module of its own. A rule is called with
an observation of the job (:mod:`edl.policy.observation`), the state that it returned the last
time, and the time. It returns the size that it wants, the reason, and its new state. The leader of
a live job calls the rule between two steps; a simulator calls it under its own time. So a rule
reads no clock, and an object of a rule has settings but no state.
"""
