"""The job of a command that names none: records that cannot be read hold up no other job."""

from __future__ import annotations

from typing import Any

import pytest
from made import make_job

from edl.client import connection
from edl.client.connection import choose_job
from edl.errors import UsageError
from edl.records import JobState
from edl.zookeeper.access import Access
from edl.zookeeper.reads import encode


class Records:
    """A session in which the records of jobs can be read.

    Args:
        records: the record of each job by its name.
    """

    def __init__(self, records: dict[str, bytes]) -> None:
        self._records = records

    def read_open(self, what: str, reads: list[Any]) -> list[tuple[bytes, None]]:
        return [(self._records[name], None) for name in sorted(self._records)]

    def identify(self, *known: Access) -> None:
        """Believe that the secrets are right."""


def chosen(monkeypatch: pytest.MonkeyPatch, records: dict[str, bytes]) -> str:
    session: Any = Records(records)
    mine = {name: Access(name, "s" * 32) for name in records}
    monkeypatch.setattr(connection, "job_names", lambda _: tuple(records))
    monkeypatch.setattr(connection, "unlock", lambda *_: mine)
    return choose_job(session, None).name


RUNNING = encode(make_job(name="digits").to_json())
ENDED = encode(make_job(name="digits", state=JobState.FINISHED).to_json())
NEWER = b'{"name": "new", "created": 1.0, "state": "hibernating"}'


@pytest.mark.parametrize("other", [NEWER, b"", b"{"])
def test_a_job_that_cannot_be_read_is_left_out(
    monkeypatch: pytest.MonkeyPatch, other: bytes
) -> None:
    assert chosen(monkeypatch, {"digits": RUNNING, "new": other}) == "digits"


def test_without_a_choice_it_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^no job is running; .*; job new cannot be read: .*hib"):
        chosen(monkeypatch, {"digits": ENDED, "new": NEWER})
