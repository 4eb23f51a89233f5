"""Train, draw, and write the page."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.adapting import elastic, knee, layers, tuner
from benchmarks.adapting.problems import DATA, TASKS
from benchmarks.page import Section, markdown

TITLE, COMMAND = "Learning rates that adapt, on small trainings", "make figures"
FOLDER = Path(__file__).parents[1] / "results"
HOW = (
    "What edl's rules for learning rates do to accuracy, each beside what one would do without it. "
    "The networks are small (a hidden layer of 32 or 64), so whatever needs a large one to show, "
    "does not show here, and the text under each table says so: it is computed from the numbers. A "
    "difference is called one if the mean over the seeds, which are paired, is farther from 0 than "
    "Student's t at 95 % allows; of twenty that are none, one is called so by chance. All is "
    "trained in one process, in numpy, with virtual workers; schedules, scaling, noise scale, "
    "tuner and layer balance are those of `edl`, not copies. A training depends on its seed only, "
    f"and no seed was chosen. {DATA}"
)


class Figure(NamedTuple):
    """``measure`` trains with these seeds; ``draw`` and ``section`` show what it returns."""

    title: str
    measure: Callable[[Sequence[int]], Any]
    draw: Callable[[Any, Path], None]
    section: Callable[[Any, Sequence[int]], Section]


FIGURES = {
    "elastic": Figure(
        elastic.TITLE, lambda s: elastic.measure(TASKS, s), elastic.draw, elastic.section
    ),
    "knee": Figure(knee.TITLE, lambda s: knee.measure(TASKS, s), knee.draw, knee.section),
    "tuner": Figure(tuner.TITLE, lambda s: tuner.measure(TASKS, s), tuner.draw, tuner.section),
    "layers": Figure(layers.TITLE, layers.measure, layers.draw, layers.section),
}


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.adapting", description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="seeds of each training, 0 and on")
    parser.add_argument("--only", choices=FIGURES, help="leave the page's other sections")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the page")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error(f"--seeds is {args.seeds}; a spread needs 2 or more")
    seeds, page = range(args.seeds), args.out / "adapting.md"
    sections = dict(_sections(page)) if args.only else {}
    for name in [args.only] if args.only else FIGURES:
        began_s, figure = time.monotonic(), FIGURES[name]
        found = figure.measure(seeds)
        figure.draw(found, args.out)
        section = figure.section(found, seeds)
        sections[figure.title] = markdown("", "", "", [section]).partition("\n## ")[2]
        print(f"{name}: {time.monotonic() - began_s:.0f} s", flush=True)
    text = markdown(TITLE, COMMAND, HOW, [])
    there = [sections[each.title] for each in FIGURES.values() if each.title in sections]
    text += "".join(f"\n## {section}" for section in there)
    page.write_text(text, encoding="utf-8")
    print(f"{page} is written")


def _sections(page: Path) -> Iterator[tuple[str, str]]:
    """Those that a page has, by title."""
    if page.exists():
        for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            yield section.partition("\n")[0], section.rstrip("\n") + "\n"


if __name__ == "__main__":
    main()
