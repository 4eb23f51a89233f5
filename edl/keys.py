"""One secret a job, and a key of its own for each purpose, so that none of them tells another.

Who listens on the line to ZooKeeper learns the key for ZooKeeper (digest authentication sends it
as it is). HMAC-SHA256 as a key derivation: RFC 5869, whose extraction a random secret does not
need.
"""

from __future__ import annotations

import hashlib
import hmac


def derived(secret: str, purpose: str, job: str) -> str:
    """The key of ``job`` for ``purpose``, in hexadecimal; it does not tell the secret."""
    message = f"edl {purpose} {job}".encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
