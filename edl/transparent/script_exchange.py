"""Send messages between the processes of an unchanged Keras script: :class:`ScriptExchange`."""

from __future__ import annotations

import time

from edl.binding.process import current_worker

WAITS_S, PAUSE_S = 60.0, 0.2  # for the others, who come to the script's next fit soon


class ScriptExchange:
    """The exchanges of a script, which all processes make at the same points."""

    def __init__(self) -> None:
        self._made = 0
        self.has_trained = False  # whether the script has come to its training

    def known(self, payload: bytes) -> list[bytes]:
        """Send `payload` outside of the training; return all payloads in rank order."""
        # The others keep their answer for newcomers, who may come here before them.
        number, self._made = self._made, self._made + 1
        deadline = time.monotonic() + WAITS_S
        while (answer := current_worker().exchange_before_training(number, payload)) is None:
            if time.monotonic() > deadline:
                return [payload]
            time.sleep(PAUSE_S)
        return answer

    def now(self, payload: bytes) -> list[bytes]:
        """Send `payload` between two steps, or before the training; return all payloads."""
        if self.has_trained:  # a newcomer that has not joined gets its own alone
            return current_worker().exchange_bytes(payload)
        return self.known(payload)
