"""Derive a key for each purpose from a job's one secret (:func:`derived`).

No derived key reveals the secret or another key. This matters for the key for ZooKeeper: digest
authentication sends it in clear text, so a listener on the network learns it. The derivation is
HMAC-SHA256: RFC 5869 without its extraction step, which a random secret does not need.
"""

from __future__ import annotations

import hashlib
import hmac


def derived(secret: str, purpose: str, job: str) -> str:
    """Return a key of ``job`` for one purpose, as 64 hexadecimal digits.

    The same arguments always give the same key. The key does not reveal the secret.

    Args:
        secret: the secret of the job, a random text that all its processes know.
        purpose: the use of the key, "http" or "zookeeper"; each has a key of its own.
        job: the name of the job.
    """
    message = f"edl {purpose} {job}".encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
