"""Say where the API listens, and whether its packages are installed, without importing them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec

from edl.config import LOOPBACK
from edl.errors import UsageError

PACKAGES = ("fastapi", "uvicorn")  # of the extra
_LISTEN = re.compile(r"(?:(?P<address>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):)?(?P<port>[0-9]{1,5})")


@dataclass(frozen=True)
class ListenAddress:
    """An address and a port to listen on; its text is the one that :func:`listen_address` reads.

    Attributes:
        address: the address.
        port: the port; 0: any that is free.
    """

    address: str
    port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


def listen_address(text: str) -> ListenAddress:
    """Return the address and the port that ``text``, ``[ADDRESS:]PORT``, names.

    Without an address it is 127.0.0.1, so that only this machine reaches it.

    Raises:
        UsageError: the text names none.
    """
    match = _LISTEN.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise UsageError(f"{text!r} is no [ADDRESS:]PORT; write 8080, or 10.0.0.7:8080")
    return ListenAddress((match["address"] or LOOPBACK).strip("[]"), int(match["port"]))


def check_packages() -> None:
    """Raise an error if the packages that the API needs are not installed.

    Raises:
        UsageError: one is missing.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the HTTP API needs {' and '.join(missing)}; install it: "
            "pip install 'edl-horovod[api]'"
        )
