"""Check where an unchanged Horovod script leaves its loops over the training data, and ends.

A script that stops at a place where its job may not end would leave a model that depends on the
number of processes, or on whether the job was resumed.
"""

from __future__ import annotations

ENDED_BEHIND = (
    "the script has ended in epoch {epoch}, which the job has behind it: a process that comes "
    "later, and one of a resumed job, goes through such epochs without training, so the script "
    "must not decide to end by something that it remembers over epochs (early stopping by the best "
    "value so far, a learning rate that a scheduler has lowered); leave that out to resume this "
    "job, or change the script to edl.torch or edl.tensorflow, which send what it tracks"
)
