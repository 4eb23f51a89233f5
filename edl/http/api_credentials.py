"""Make what a caller of the HTTP API of a cluster proves itself with: a key to sign, or a token."""

from __future__ import annotations

import hashlib
import hmac
import re

from edl.keys import derived

AUDIENCE = 0  # what stands in a signature for the worker that a request is for
BEARER = "Bearer"

_TOKEN = re.compile(r"edl-([0-9a-f]{1,12})-([0-9a-f]{64})")


def api_key(secret: str, cluster: str) -> str:
    """Return the key that signs requests to the API of a cluster, as 64 hexadecimal digits."""
    return derived(secret, "api", cluster)


def new_token(secret: str, cluster: str, expires_s: float) -> str:
    """Return a bearer token for the API of a cluster."""
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
