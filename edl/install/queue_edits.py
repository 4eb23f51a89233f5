"""The edits of Horovod's queue of tensors: what is sent too late is an error.

Who sends looks whether Horovod has shut down, and puts the tensor into the queue. In between a ring
that broke may end, and the queue be emptied with an error for each tensor in it: the late one stays
there, and whoever waits for it waits for ever. So a queue that was emptied takes none, until the
next init opens it.
"""

from __future__ import annotations

REASON = (
    "a tensor that is sent just when a broken ring ends is put into a queue that was emptied, and "
    "whoever waits for it waits for ever; such a queue takes none, until the next init opens it"
)

_QUEUE = "horovod/common/tensor_queue"
_LOCK = "  std::lock_guard<std::mutex> guard(mutex_);\n"
_REFUSE = "  if (finalized_) {\n    return SHUT_DOWN_ERROR;\n  }\n"
_ONE = "  if (tensor_table_.find(e.tensor_name) != tensor_table_.end()) {\n"
_SEVERAL = "  for (std::size_t i = 0; i < entries.size(); ++i) {\n"
_EMPTY = "void TensorQueue::FinalizeTensorQueue(const Status& status) {\n" + _LOCK
_OPEN = "void TensorQueue::Open() {\n" + _LOCK + "  finalized_ = false;\n}\n\n"
_DECLARED = "  void FinalizeTensorQueue(const Status& status);\n"
_MUTEX = "  mutable std::mutex mutex_;\n"
_INITIALISED = "  initialization_done = true;\n  return true;\n"

# File, what is there, what comes in its place, how often.
PIECES: tuple[tuple[str, str, str, int], ...] = (
    (f"{_QUEUE}.h", _DECLARED, f"{_DECLARED}\n  void Open();\n", 1),
    (f"{_QUEUE}.h", _MUTEX, f"{_MUTEX}\n  bool finalized_ = false; // emptied for good\n", 1),
    (f"{_QUEUE}.cc", _LOCK + _ONE, _LOCK + _REFUSE + _ONE, 1),
    (f"{_QUEUE}.cc", f"{_LOCK}\n{_SEVERAL}", f"{_LOCK}{_REFUSE}\n{_SEVERAL}", 1),
    (
        f"{_QUEUE}.cc",
        _EMPTY,
        _OPEN + _EMPTY + "  finalized_ = true;\n",
        1,
    ),
    # Of MPI, and of Gloo.
    ("horovod/common/process_set.cc", _INITIALISED, f"  tensor_queue.Open();\n{_INITIALISED}", 2),
)
