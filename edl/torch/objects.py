"""Exchange Python objects between the workers, for the adapters: :func:`exchange_objects`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from edl.errors import UsageError
from edl.torch.api import exchange


def exchange_objects(
    what: str,  # the script's call, the same on all workers
    value: Any,
    advice: str,
    send: Callable[[bytes], list[bytes]] | None = None,
) -> list[Any]:
    """Return the values of all workers in rank order."""
    answers = [pickle.loads(each) for each in (send or exchange)(pickle.dumps((what, value)))]
    for rank, (theirs, _) in enumerate(answers):
        if theirs != what:
            raise UsageError(
                f"the worker of rank {rank} calls {theirs} while this one calls {what}: {advice}"
            )
    return [each for _, each in answers]
