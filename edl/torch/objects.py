"""Exchange Python objects between the workers, for the adapters: :func:`exchange_objects`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from edl.errors import UsageError
from edl.torch.api import exchange


def exchange_objects(
    what: str,
    value: Any,
    advice: str,
    send: Callable[[bytes], list[bytes]] | None = None,
) -> list[Any]:
    """Return the values of all workers in rank order.

    Args:
        what: the call of the script for which values are exchanged; the same on all workers.
        value: what this worker sends; it is pickled.
        advice: what a script must do so that all workers make the same calls, for the error.
        send: sends a message to all workers, and returns those of all in rank order; None:
            :func:`edl.torch.api.exchange`, which says where it works.

    Raises:
        UsageError: a worker exchanges values for another call; or as ``send``.
    """
    answers = [pickle.loads(each) for each in (send or exchange)(pickle.dumps((what, value)))]
    for rank, (theirs, _) in enumerate(answers):
        if theirs != what:
            raise UsageError(
                f"the worker of rank {rank} calls {theirs} while this one calls {what}: {advice}"
            )
    return [each for _, each in answers]
