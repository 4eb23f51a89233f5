"""Run unchanged Horovod scripts as elastic jobs: `edl run --transparent python train.py`.

A script for plain Horovod has one process for each rank, from its start to its end. Here its ranks
are the job's *logical workers* (docs/guides/exact.md): ``hvd.size()`` is their number, and any
number of processes share them, which come and go while the script trains.

1. :mod:`edl.transparent.__main__` runs the script, after :mod:`edl.transparent.import_hook` has
   been set. When the script imports ``horovod.torch``, it gets
   :mod:`edl.transparent.horovod_torch`.
2. :mod:`edl.transparent.data_loading` lets a ``DataLoader`` whose ``DistributedSampler`` divides
   the data among ``hvd.size()`` ranks train the parts of all ranks, in the same steps as under
   Horovod.
3. :mod:`edl.transparent.training` leads a process that joins later, or a resumed one, through the
   script's loop over epochs to where the job is.
4. :mod:`edl.transparent.script` lets ``enumerate(train_loader)`` count the job's steps.

The same for ``horovod.tensorflow`` and ``horovod.keras``:

1. :mod:`edl.transparent.horovod_tensorflow`, :mod:`edl.transparent.horovod_keras` and
   :mod:`edl.transparent.horovod_callbacks` have Horovod's names.
2. :mod:`edl.transparent.tensorflow_loop` remembers how the script makes its ``tf.data`` pipelines,
   and trains the samples of all ranks in their order.
3. :mod:`edl.transparent.tensorflow_loop` is for scripts that train by ``model.fit``, and
   :mod:`edl.transparent.tensorflow_loop` for those with a loop of their own.

docs/guides/unchanged-scripts.md and unchanged-scripts-tensorflow.md say what works, and what is
refused.
"""
