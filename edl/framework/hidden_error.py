"""Raise an error of edl again that a framework has replaced by one of its own: :func:`unhiding`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edl.errors import EdlError

_hidden: EdlError | None = None


def hide(error: EdlError) -> None:
    """Remember `error`, the last of all threads, which a framework may replace by its own."""
    global _hidden
    _hidden = error


@contextmanager
def unhiding() -> Iterator[None]:
    """Raise the error that `hide` has remembered, in place of a framework's error for it."""
    try:
        yield
    except Exception as error:
        if (hidden := hidden_in(error)) is None:
            raise
        raise hidden from error


def hidden_in(error: BaseException) -> EdlError | None:
    """Return the error of edl that a framework has replaced by `error`; None if it has not."""
    stands = _hidden is not None and not isinstance(error, EdlError) and str(_hidden) in str(error)
    return _hidden if stands else None
