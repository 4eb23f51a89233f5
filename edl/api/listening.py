"""Say where a server listens, and whether its packages are installed, without importing them."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from edl.config import LOOPBACK
from edl.errors import UsageError

BACKLOG = 1024  # connections that wait to be accepted
PACKAGES = ("fastapi", "uvicorn", "httptools")  # of the extra
_LISTEN = re.compile(r"(?:(?P<address>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):)?(?P<port>[0-9]{1,5})")


@dataclass(frozen=True)
class ListenAddress:
    """An address and a port to listen on; its text is the one that `listen_address` reads."""

    address: str
    port: int  # the port; 0: any that is free

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the address; of a name it is not known."""
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return self.address == "localhost"

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


def listen_address(text: str) -> ListenAddress:
    match = _LISTEN.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise UsageError(f"{text!r} is no [ADDRESS:]PORT; write 8080, or 10.0.0.7:8080")
    # by default only this machine reaches it
    return ListenAddress((match["address"] or LOOPBACK).strip("[]"), int(match["port"]))


def check_packages(
    what: str = "the HTTP API", packages: Sequence[str] | None = None, extra: str = "api"
) -> None:
    missing = [
        name for name in (PACKAGES if packages is None else packages) if find_spec(name) is None
    ]
    if missing:
        raise UsageError(
            f"{what} needs {' and '.join(missing)}; install it: pip install 'edl-horovod[{extra}]'"
        )


def listener(listen: ListenAddress, what: str = "the API") -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.address else socket.AF_INET
    try:
        return socket.create_server((listen.address, listen.port), family=family, backlog=BACKLOG)
    except OSError as error:  # its own text has the address once more
        is_known = not isinstance(error, socket.gaierror) and error.errno
        why = os.strerror(error.errno or 0) if is_known else error.strerror
        raise UsageError(
            f"{what} cannot listen at {listen}: {why}; give another address or port"
        ) from None
