"""Each function and class that edl hands on from Horovod, called once; a job of one is enough.

``CALLS``: by framework, the module and by name an expression that is True where the name works.
Names that are alike (``cuda_built``) are called in one list.
"""

from __future__ import annotations

ASKED = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]
ALIKE = {name: f"hvd.{name}() in (True, False, 0, 1)" for name in ASKED} | {
    "gloo_built": "hvd.gloo_built()",
    "gloo_enabled": "hvd.gloo_enabled()",
    # Horovod's own answer where it was built without MPI.
    "mpi_threads_supported": "refused(hvd.mpi_threads_supported, ValueError)",
    "cross_rank": "hvd.cross_rank() == 0",
    "cross_size": "hvd.cross_size() == 1",
    "local_size": "hvd.local_size() == 1",
    "start_timeline": "hvd.start_timeline(directory + '/timeline') is None",
    "stop_timeline": "hvd.stop_timeline() is None",
    "global_process_set": "hvd.global_process_set.size() == 1",
    "Adasum": "refused(lambda: hvd.DistributedOptimizer(sgd(), op=hvd.Adasum))",
    "HorovodInternalError": "issubclass(hvd.HorovodInternalError, RuntimeError)",
    "broadcast_object": "hvd.broadcast_object({'a': 1}) == {'a': 1}",
    "allgather_object": "hvd.allgather_object('a') == ['a']",
    "join": "hvd.join() == 0",
}
OPS = ("Average", "Max", "Min", "Product", "Sum")

TORCH = """
import tempfile, torch, edl.torch as hvd
from edl.errors import UsageError
hvd.init(); x, w = torch.arange(4.0), torch.nn.Parameter(torch.ones(2))
directory = tempfile.mkdtemp()
def sgd(): return torch.optim.SGD([w], lr=0.5)
def same(found, wanted=None): return torch.equal(found, x if wanted is None else wanted)
def wait(handle): return hvd.synchronize(handle)
def updated(optimizer):
    optimizer.zero_grad(); (w * 2).sum().backward(); optimizer.step()
    return w.tolist() == [0.0, 0.0]
"""
_TORCH = {
    "allreduce": "same(hvd.allreduce(x))",
    "allreduce_": "same(hvd.allreduce_(x.clone()))",
    "allreduce_async": "same(wait(hvd.allreduce_async(x)))",
    "allreduce_async_": "same(wait(hvd.allreduce_async_(x.clone())))",
    "grouped_allreduce": "same(hvd.grouped_allreduce([x])[0])",
    "grouped_allreduce_": "same(hvd.grouped_allreduce_([x.clone()])[0])",
    "grouped_allreduce_async": "same(wait(hvd.grouped_allreduce_async([x]))[0])",
    "grouped_allreduce_async_": "same(wait(hvd.grouped_allreduce_async_([x.clone()]))[0])",
    "allgather": "same(hvd.allgather(x))",
    "allgather_async": "same(wait(hvd.allgather_async(x)))",
    "grouped_allgather": "same(hvd.grouped_allgather([x])[0])",
    "grouped_allgather_async": "same(wait(hvd.grouped_allgather_async([x]))[0])",
    "broadcast": "same(hvd.broadcast(x, 0))",
    "broadcast_": "same(hvd.broadcast_(x.clone(), 0))",
    "broadcast_async": "same(wait(hvd.broadcast_async(x, 0)))",
    "broadcast_async_": "same(wait(hvd.broadcast_async_(x.clone(), 0)))",
    "alltoall": "same(hvd.alltoall(x))",
    "alltoall_async": "same(wait(hvd.alltoall_async(x))[0])",  # and how much from whom
    "reducescatter": "same(hvd.reducescatter(x))",
    "reducescatter_async": "same(wait(hvd.reducescatter_async(x)))",
    "grouped_reducescatter": "same(hvd.grouped_reducescatter([x])[0])",
    "grouped_reducescatter_async": "same(wait(hvd.grouped_reducescatter_async([x]))[0])",
    "sparse_allreduce_async": (
        "same(hvd.sparse_allreduce_async(x.to_sparse(), name='s', op=hvd.Average)().to_dense())"
    ),
    "poll": "[hvd.poll(h := hvd.allreduce_async(x)) in (True, False), wait(h)][0]",
    "synchronize": "same(hvd.synchronize(hvd.allreduce_async(x)))",
    "barrier": "hvd.barrier() is None",
    "broadcast_parameters": "hvd.broadcast_parameters({'w': w.data}, 0) is None",
    "broadcast_optimizer_state": "hvd.broadcast_optimizer_state(sgd(), 0) is None",
    "Compression": "same(hvd.allreduce(x, compression=hvd.Compression.fp16))",
    "DistributedOptimizer": "updated(hvd.DistributedOptimizer(sgd()))",
    "SyncBatchNorm": "hvd.SyncBatchNorm(2)(torch.ones(4, 2)).abs().max() < 1e-2",
}

