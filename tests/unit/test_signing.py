"""A signature is good for one request to one worker, once, and not for long."""

from __future__ import annotations

import pytest

from edl.http.signing import Authenticator, AuthenticatorLimits, authorization, http_key
from edl.zookeeper.access import Access

LIMITS = AuthenticatorLimits(used_nonces=5)
KEY = http_key("0123456789abcdef" * 4, "digits")
REQUEST = ("POST", "/chaos/expire", b"body")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guard(clock: Clock) -> Authenticator:
    one = Authenticator(KEY, clock, LIMITS)
    one.worker = 3
    return one


def test_a_signed_request_is_accepted_once(guard: Authenticator) -> None:
    given = authorization(KEY, guard.nonce(), 3, *REQUEST)
    assert guard.accepts(given, *REQUEST)
    assert not guard.accepts(given, *REQUEST)
    assert guard.accepts(authorization(KEY, guard.nonce(), 3, *REQUEST), *REQUEST)


@pytest.mark.parametrize(
    "other",
    [
        ("PUT", "/chaos/expire", b"body"),
        ("POST", "/chaos/cut", b"body"),
        ("POST", "/chaos/expire?now", b"body"),
        ("POST", "/chaos/expire", b""),
        ("POST", "/chaos/expirebo", b"dy"),
        ("POST/chaos/expire", "", b"body"),
    ],
)
def test_a_signature_is_for_one_request_only(
    guard: Authenticator, other: tuple[str, str, bytes]
) -> None:
    given = authorization(KEY, guard.nonce(), 3, *REQUEST)
    assert not guard.accepts(given, *other)
    assert guard.accepts(given, *REQUEST)  # the attempt has not used it up


def test_it_is_for_one_worker_and_one_key(guard: Authenticator, clock: Clock) -> None:
    nonce = guard.nonce()
    assert not guard.accepts(authorization(KEY, nonce, 4, *REQUEST), *REQUEST)
    for secret, job in (("f" * 64, "digits"), ("0123456789abcdef" * 4, "letters")):
        assert not guard.accepts(authorization(http_key(secret, job), nonce, 3, *REQUEST), *REQUEST)
    guard.worker = None  # it has no number yet
    assert not guard.accepts(authorization(KEY, nonce, 3, *REQUEST), *REQUEST)
    other = Authenticator(KEY, clock)
    other.worker = 3  # the same number in a new process: the nonce is not its own
    assert not other.accepts(authorization(KEY, nonce, 3, *REQUEST), *REQUEST)


def test_a_nonce_grows_old(guard: Authenticator, clock: Clock) -> None:
    given = authorization(KEY, guard.nonce(), 3, *REQUEST)
    clock.now += LIMITS.nonce_s + 0.01
    assert not guard.accepts(given, *REQUEST)


@pytest.mark.parametrize(
    "nonce",
    ["", "0-0-0", "ffffffffffffffff-" + "0" * 32 + "-" + "0" * 64, "-".join("abc"), "a" * 500],
)
def test_a_nonce_of_ones_own_is_refused(guard: Authenticator, nonce: str) -> None:
    assert not guard.accepts(authorization(KEY, nonce, 3, *REQUEST), *REQUEST)


@pytest.mark.parametrize("given", ["", "EDL", "EDL :", "Basic eDp5", "EDL é:é", "EDL a:b", "\n"])
def test_what_is_no_signature_is_refused(guard: Authenticator, given: str) -> None:
    assert not guard.accepts(given, *REQUEST)


def test_memory_is_bounded_and_full_memory_refuses(guard: Authenticator, clock: Clock) -> None:
    signed = [authorization(KEY, guard.nonce(), 3, *REQUEST) for _ in range(7)]
    assert [guard.accepts(one, *REQUEST) for one in signed] == [True] * 5 + [False] * 2
    for _ in range(1000):
        guard.nonce()
    assert len(guard._used) == 5
    clock.now += (
        LIMITS.nonce_s
    )  # the first five are too old to be replayed, so they may be forgotten
    assert not any(guard.accepts(one, *REQUEST) for one in signed)
    assert len(guard._used) == 0
    assert guard.accepts(authorization(KEY, guard.nonce(), 3, *REQUEST), *REQUEST)


def test_no_key_reveals_another_and_none_is_shown() -> None:
    secret = "0123456789abcdef" * 4
    keys = {http_key(secret, "digits"), http_key(secret, "letters")}
    keys |= {Access(job, secret).credential.split(":")[1] for job in ("digits", "letters")}
    assert len(keys) == 4
    assert not any(secret in key for key in keys)
    shown = repr(Access("digits", secret)) + repr(Access("digits", secret).acl)
    assert not any(key in shown for key in {secret, *keys})
