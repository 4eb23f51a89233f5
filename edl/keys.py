"""Derive a key for each purpose from a job's one secret (:func:`derived`), and seal texts by one.

No derived key reveals the secret or another key. This matters for the key for ZooKeeper: digest
authentication sends it in clear text, so a listener on the network learns it. The derivation is
HMAC-SHA256: RFC 5869 without its extraction step, which a random secret does not need.
"""

from __future__ import annotations

import hashlib
import hmac


def derived(secret: str, purpose: str, job: str) -> str:
    """Return a key of `job` for one purpose, as 64 hexadecimal digits."""
    message = f"edl {purpose} {job}".encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


NONCE_BYTES = 16
_TAG_BYTES = 32


def seal(key: str, about: str, content: bytes, nonce: bytes) -> bytes:
    """Return `content` encrypted and authenticated, so that only those who have `key` read it."""
    encrypted = _xored(key, nonce, content)
    return nonce + encrypted + _tag(key, about, nonce + encrypted)


def unseal(key: str, about: str, sealed: bytes) -> bytes | None:
    """Return the content that `seal` has sealed; None if it has another key, or was changed."""
    body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
    if len(body) < NONCE_BYTES or not hmac.compare_digest(tag, _tag(key, about, body)):
        return None
    return _xored(key, body[:NONCE_BYTES], body[NONCE_BYTES:])


def _xored(key: str, nonce: bytes, content: bytes) -> bytes:
    """Return `content` encrypted, or decrypted, by the stream that `key` and `nonce` make."""
    own = _digest(key.encode(), b"encrypt")
    blocks = range(-(-len(content) // _TAG_BYTES))
    stream = b"".join(_digest(own, nonce + block.to_bytes(8, "big")) for block in blocks)
    number = int.from_bytes(content, "big") ^ int.from_bytes(stream[: len(content)], "big")
    return number.to_bytes(len(content), "big")


def _tag(key: str, about: str, body: bytes) -> bytes:
    own, name = _digest(key.encode(), b"authenticate"), about.encode()
    return _digest(own, len(name).to_bytes(8, "big") + name + body)


def _digest(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()
