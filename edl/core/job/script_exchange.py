"""Collect what workers send to each other before the training of a job: pure functions.

The exchanges of a job are numbered from 0. They are kept as a JSON object,
``{"exchanges": [...]}``, where an exchange is ``{"sent": {worker id: payload}}`` as long as a
worker is missing, and ``{"answer": [payloads in rank order]}`` after that. Payloads are texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edl.core.snapshot import Snapshot


def participants(now: Snapshot) -> tuple[int, ...]:
    """Return the ids of the workers that take part in an exchange, in rank order."""
    # A member without a session counts: an answer without its payload would be kept for ever.
    ring = () if now.generation is None else now.generation.worker_ids
    return tuple(worker for worker in ring if worker not in now.evicted)


def with_payload(
    values: Mapping[str, Any], number: int, worker: int, payload: str, members: Sequence[int]
) -> dict[str, Any]:
    """Return `values` with a worker's payload, or with the answer if all have sent."""
    exchanges = [*values.get("exchanges", [])]
    exchanges += [{"sent": {}}] * (number + 1 - len(exchanges))
    # An answer stays as it is, so that all workers get the same one.
    if "answer" not in exchanges[number]:
        sent = {**exchanges[number]["sent"], str(worker): payload}
        missing = [member for member in members if str(member) not in sent]
        one = {"sent": sent} if missing else {"answer": [sent[str(member)] for member in members]}
        exchanges[number] = one
    return {**values, "exchanges": exchanges}


def answer_of(values: Mapping[str, Any], number: int) -> list[str] | None:
    """Return the payloads of the exchange `number`, in rank order; None: it has no answer yet."""
    exchanges = values.get("exchanges", [])
    if number >= len(exchanges):
        return None
    answer: list[str] | None = exchanges[number].get("answer")
    return answer
