"""Whatever a manifest's file holds, it is a manifest or one sentence with file and line."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from edl.cluster.manifest import JobManifest, decoded_manifest, parse_manifest
from edl.errors import ManifestError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "manifest.md"
LONG = PAGE.read_text(encoding="utf-8").partition("in long\n\n```yaml\n")[2].partition("```")[0]
SIGNS = [*":\n\t -[]{}'\"#&*!|>?%@`\\~,\0\x85\u2028é", "- ", "---", "null", "1e999", "min", "<<"]

edits = st.lists(
    st.tuples(st.integers(0, len(LONG)), st.integers(0, 20), st.sampled_from(SIGNS)),
    min_size=1,
    max_size=4,
)


def parsed_or_refused(data: bytes) -> None:
    error = None
    try:
        manifest = parse_manifest(decoded_manifest(data, "job.yaml"), "job.yaml")
    except ManifestError as refused:
        error = refused
    if error is None:
        assert JobManifest.from_json(manifest.to_json()) == manifest
        return
    assert str(error).startswith(f"job.yaml:{error.line}: ")
    assert 1 <= error.line <= len(data.decode("utf-8", "replace").splitlines()) + 1
    assert "\n" not in str(error)
    assert len(str(error)) < 1000


@given(edits)
def test_an_edited_manifest(changes: list[tuple[int, int, str]]) -> None:
    text = LONG
    for start, length, sign in changes:
        text = text[:start] + sign + text[start + length :]
    parsed_or_refused(text.encode())


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    parsed_or_refused(data)


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    parsed_or_refused(text.encode("utf-8", "replace"))
