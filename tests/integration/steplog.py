"""What the scripts `torch_api.py` and `tf_api.py` write down of each step and of their end."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Lines = list[dict[str, Any]]


def read_steps(out: Path) -> tuple[dict[int, Lines], Lines]:
    """Return the lines of each step by all workers, and the last lines of those that finished."""
    steps: dict[int, Lines] = defaultdict(list)
    finals = []
    for file in sorted(out.glob("*.jsonl")):
        for line in map(json.loads, file.read_text().splitlines()):
            if "final" in line:
                finals.append(line)
            else:
                steps[line["step"]].append(line)
    return steps, finals
