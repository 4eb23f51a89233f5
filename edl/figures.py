"""What can be drawn, with matplotlib, an optional extra."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from edl.errors import UsageError

FORMATS = (".png", ".svg")


def check_figure(path: Path, what: str = "--plot") -> None:
    """Refuse a figure that cannot be drawn, before anything is measured or computed for it.

    Args:
        what: asks for it, for messages.

    Raises:
        UsageError: the format is another one, its folder does not exist, or there is no matplotlib.
    """
    if path.suffix not in FORMATS:
        raise UsageError(f"{what} {path}: the name must end with {' or '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{what} {path}: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise UsageError(f"{what} needs matplotlib: `pip install matplotlib`, or leave {what} out")
