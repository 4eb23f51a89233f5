"""Arrays in memory and in .npy files."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edl.data
from edl.data import Skipped
from edl.errors import DataError, UsageError

X = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
Y = np.arange(10, dtype=np.int64) * 10


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(name: str, array: Any, **options: Any) -> str:
    np.save(name, array, **options)
    return name


def same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) and one.dtype == other.dtype


def sources() -> dict[str, edl.data.Dataset[Any]]:
    saved("x.npy", X)
    saved("y.npy", Y)
    return {"arrays": edl.data.arrays(x=X, y=Y), "npy": edl.data.npy(x="x.npy", y="y.npy")}


@pytest.mark.parametrize("kind", ["arrays", "npy"])
def test_records(kind: str) -> None:
    source = sources()[kind]
    wanted = [3, 4, 5, 9, 0, 3, -1]
    for copy in (source, pickle.loads(pickle.dumps(source))):
        assert len(copy) == 10
        records = copy.__getitems__(wanted)
        for index, record in zip(wanted, records, strict=True):
            assert list(record) == ["x", "y"]
            assert same(record["x"], X[index])
            assert same(record["y"], Y[index])
    record = source[2]["x"]
    record += 1.0  # a copy, which may be written to
    assert same(source[2]["x"], X[2])


def test_without_names_a_record_is_a_tuple_or_the_row() -> None:
    sources()
    for source in (edl.data.arrays(X, Y), edl.data.npy("x.npy", "y.npy")):
        x, y = source[7]
        assert same(x, X[7])
        assert same(y, Y[7])
    for source in (edl.data.arrays(X), edl.data.npy("x.npy")):
        assert same(source[7], X[7])
    assert edl.data.npy("y.npy", parse=lambda y: int(y) + 1)[7] == 71


def test_npz_files_are_loaded_by_the_script() -> None:
    np.savez("a.npz", x=X, y=Y)
    with pytest.raises(AttributeError, match=r"edl\.data\.arrays\(\*\*numpy\.load\("):
        edl.data.npz  # noqa: B018
    source = edl.data.arrays(**np.load("a.npz"))
    assert same(source[3]["x"], X[3])


def test_files_follow_one_another() -> None:
    for n, (start, stop) in enumerate([(0, 4), (4, 4), (4, 10)]):
        saved(f"x-{n}.npy", X[start:stop])
        saved(f"y-{n}.npy", Y[start:stop])
    source = edl.data.npy(x="x-*.npy", y="y-*.npy")
    assert len(source) == 10
    for index, record in zip([9, 0, 4, 3], source.__getitems__([9, 0, 4, 3]), strict=True):
        assert same(record["x"], X[index])
        assert same(record["y"], Y[index])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5, dtype=">i4"),
        np.array(["a", "łódź"]),
        np.zeros(3, dtype=[("a", "<f4"), ("é", ">i2", (2,))]),
        np.zeros((4, 0), np.int8),
        np.asfortranarray(np.arange(5)),
    ],
    ids=["big endian", "text", "structured", "no bytes", "1-d"],
)
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0:UserWarning")
def test_types(array: Any) -> None:
    saved("a.npy", array)
    source = edl.data.npy("a.npy")
    for index in range(len(array)):
        assert np.array_equal(source[index], array[index])
        assert np.asarray(source[index]).dtype.isnative


WRONG = {
    "object": (np.array([{}], dtype=object), r"holds Python objects \(object\)"),
    "0-d": (np.array(3), r"is a single value \(0-d\) and has no records"),
    "fortran": (np.asfortranarray(X), "is stored in Fortran's order.*ascontiguousarray"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("policy", ["error", "skip"])
def test_arrays_without_records_get_a_sentence(name: str, policy: Any) -> None:
    array, sentence = WRONG[name]
    saved("a.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match=f"a.npy {sentence}"):
        edl.data.npy("a.npy", on_error=policy)
    if name != "fortran":
        with pytest.raises(DataError, match=sentence):
            edl.data.arrays(array)


@dataclass(frozen=True)
class Tensor:
    error: Exception

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.error


def test_wrong_use_gets_a_sentence() -> None:
    saved("x.npy", X)
    saved("y.npy", Y[:9])
    with pytest.raises(UsageError, match="given 0 without and 0 with a name"):
        edl.data.arrays()
    with pytest.raises(UsageError, match=r"edl.data.npy takes arrays with names .* or without"):
        edl.data.npy("x.npy", y="y.npy")
    with pytest.raises(DataError, match=r"x.npy has 10, .*y.npy has 9"):
        edl.data.npy("x.npy", "y.npy")
    with pytest.raises(DataError, match="array 'x' has 10, array 'y' has 9"):
        edl.data.arrays(x=X, y=Y[:9])
    with pytest.raises(DataError, match="array 0 has 10, array 1 has 9"):
        edl.data.arrays(X, Y[:9])
    with pytest.raises(DataError, match="given something that is no array"):
        edl.data.arrays([[1], [1, 2]])
    for error in (RuntimeError, TypeError):  # as of a tensor with gradients, or of bfloat16
        with pytest.raises(DataError, match="no array: it is a tensor"):
            edl.data.arrays(Tensor(error("it is a tensor")))
    with pytest.raises(DataError, match=r"there are 2 like .*x.npy, 1 like .*y.npy"):
        edl.data.npy(["x.npy", saved("x2.npy", X)], "y.npy")
    with pytest.raises(UsageError, match="on_error is 'no'"):
        edl.data.npy("x.npy", on_error="no")  # type: ignore[arg-type]
    saved("z.npy", X.astype(np.float64))
    with pytest.raises(DataError, match=r"z.npy has rows of type <f8 and shape \(2, 3\), but .*x"):
        edl.data.npy(["x.npy", "z.npy"])


# --- damage ---

ROW = 2 * 3 * 4  # bytes
HEADER = 128


def cut(name: str, size: int) -> None:
    content = Path(name).read_bytes()
    Path(name).write_bytes(content[:size])


def test_a_cut_file_is_an_error() -> None:
    cut(saved("x.npy", X), HEADER + 7 * ROW + 1)
    with pytest.raises(DataError, match=r"x.npy is cut: .* 7 of 10 rows; row 7 begins at byte 296"):
        edl.data.npy("x.npy")


def test_rows_that_are_missing_are_left_out_in_all_columns(folder: Path) -> None:
    saved("x-0.npy", X)
    saved("x-1.npy", X)
    cut("x-0.npy", HEADER + 7 * ROW + 1)
    saved("y-0.npy", Y)
    saved("y-1.npy", Y)
    source = edl.data.npy(x="x-*.npy", y="y-*.npy", on_error="skip")
    assert [int(record["y"]) for record in source] == [*Y[:7], *Y]
    assert same(source[6]["x"], X[6])
    assert same(source[7]["x"], X[0])
    assert source.skipped == (
        (str(folder / "x-0.npy"), Skipped(296, 1, "the file ends after 7 of 10 rows")),
        (str(folder / "y-0.npy"), Skipped(184, 24, "3 rows are missing in a column beside it")),
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"\x93NUM", b"PK\x03\x04 a zip file", b"\x93NUMPY\x01\x00\x76\x00{'descr': __import__}"],
)
def test_a_damaged_header(folder: Path, content: bytes) -> None:
    saved("b.npy", Y)
    Path("a.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"a.npy is not readable at byte 0: it"):
        edl.data.npy(["a.npy", "b.npy"])
    source = edl.data.npy(["a.npy", "b.npy"], on_error="skip")
    assert list(source) == list(Y)
    ((path, skipped),) = source.skipped
    assert (path, skipped.offset, skipped.bytes) == (str(folder / "a.npy"), 0, len(content))


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ("(-1,)", "its header is damaged"),
        ("(3, 'a')", "its header is damaged"),
        ("7", "its header is damaged"),
        ("(1.5", "its header is damaged"),
        ("(1e999,)", "its header is damaged"),
        ("-" * 60_000 + "1", "its header is damaged"),
        ("(1, 4294967296, 4294967296)", "a.npy is cut: the file ends after 0 of 1 rows"),
    ],
)
def test_a_header_with_an_impossible_shape(shape: str, sentence: str) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    Path("a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(DataError, match=sentence):
        edl.data.npy("a.npy")


def test_nothing_is_unpickled(folder: Path) -> None:
    """Not even where a header hides it: objects would run code that the file brings."""

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (folder / "exploded",)

    bomb = np.array([Bomb()], dtype=object)
    np.save("a.npy", bomb, allow_pickle=True)
    with pytest.raises(DataError, match="would have to be unpickled"):
        edl.data.npy("a.npy")
    assert not (folder / "exploded").exists()
