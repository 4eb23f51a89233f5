"""Derive a key for each purpose from a job's one secret (:func:`derived`), and seal texts by one.

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
        purpose: the use of the key, such as "http" or "zookeeper"; each has a key of its own.
        job: the name of the job.
    """
    message = f"edl {purpose} {job}".encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


NONCE_BYTES = 16
_TAG_BYTES = 32


def seal(key: str, about: str, content: bytes, nonce: bytes) -> bytes:
    """Return ``content`` encrypted and authenticated, so that only those who have ``key`` read it.

    The stream that encrypts it is HMAC-SHA256 of the nonce and a counter, a pseudo-random function
    in counter mode (NIST SP 800-38A, 6.5); HMAC-SHA256 of all that a reader sees is added
    (encrypt-then-MAC). Its length is not hidden.

    Args:
        key: the key, as :func:`derived` returns it.
        about: what the content is, such as its name; :func:`unseal` needs the same.
        content: the content.
        nonce: ``NONCE_BYTES`` (16) random bytes, which no other content has.
    """
    encrypted = _xored(key, nonce, content)
    return nonce + encrypted + _tag(key, about, nonce + encrypted)


def unseal(key: str, about: str, sealed: bytes) -> bytes | None:
    """Return the content that :func:`seal` has sealed; None if it has another key, or was changed.

    Args:
        key: the key.
        about: what the content is; it must be what was given to :func:`seal`.
        sealed: the sealed content.
    """
    body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
    if len(body) < NONCE_BYTES or not hmac.compare_digest(tag, _tag(key, about, body)):
        return None
    return _xored(key, body[:NONCE_BYTES], body[NONCE_BYTES:])


def _xored(key: str, nonce: bytes, content: bytes) -> bytes:
    """Return ``content`` encrypted, or decrypted, by the stream that ``key`` and ``nonce`` make."""
    own = _digest(key.encode(), b"encrypt")
    blocks = range(-(-len(content) // _TAG_BYTES))
    stream = b"".join(_digest(own, nonce + block.to_bytes(8, "big")) for block in blocks)
    number = int.from_bytes(content, "big") ^ int.from_bytes(stream[: len(content)], "big")
    return number.to_bytes(len(content), "big")


def _tag(key: str, about: str, body: bytes) -> bytes:
    """Return what proves that ``body``, of the content called ``about``, was not changed."""
    own, name = _digest(key.encode(), b"authenticate"), about.encode()
    return _digest(own, len(name).to_bytes(8, "big") + name + body)


def _digest(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()
