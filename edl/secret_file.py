"""Read the secret of a job from a file that other users cannot read, or from a pipe.

An environment variable of a batch script, container or service is stored by what starts it: by
Slurm in its spool directory, by Kubernetes in its database, by systemd in the unit. So every
process that takes EDL_SECRET also takes EDL_SECRET_FILE, the path of such a file.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import select
import stat
import threading
import time
from pathlib import Path

from edl.errors import ConfigError

# ------------------------------------------------------------
# Derive a key for each purpose from a job's one secret (`derived`), and seal texts by one.
#
# No derived key reveals the secret or another key. This matters for the key for ZooKeeper: digest
# authentication sends it in clear text, so a listener on the network learns it. The derivation is
# HMAC-SHA256: RFC 5869 without its extraction step, which a random secret does not need.


def derived(secret: str, purpose: str, job: str) -> str:
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


MIN_SECRET = 32  # characters; what `edl run` makes has 64: 32 random bytes in hexadecimal
PIPE_S = 30.0  # for the writer of a pipe to write the secret and to close the pipe
MAX_BYTES = 4096  # of a secret's file
_reading = threading.Lock()
# By device and inode of a pipe, for what is in it can be read once.
_from_pipes: dict[tuple[int, int], str] = {}


def read_secret(path: str | Path, timeout_s: float = PIPE_S) -> str:
    """Return the secret that the file or pipe at `path` holds, without the newline at its end."""
    with _reading:
        return _read(os.path.abspath(path), timeout_s)


def open_to_others(mode: int, owner: int) -> bool:
    allowed = stat.S_IRGRP if owner == 0 else 0
    return bool(mode & (stat.S_IRWXG | stat.S_IRWXO) & ~allowed)


def _read(path: str, timeout_s: float) -> str:
    try:
        # A FIFO without a writer would make an ordinary open wait without end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            found = os.fstat(descriptor)
            _check(path, found)
            pipe = (found.st_dev, found.st_ino) if stat.S_ISFIFO(found.st_mode) else None
            if pipe in _from_pipes:
                return _from_pipes[pipe]
            content = _content(path, descriptor, timeout_s)
        finally:
            os.close(descriptor)
        words = content.decode().split()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError("secret_file", f"cannot read the secret file {path}: {why}") from None
    if len(words) != 1 or len(words[0]) < MIN_SECRET or len(content) > MAX_BYTES:
        raise ConfigError(
            "secret_file",
            f"the file {path} does not hold a secret: one word of at least {MIN_SECRET} "
            "characters is expected; take `openssl rand -hex 32`",
        )
    if pipe is not None:
        _from_pipes[pipe] = words[0]
    return words[0]


def _check(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
        raise ConfigError(
            "secret_file", f"the secret file {path} is neither a regular file nor a pipe"
        )
    if open_to_others(found.st_mode, found.st_uid):
        raise ConfigError(
            "secret_file",
            f"the secret file {path} is open to other users; `chmod 600 {path}` (its mode is "
            f"{stat.S_IMODE(found.st_mode):04o}; for a Secret of Kubernetes set `defaultMode: "
            "0400`)",
        )


def _content(path: str, descriptor: int, timeout_s: float) -> bytes:
    content = b""
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + timeout_s
    while len(content) <= MAX_BYTES:
        left_ms = math.ceil(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready.poll(left_ms):
            raise ConfigError(
                "secret_file",
                f"nobody has written a secret to the pipe {path} and closed it within "
                f"{timeout_s:g} s",
            )
        part = os.read(descriptor, MAX_BYTES)
        if not part:
            break
        content += part
    return content
