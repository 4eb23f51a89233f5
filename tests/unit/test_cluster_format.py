"""Records of another version of edl: what is read of them, and what is said."""

from __future__ import annotations

import pytest

from edl.cluster.nodes import check_settings, own_version
from edl.cluster.records import FORMAT, ClusterRecord
from edl.errors import CoordinationError, UnsupportedFormat


def test_records_of_this_format_may_have_more_than_is_known() -> None:
    written = {**ClusterRecord(policy="fifo").to_json(), "new": 1}
    settings = ClusterRecord.from_json(written)
    assert settings == ClusterRecord(policy="fifo")
    check_settings("lab", settings)


@pytest.mark.parametrize(
    ("version", "by", "what"),
    [("7.0", ", which edl 7.0 writes", "edl 7.0"), ("", "", "the version of edl that runs there")],
)
def test_of_another_format_only_the_version_is_read(version: str, by: str, what: str) -> None:
    written = {"format": 99, "version": version, "policy": ["no", "text"], "interval_s": {}}
    with pytest.raises(UnsupportedFormat) as caught:
        check_settings("lab", ClusterRecord.from_json(written))
    assert str(caught.value) == (
        f"cluster lab has records of format 99{by}, and this edl {own_version()} reads and writes "
        f"format {FORMAT}; install {what}"
    )


def test_what_is_no_format() -> None:
    with pytest.raises(CoordinationError, match="this is not a ClusterRecord: Expected `int`"):
        ClusterRecord.from_json({"format": "new"})
