"""The body of a request may have any bytes: what is wrong with it is a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from edl.errors import UsageError
from edl.http.signing import decoded_json


def test_a_value_of_the_type() -> None:
    assert decoded_json(b'{"np": 3}', dict[str, Any]) == {"np": 3}
    assert decoded_json('{"by": "ü"}'.encode(), dict[str, str]) == {"by": "ü"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"by": "caf\xe9"}', "^the byte 0xe9 is not UTF-8; send JSON in UTF-8$"),
        (b'{"np": ' + b"[" * 5000, "recursion"),
        (b'{"by": "\\ud800"}', "malformed|truncated"),
        ('{"np": 3}'.encode("utf-16"), "^the byte 0xff is not UTF-8"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        decoded_json(body, dict[str, Any])