TENSORFLOW = """
import tempfile, numpy as np, tensorflow as tf, edl.tensorflow as hvd
from edl.errors import UsageError
hvd.init(); x, keras = tf.range(4.0), tf.keras
directory = tempfile.mkdtemp(); w = keras.Variable([1.0, 1.0], name="w")
def sgd(): return keras.optimizers.SGD(0.5)
def same(found, wanted=None): return np.array_equal(found, x if wanted is None else wanted)
def updated(optimizer):
    optimizer.apply_gradients([(tf.constant([2.0, 2.0]), w)])
    return same(w.numpy(), [0.0, 0.0])
def gradient():
    with tf.GradientTape() as tape: loss = tf.reduce_sum(w * w)
    return hvd.DistributedGradientTape(tape).gradient(loss, [w])[0]
"""
_TENSORFLOW = {
    "allreduce": "same(hvd.allreduce(x))",
    "grouped_allreduce": "same(hvd.grouped_allreduce([x])[0])",
    "allgather": "same(hvd.allgather(x))",
    "grouped_allgather": "same(hvd.grouped_allgather([x])[0])",
    "alltoall": "same(hvd.alltoall(x))",
    "reducescatter": "same(hvd.reducescatter(x))",
    "grouped_reducescatter": "same(hvd.grouped_reducescatter([x])[0])",
    "broadcast": "same(hvd.broadcast(x, 0))",
    "broadcast_": "same(hvd.broadcast_([tf.Variable(x)], 0)[0])",
    "broadcast_variables": "hvd.broadcast_variables([w], 0) is None",
    "rank_op": "int(hvd.rank_op()) == 0",
    "size_op": "int(hvd.size_op()) == 1",
    "local_rank_op": "int(hvd.local_rank_op()) == 0",
    "local_size_op": "int(hvd.local_size_op()) == 1",
    "Compression": "same(hvd.allreduce(x, compression=hvd.Compression.fp16))",
    "SyncBatchNormalization": (
        "abs(hvd.SyncBatchNormalization()(tf.ones((4, 2)), training=True)).numpy().max() < 1e-2"
    ),
    "DistributedGradientTape": "same(gradient(), [2.0, 2.0])",
    "DistributedOptimizer": "updated(hvd.DistributedOptimizer(sgd()))",
}
KERAS = TENSORFLOW.replace("edl.tensorflow as hvd", "edl.tensorflow.keras as hvd")
_KERAS = {name: _TENSORFLOW[name] for name in _TENSORFLOW} | {
    "allreduce": "same(hvd.allreduce(np.arange(4.0)))",
    "allgather": "same(hvd.allgather(np.arange(4.0)))",
    "broadcast": "same(hvd.broadcast(np.arange(4.0), 0))",
    "reducescatter": "same(hvd.reducescatter(np.arange(4.0), op=hvd.Sum))",
    "init": "hvd.init() is None",
    "is_initialized": "hvd.is_initialized()",
    "is_warming_up": "not hvd.is_warming_up()",
    "rank": "hvd.rank() == 0",
    "size": "hvd.size() == 1",
    "local_rank": "hvd.local_rank() == 0",
    "shutdown": "hvd.shutdown() is None",
    "callbacks": "hvd.callbacks.MetricAverageCallback() is not None",
    "elastic": "hvd.elastic.KerasState is not None",
}
_REDUCED = {each: f"same(hvd.allreduce(x, op=hvd.{each}))" for each in OPS}

CALLS = {
    "edl.torch.horovod_names": (TORCH, ALIKE | _REDUCED | _TORCH),
    "edl.tensorflow.horovod_names": (TENSORFLOW, ALIKE | _REDUCED | _TENSORFLOW),
    "edl.tensorflow.keras": (KERAS, ALIKE | _REDUCED | _KERAS),
}
REFUSED = """
def refused(call, error=UsageError):
    try: call()
    except error: return True
    return False
"""
