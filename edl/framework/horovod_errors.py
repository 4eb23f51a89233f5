"""Recognise, by its message, an error by which Horovod refuses a collective in an intact ring.

Horovod raises the same exception as for a broken ring, but a repair of the ring would only lead to
the same refusal. The messages are those of Horovod's controller.cc and common.h, and of NCCL.
"""

from __future__ import annotations

import re

from edl.errors import UsageError
from edl.framework import process
from edl.framework.horovod_absent import ADASUM
from edl.ring.ring import CollectiveFailed

_REFUSAL = re.compile(
    r"Mismatched |with the same name as another|is not supported|tried to |No \w+ operation enabled"
)
_NO_ADASUM = "No Adasum operation enabled"
_NCCL = re.compile(r"ncclCommInitRank failed: invalid (usage|argument)")


def refusal(message: str, hint: str) -> UsageError | None:
    """Return the error for a call that Horovod refuses in any ring; None: build the ring anew."""
    if _NO_ADASUM in message:
        return UsageError(f"op=Adasum is not there: {ADASUM}")
    # A worker with a trained state goes on: without the newcomer the ring can be built.
    if _NCCL.search(message) is not None and not process.has_trained():
        return UsageError(
            f"{message}. NCCL refuses two workers on one GPU, for example: call "
            "torch.cuda.set_device(edl.local_rank()) after edl.init(), and start the job with "
            "--slots = the number of GPUs of the host. NCCL_DEBUG=WARN shows NCCL's reason"
        )
    if _REFUSAL.search(message) is not None:
        return UsageError(f"{message} (every worker must {hint})")
    return None


def classify_error(message: str) -> CollectiveFailed | UsageError:
    """Return the error to raise for a collective that has failed; mostly the ring has broken."""
    return refusal(message, "build the same model") or CollectiveFailed(message)
