"""Find out at once that the process of another controller has died.

ZooKeeper ends the session of a dead controller after its time-out only. So each controller listens
on a port, and those that wait ask the ports of those before them in the election. Where nobody
listens any more, the process is dead, and may be removed from the election: that is safe, because
the fence refuses later writes of a removed leader. Of a controller of the same machine its process
id tells that, too, also to one that has just started in its place.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from edl.cluster.records import ControllerRecord
from edl.errors import UsageError
from edl.host.adoption import is_known_dead

logger = logging.getLogger(__name__)

ASK_S = 0.5  # for the port of another controller to answer
BACKLOG = 64


class LivenessServer:
    """A port at which this process listens as long as it lives; use it as a context manager."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = socket.socket()
        self._thread = threading.Thread(target=self._answer, name="edl-liveness", daemon=True)
        self.port = 0  # which the system chooses

    def __enter__(self) -> Self:
        try:
            self._socket.bind((self._address, 0))
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"cannot listen at {self._address}: {error.strerror}; give --address with an "
                "address of this machine"
            ) from None
        self._socket.listen(BACKLOG)
        self.port = self._socket.getsockname()[1]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # this wakes the thread
        self._socket.close()
        self._thread.join(ASK_S)

    def _answer(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return


class LivenessProbe:
    """A probe that finds dead controllers: those at whose port nobody listens any more."""

    def __init__(self) -> None:
        self._answered: set[str] = set()

    def dead(self, controllers: Iterable[ControllerRecord]) -> list[ControllerRecord]:
        found = []
        for one in controllers:
            if is_known_dead(one.machine, one.pid):
                found.append(one)
                continue
            refused = _is_refused(one)
            if refused is False:
                self._answered.add(one.controller)
            # What refuses the connection of one that has never answered may be a firewall.
            elif refused and one.controller in self._answered:
                found.append(one)
        return found


def _is_refused(controller: ControllerRecord) -> bool | None:
    """Return whether the port of `controller` refuses a connection; None: it is not known."""
    if not controller.port:
        return None
    try:
        socket.create_connection((controller.address, controller.port), ASK_S).close()
    except ConnectionRefusedError:
        return True
    except OSError as error:
        logger.debug("%s does not answer: %s", controller, error)
        return None
    return False
