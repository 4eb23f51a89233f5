"""Where the scripts are that the tests run."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
DIGITS = ROOT / "examples" / "torch_digits.py"
