"""Broadcast a message of any length; Horovod's broadcast needs equal lengths on all workers."""

from __future__ import annotations

from collections.abc import Callable

FIRST_PIECE_BYTES = 2**15  # a progress header, or the description of a small state
LENGTH_BYTES = 8

Broadcast = Callable[[bytearray, str], bytearray]  # (data, name) -> the root's data


def broadcast_message(payload: bytes, sending: bool, name: str, broadcast: Broadcast) -> bytes:
    """Send the root's message to all workers; return it on each of them, the root included."""
    first = bytearray(FIRST_PIECE_BYTES)
    if sending:
        head = len(payload).to_bytes(LENGTH_BYTES, "big") + payload
        first[: len(head)] = head[:FIRST_PIECE_BYTES]
    first = broadcast(first, name)  # all workers must come here
    length = int.from_bytes(first[:LENGTH_BYTES], "big")
    received = first[LENGTH_BYTES : LENGTH_BYTES + length]
    if missing := length - len(received):  # equal on all: a second collective for the rest
        rest = payload[-missing:] if sending else bytes(missing)
        received += broadcast(bytearray(rest), f"{name}.rest")
    return bytes(received)
