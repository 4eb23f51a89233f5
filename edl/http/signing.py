"""Sign requests that change something in a worker, so that each signature is good for one use.

The server answers a first, unsigned request with 401 and a nonce that it has just made
(``WWW-Authenticate: EDL <nonce>``). The client sends it again with ``Authorization: EDL
<nonce>:<mac>``: the HMAC-SHA256 of method, target, worker, nonce and body, with a key made from
the job's secret. So a recorded request is refused, and the hosts' clocks need not agree. A nonce
has its time and a proof of its maker: the server stores only those that were used, until they are
too old. This authenticates and does not encrypt. The answer is not signed.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from edl.errors import UsageError
from edl.secret_file import derived

logger = logging.getLogger(__name__)
SCHEME = "EDL"
_NONCE = re.compile(r"([0-9a-f]{1,16}-[0-9a-f]{32})-([0-9a-f]{64})")
_AUTHORIZATION = re.compile(rf"{SCHEME} ([0-9a-f-]+):([0-9a-f]{{64}})")


def http_key(secret: str, job: str) -> str:
    return derived(secret, "http", job)


def authorization(key: str, nonce: str, worker: int, method: str, target: str, body: bytes) -> str:
    return f"{SCHEME} {nonce}:{_mac(key, nonce, worker, method, target, body)}"


@dataclass(frozen=True)
class AuthenticatorLimits:
    nonce_s: float = 30.0  # how long a nonce is accepted, by the clock of the worker that made it
    used_nonces: int = 4096  # remembered at most; then nothing is accepted until some expire


class Authenticator:
    """The server's side of signatures, for one thread: makes nonces, accepts each of them once."""

    def __init__(
        self,
        key: str,
        clock: Callable[[], float] = time.monotonic,
        limits: AuthenticatorLimits = AuthenticatorLimits(),
    ) -> None:
        self.worker: int | None = None  # set by the caller; nothing is accepted before
        self._limits = limits
        self._key = key
        self._clock = clock
        self._own_key = secrets.token_hex(32)
        self._used: OrderedDict[str, float] = OrderedDict()  # nonce -> when it is too old

    def nonce(self) -> str:
        """Return a new nonce: the time, random digits, and the proof that this object made it."""
        made = f"{int(self._clock() * 1000):x}-{secrets.token_hex(16)}"
        return f"{made}-{self._proof(made)}"

    def accepts(
        self, given: str, method: str, target: str, body: bytes, key: str | None = None
    ) -> bool:
        """Return whether a request to this worker is rightly signed; if so, use up its nonce."""
        now = self._clock()
        while self._used and next(iter(self._used.values())) <= now:
            self._used.popitem(last=False)
        match = _AUTHORIZATION.fullmatch(given)
        if match is None or self.worker is None:
            return False
        nonce, mac = match.groups()
        expected = _mac(key or self._key, nonce, self.worker, method, target, body)
        if not hmac.compare_digest(mac, expected):
            return False
        if not self._is_fresh(nonce, now) or nonce in self._used:
            return False
        limits = self._limits
        if len(self._used) >= limits.used_nonces:
            logger.warning(
                "more than %d signed requests in %g s", limits.used_nonces, limits.nonce_s
            )
            return False
        # Counted from its use: the order of the dictionary is then that of the ends.
        self._used[nonce] = now + limits.nonce_s
        return True

    def _is_fresh(self, nonce: str, now: float) -> bool:
        match = _NONCE.fullmatch(nonce)
        if match is None or not hmac.compare_digest(match[2], self._proof(match[1])):
            return False
        made = int(match[1].partition("-")[0], 16) / 1000
        return now - made < self._limits.nonce_s

    def _proof(self, made: str) -> str:
        return hmac.new(self._own_key.encode(), made.encode(), hashlib.sha256).hexdigest()


def _mac(key: str, nonce: str, worker: int, method: str, target: str, body: bytes) -> str:
    digest = hmac.new(key.encode(), digestmod=hashlib.sha256)
    for part in (method.encode(), target.encode(), str(worker).encode(), nonce.encode(), body):
        digest.update(len(part).to_bytes(8, "big") + part)  # so that no two requests look the same
    return digest.hexdigest()


# ------------------------------------------------------------
# Make what a caller of the HTTP API of a cluster proves itself with: a key to sign, or a token.

AUDIENCE = 0  # what stands in a signature for the worker that a request is for
BEARER = "Bearer"
_TOKEN = re.compile(r"edl-([0-9a-f]{1,12})-([0-9a-f]{64})")


def api_key(secret: str, cluster: str) -> str:
    return derived(secret, "api", cluster)


def new_token(secret: str, cluster: str, expires_s: float) -> str:
    expires = f"{int(expires_s):x}"
    return f"edl-{expires}-{_proof(secret, cluster, expires)}"


def token_end_s(secret: str, cluster: str, token: str) -> float | None:
    """Return when a bearer token ends, in seconds since 1970; None: it is not the cluster's."""
    match = _TOKEN.fullmatch(token)
    expected = _proof(secret, cluster, match[1] if match else "")
    if match is None or not hmac.compare_digest(match[2], expected):
        return None
    return float(int(match[1], 16))


def _proof(secret: str, cluster: str, expires: str) -> str:
    key = derived(secret, "bearer", cluster)
    return hmac.new(key.encode(), expires.encode(), hashlib.sha256).hexdigest()


# ------------------------------------------------------------
# Read the JSON in the body of a request, which may have any bytes: `decoded_json`.

T = TypeVar("T")


def decoded_json(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        try:
            body.decode()
        except UnicodeDecodeError as wrong:
            why = f"the byte 0x{body[wrong.start]:02x} is not UTF-8; send JSON in UTF-8"
            raise UsageError(why) from None
        raise UsageError(str(error)) from None
