"""Raise an error with advice for each function of Horovod that edl does not offer.

:func:`absent` makes the function that raises it, and ABSENT has the advice by name.
docs/guides/horovod-scripts.md lists the same functions with the same advice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edl.errors import UsageError

PROCESS_SETS = (
    "process sets need a ring of constant size, and workers come and go here; collectives are "
    "those of all workers"
)
ADASUM = "Adasum needs a ring of constant size; use hvd.Average or hvd.Sum"
_STATE = "the elastic state brings all workers to the same variables; see hvd.elastic.run"
LOCAL_LAYERS = (
    "variables that each worker has for its own would be lost with the worker; average all of them"
)
_KERAS_MODEL = (
    "load it with keras.models.load_model, and compile it with hvd.DistributedOptimizer(...) "
    "around its optimizer"
)

ABSENT: Mapping[str, str] = {
    "ProcessSet": PROCESS_SETS,
    "add_process_set": PROCESS_SETS,
    "remove_process_set": PROCESS_SETS,
    "is_homogeneous": "how many workers a host has may change; see hvd.local_size()",
    "load_model": _KERAS_MODEL,
    "broadcast_global_variables": _STATE,
    "BroadcastGlobalVariablesHook": _STATE,
    "DistributedAdasumOptimizer": ADASUM,
    "PartialDistributedGradientTape": LOCAL_LAYERS,
    "PartialDistributedOptimizer": LOCAL_LAYERS,
    "broadcast_object_fn": "TensorFlow 2 has not what it calls; use hvd.broadcast_object",
    "BestModelCheckpoint": (
        "use keras.callbacks.ModelCheckpoint(..., save_best_only=True) on rank 0"
    ),
    "LocalGradientAggregationHelper": (
        "give the Keras optimizer gradient_accumulation_steps instead"
    ),
    "gpu_available": 'use tf.config.list_physical_devices("GPU")',
    "ObjectState": "take hvd.elastic.TensorFlowState, which keeps any attributes",
    "run": "a program starts a job by edl.run, of `import edl`; a script has hvd.elastic.run",
    "run_fn": "put the decorator hvd.elastic.run above the function that trains",
}
# Functions for Horovod's own use that happen to lie in its modules.
INTERNAL = frozenset({
    "check_extension",
    "check_num_rank_power_of_2",
    "handle_average_backwards_compatibility",
    "is_version_greater_equal_than",
    "process_set_included_op",
    "refs_to_vars",
    "split_list",
    "vars_to_refs",
})  # fmt: skip


def absent(module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module of edl that replaces one of Horovod's modules."""

    def find(name: str) -> Any:
        if name in ABSENT:
            raise UsageError(f"{module} has no {name}: {ABSENT[name]}")
        if name in INTERNAL:
            raise UsageError(
                f"{module} has no {name}: import it from horovod, it is a helper there"
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
