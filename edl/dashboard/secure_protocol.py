"""Send the headers of all answers also with those that uvicorn gives by itself."""

from __future__ import annotations

from edl.api.protocol import LimitProtocol
from edl.dashboard.answers import HEADERS


class SecureProtocol(LimitProtocol):
    """A connection whose answer to what is no HTTP has the `HEADERS` of the page."""

    def send_400_response(self, msg: str) -> None:
        """Answer to bytes that are no request, with the sentence `msg`, and close."""
        state = self.server_state
        before = state.default_headers
        more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
        state.default_headers = [*before, *more]
        try:
            super().send_400_response(msg)
        finally:
            state.default_headers = before
