"""Check, before a long measurement or computation, that its figure can be drawn with matplotlib.

Matplotlib is an optional extra of edl. :func:`check_figure` makes the check.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from edl.errors import UsageError

FORMATS = (".png", ".svg")


def check_figure(path: Path, what: str = "--plot") -> None:
    """Check that a figure can be drawn, before anything is measured or computed for it."""
    if path.suffix not in FORMATS:
        raise UsageError(f"{what} {path}: the name must end with {' or '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{what} {path}: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise UsageError(f"{what} needs matplotlib: `pip install matplotlib`, or leave {what} out")
