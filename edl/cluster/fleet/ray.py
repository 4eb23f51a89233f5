"""Borrow hosts from Ray: a lease is a detached actor, which starts `edl host` on its node.

Ray is called by a program of its own (:mod:`edl.cluster.fleet.ray_program`), in the Python that
has Ray. So edl imports Ray nowhere, and a controller outlives it.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edl.cluster.fleet.fleet import FleetUnreachable, HostCommand
from edl.cluster.records import HostLease, LeaseState, Shape
from edl.host.workers import die_with_parent

CALL_S = 30.0  # for an answer, the first time with the import of Ray
PROGRAM = Path(__file__).with_name("ray_program.py")


class RayFleet:
    name = "ray"

    def __init__(
        self,
        command: HostCommand,
        namespace: str,
        python: str,
        address: str,
        environment: Mapping[str, str],
        call_s: float = CALL_S,
    ) -> None:
        self._command = command
        self._first = {"address": address, "namespace": namespace}
        self._python = python
        self._environment = environment
        self._call_s = call_s
        self._program: subprocess.Popen[bytes] | None = None

    def leases(self) -> Mapping[str, HostLease]:
        found = self._call("leases")["leases"]
        return {
            name: HostLease(LeaseState(state), host, why)
            for name, (state, host, why) in found.items()
        }

    def ask(self, lease: str, shape: Shape) -> None:
        words, kept = self._command.words(lease, shape), dict(self._command.environment)
        self._call("ask", name=lease, words=words, environment=kept, avoid=shape.avoid)

    def give_back(self, lease: str, within_s: float) -> None:
        self._call("give_back", name=lease, within_s=within_s)

    def log(self, lease: str) -> str:
        return str(self._call("log", name=lease)["log"])

    def close(self) -> None:
        program, self._program = self._program, None
        if program is not None:
            program.kill()
            program.wait()
            for pipe in (program.stdin, program.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _call(self, call: str, **request: Any) -> dict[str, Any]:
        try:
            if self._program is None:
                self._start()
            self._send({"call": call, **request})
            answer: dict[str, Any] = json.loads(self._receive())
        except (OSError, ValueError) as error:  # also if what it has written is no answer
            self.close()
            raise FleetUnreachable(f"{self._python}: {error}") from error
        if "error" in answer:
            raise FleetUnreachable(str(answer["error"]))
        return answer

    def _start(self) -> None:
        self._program = subprocess.Popen(
            [self._python, str(PROGRAM)],
            env=dict(self._environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._send(self._first)

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._program is not None
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps(request).encode() + b"\n")
        self._program.stdin.flush()

    def _receive(self) -> bytes:
        assert self._program is not None
        assert self._program.stdout is not None
        output, found = self._program.stdout.fileno(), b""
        deadline_s = time.monotonic() + self._call_s
        while not found.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([output], [], [], left_s)[0]:
                raise TimeoutError(f"no answer within {self._call_s:g} s")
            part = self._program.stdout.read1(65536)  # type: ignore[attr-defined]
            if not part:
                raise ConnectionResetError("the program that calls Ray has ended")
            found += part
        return found
