"""Exchange messages of an unchanged script before its training: :class:`ScriptMessageNode`.

The ring cannot be used: if a worker dies, it is repaired only where the training has a state.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from edl.coordination.nodes import JobNodes, content
from edl.coordination.reads import get
from edl.core.job.script_exchange import answer_of, with_payload
from edl.errors import UsageError

MOST_BYTES = 2**18  # of all messages before the training; ZooKeeper refuses a node above 1 MiB


class ScriptMessageNode:
    """The node of a job with what its workers have exchanged before the training."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def send(
        self, number: int, worker: int, payload: bytes, members: Sequence[int]
    ) -> list[bytes] | None:
        """Send a message; return those of all workers, or None if some have not sent theirs."""
        text = base64.b85encode(payload).decode()

        def change(values: dict[str, Any]) -> dict[str, Any]:
            changed = with_payload(values, number, worker, text, members)
            if _size(changed) > MOST_BYTES:
                raise UsageError(
                    f"the script sends more than {MOST_BYTES // 1024} KiB by collectives before "
                    "its training, which edl keeps for workers that join later; send less: models "
                    "and optimizers by hvd.broadcast_parameters and hvd.broadcast_optimizer_state"
                )
            return changed

        return _decoded(self._nodes.compare_and_set(self._nodes.paths.script, change), number)

    def read(self, number: int) -> list[bytes] | None:
        """Return the messages of the exchange `number`, in rank order; None: not all are there."""
        path = self._nodes.paths.script
        return _decoded(content(path, self._nodes.read(get(path))[0]), number)


def _decoded(values: Mapping[str, Any], number: int) -> list[bytes] | None:
    texts = answer_of(values, number)
    return None if texts is None else [base64.b85decode(text) for text in texts]


def _size(values: Mapping[str, Any]) -> int:
    return sum(
        sum(map(len, one["answer"] if "answer" in one else one["sent"].values()))
        for one in values["exchanges"]
    )
