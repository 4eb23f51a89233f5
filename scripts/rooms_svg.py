"""Draw docs/figures/rooms.svg: how deep in the imports the files of each room of edl/ stand."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EDL = ROOT / "edl"
SVG = ROOT / "docs" / "figures" / "rooms.svg"

LEFT, TOP, ROW, STEP = 130, 56, 22, 25  # in pixels: names, heading, a room, one import further up
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"
     height="{height}" role="img" aria-labelledby="title" font-family="sans-serif">
  <title id="title">The rooms of edl by the longest chain of imports below each file</title>
  <style>
    .card {{ fill: #ffffff; stroke: #d0d7de; }} text {{ fill: #1f2328; font-size: 13px; }}
    .soft {{ fill: #59636e; font-size: 12px; }} .bar {{ stroke: #d0d7de; stroke-width: 2; }}
    circle {{ fill: #54a368; }}
    @media (prefers-color-scheme: dark) {{
      .card {{ fill: #0d1117; stroke: #3d444d; }} text {{ fill: #f0f6fc; }}
      .soft {{ fill: #9198a1; }} .bar {{ stroke: #3d444d; }}
    }}
  </style>
  <rect class="card" x="0.5" y="0.5" width="{right}" height="{bottom}" rx="8"/>
  <text class="soft" x="{left}" y="24">imports point to the left; larger: more files</text>"""


def imports(files: dict[str, Path]) -> dict[str, set[str]]:
    """Return which files of edl each one imports, by dotted names."""
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        found: list[str] = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found += (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found += (f"{node.module}.{alias.name}" for alias in node.names)
        # of `from edl.http import client` the file, of `from edl.text import names` the module
        graph[name] = {one if one in files else one.rpartition(".")[0] for one in found}
        graph[name] &= files.keys() - {name}
    return graph


def rooms() -> dict[str, Counter[int]]:
    """Return how many files each room has by their depth: the files of their longest chain down."""
    files = {}
    for path in sorted(EDL.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph, depth = imports(files), {}
    for name in TopologicalSorter(graph).static_order():
        depth[name] = 1 + max((depth[below] for below in graph[name]), default=0)
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for name, path in files.items():
        room = path.relative_to(EDL).parts[0] if path.parent != EDL else "edl/*.py"
        found[room][depth[name]] += 1
    return found


def drawing() -> str:
    """Return the figure: a row a room, those that import most at the top."""
    found = rooms()
    order = sorted(found, key=lambda room: (max(found[room]), room), reverse=True)
    width = LEFT + STEP * (max(max(depths) for depths in found.values()) + 1)
    height = TOP + ROW * len(order)
    lines = [HEAD.format(width=width, height=height, right=width - 1, bottom=height - 1, left=LEFT)]
    for y, room in ((TOP + ROW * at, room) for at, room in enumerate(order)):
        first, last = (LEFT + STEP * depth for depth in (min(found[room]), max(found[room])))
        lines.append(f'  <text x="16" y="{y + 4}">{room}</text>')
        lines.append(f'  <path class="bar" d="M{first} {y}H{last}"/>')
        lines += (
            f'  <circle cx="{LEFT + STEP * depth}" cy="{y}" r="{2.5 + 1.5 * count**0.5:.1f}"/>'
            for depth, count in sorted(found[room].items())
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    SVG.write_text(drawing(), encoding="utf-8")
