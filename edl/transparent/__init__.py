"""Run unchanged Horovod scripts as elastic jobs: `edl run --transparent python train.py`.

A script for plain Horovod has one process for each rank, from its start to its end. Here its ranks
are the job's *logical workers* (docs/guides/exact.md): ``hvd.size()`` is their number, and any
number of processes share them, which come and go while the script trains.

:mod:`edl.transparent.__main__` gives the script modules with Horovod's names (``horovod_torch``,
``horovod_tensorflow``, ``horovod_keras``, ``horovod_callbacks``). ``data_loading`` and
``tensorflow_loop`` let its data pipelines train the parts of all ranks, in the same steps as under
Horovod. ``training`` leads a process that joins later through the script's loop over epochs to
where the job is. docs/guides/unchanged-scripts.md and unchanged-scripts-tensorflow.md say what
works, and what is refused.
"""
