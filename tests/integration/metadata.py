"""The metadata services of the clouds, as far as spot instances need them, on loopback.

They refuse what the real ones refuse: an EC2 question without an IMDSv2 token, the others' without
their header.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "token-of-imdsv2"
MACHINE = "spot-7"


class Service(ThreadingHTTPServer):
    """``noticed``: this instance is about to be taken away. ``broken``: it cannot say."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.noticed = self.broken = False
        self.asked = 0  # questions that a notice answers
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def service() -> Iterator[Service]:
    with Service() as one:
        thread = threading.Thread(target=one.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield one
        finally:
            one.shutdown()
            thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_PUT(self) -> None:
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        right = (
            self.path == "/latest/api/token" and seconds.isdigit() and 1 <= int(seconds) <= 21600
        )
        self._answer(200 if right else 400, TOKEN)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        header = self.headers.get
        if path == "/latest/meta-data/spot/instance-action":
            if header("X-aws-ec2-metadata-token") != TOKEN:
                return self._answer(401)
            action = {"action": "terminate", "time": "2030-01-01T00:02:00Z"}
            return self._notice(json.dumps(action), None)
        if path == "/computeMetadata/v1/instance/preempted":
            if header("Metadata-Flavor") != "Google":
                return self._answer(403)
            return self._notice("TRUE", "FALSE")
        if path == "/metadata/instance/compute/name" and "format=text" in query:
            return self._answer(200 if header("Metadata") == "true" else 400, MACHINE)
        if path == "/metadata/scheduledevents" and header("Metadata") == "true":
            other = _event("Preempt", "spot-8")
            pause = _event("Freeze", MACHINE)
            events = [other, pause, _event("Preempt", MACHINE)]
            return self._notice(json.dumps({"Events": events}), json.dumps({"Events": events[:2]}))
        return self._answer(400)

    def _notice(self, yes: str, no: str | None) -> None:
        self.server.asked += 1
        if self.server.broken:
            self._answer(503)
        elif self.server.noticed:
            self._answer(200, yes)
        else:
            self._answer(404 if no is None else 200, no or "")

    def _answer(self, code: int, body: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Nothing: a test tells by its assertions."""


def _event(kind: str, machine: str) -> dict[str, object]:
    return {"EventType": kind, "Resources": [machine], "NotBefore": ""}
