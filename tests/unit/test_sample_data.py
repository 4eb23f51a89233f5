"""The sample data is what data/README.md says, and the example's loader insists on it."""

from __future__ import annotations

import hashlib
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
LOADER = runpy.run_path(str(ROOT / "examples" / "digits_data.py"))


def test_the_digits_are_those_of_the_readme() -> None:
    text = (ROOT / "data" / "README.md").read_text()
    packed = (ROOT / "data" / "digits.csv.gz").read_bytes()
    assert f"`{hashlib.sha256(packed).hexdigest()}`" in text
    assert f"{len(packed):,}" in text


def test_the_digits_have_their_shape_and_range() -> None:
    images, labels = LOADER["load"]()
    assert images.shape == (1797, 8, 8)
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"something else", r"is not the file that data/README.md describes .*; restore it"),
        (None, r"cannot read the digits: .*No such file.*; restore data/"),
    ],
)
def test_other_digits_are_refused_in_a_sentence(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    path = tmp_path / "digits.csv.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match=sentence):
        LOADER["load"](path)
