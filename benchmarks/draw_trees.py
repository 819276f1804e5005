"""Draw the manual's tables of trees: calls a change, and seconds and memory of a build, by leaves.

    python benchmarks/draw_trees.py

Reads the tables in docs/concepts/clusterers.md, which ``raptor_change_cost.py``,
``raptor_build.py --scale`` and ``tree_scale.py`` measure, and writes the pictures of that page to
docs/images, so that the pictures show the figures of the page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log10
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
CHANGE = re.compile(
    r"^\| ([\d,]+) \| (.+?) \| \d+ \| [\d,]+ \| ([\d.]+) \| ([\d.]+) \| [\d.]+ \|", re.MULTILINE
)
SCALE = re.compile(r"^\| ([\d,]+) \| ([\d.]+) \| (\d+) \| ([\d.]+) \| (\d+) \|$", re.MULTILINE)
WHOLE = re.compile(
    r"^\| `(.+?)` \| ([\d,]+) \| [\d,]+ \| \d+ \| ([\d.]+) \| ([\d.]+) \| ([\d,]+) \|$",
    re.MULTILINE,
)
COLOURS = ("#0b6e4f", "#b3452c", "#33658a", "#7a5195", "#8a7a1f", "#555555", "#c06c9b")
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM = 640, 360, 60, 150, 48

Lines = Mapping[str, list[tuple[int, float]]]


@dataclass(frozen=True)
class Picture:
    """What is drawn: lines by name, with the labels of both axes."""

    lines: Lines
    title: str
    upwards: str
    ticks: tuple[int, ...]
    step: int
    place: Callable[[int], float]
    """Where a number of leaves is drawn, from 0 at the left to 1 at the right."""

    @property
    def highest(self) -> int:
        """The value at the top."""
        return self.step * int(
            max(v for line in self.lines.values() for _, v in line) // self.step + 1
        )

    def at(self, leaves: int, value: float) -> tuple[float, float]:
        """Return where a point is drawn."""
        across = LEFT + self.place(leaves) * (WIDTH - LEFT - RIGHT)
        return across, (HEIGHT - BOTTOM) * (1 - value / self.highest) + 10

    def draw(self) -> str:
        """Return the picture as SVG."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
            ' font-family="sans-serif" font-size="12">',
            f"<title>{self.title}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            *self._axes(),
            *(part for each in enumerate(self.lines.items()) for part in self._line(*each)),
        ]
        middle = (WIDTH - RIGHT + LEFT) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">leaves</text>')
        parts.append(f'<text x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})"')
        parts.append(f' text-anchor="middle">{self.upwards}</text></svg>')
        return "\n".join(parts) + "\n"

    def _axes(self) -> Iterator[str]:
        for value in range(0, self.highest + 1, self.step):
            _, y = self.at(self.ticks[0], value)
            yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>'
        for leaves in self.ticks:
            x, y = self.at(leaves, 0)
            yield f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{leaves:,}</text>'

    def _line(self, number: int, named: tuple[str, list[tuple[int, float]]]) -> Iterator[str]:
        name, line = named
        colour = COLOURS[number % len(COLOURS)]
        spots = [self.at(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots)
        label = name.replace('"', "&quot;")
        y = 24 + 18 * number
        yield f'<text x="{WIDTH - RIGHT + 10}" y="{y}" fill="{colour}">{label}</text>'


def change_costs(page: str) -> Lines:
    """Return leaves and mean calls a change of each clusterer."""
    lines: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for leaves, name, calls_in, calls_out in CHANGE.findall(page):
        mean = (float(calls_in) + float(calls_out)) / 2
        lines[name.replace("`", "")].append((count(leaves), mean))
    return dict(lines)


def build_costs(page: str) -> tuple[Lines, Lines]:
    """Return leaves and CPU seconds, and leaves and peak memory, of each clusterer."""
    found = SCALE.findall(page)
    names = ('"stable"', '"fast"')
    seconds = {
        n: [(count(row[0]), float(row[1 + 2 * i])) for row in found] for i, n in enumerate(names)
    }
    memory = {
        n: [(count(row[0]), float(row[2 + 2 * i])) for row in found] for i, n in enumerate(names)
    }
    return seconds, memory


def whole_costs(page: str) -> Lines:
    """Return leaves and CPU seconds of whole builds, without and with the embedder's."""
    lines: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for name, leaves, own, embedding, _ in WHOLE.findall(page):
        lines[name].append((count(leaves), float(own)))
        lines[f"{name}, embedder too"].append((count(leaves), float(own) + float(embedding)))
    return dict(lines)


def count(text: str) -> int:
    """Read a number with commas."""
    return int(text.replace(",", ""))


def main() -> None:
    """Write the pictures."""
    page = (DOCS / "concepts" / "clusterers.md").read_text(encoding="utf-8")
    seconds, memory = build_costs(page)
    sizes = (10_000, 50_000, 100_000)
    pictures = {
        "change-cost": Picture(
            change_costs(page),
            "Model calls for one document in or out, by number of leaves",
            "calls a change, mean",
            (1000, 3000, 9000),
            5,
            lambda leaves: log10(leaves / 800) / log10(12_000 / 800),
        ),
        "tree-seconds": Picture(
            seconds,
            "CPU seconds of clustering a whole tree, by number of leaves",
            "CPU seconds",
            sizes,
            2,
            lambda leaves: leaves / 105_000,
        ),
        "tree-whole": Picture(
            whole_costs(page),
            "CPU seconds from documents to a whole tree, by number of leaves",
            "CPU seconds",
            sizes,
            20,
            lambda leaves: leaves / 105_000,
        ),
        "tree-memory": Picture(
            memory,
            "Peak memory of clustering a whole tree, by number of leaves",
            "peak memory, MiB",
            sizes,
            200,
            lambda leaves: leaves / 105_000,
        ),
    }
    for name, picture in pictures.items():
        (DOCS / "images" / f"{name}.svg").write_text(picture.draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
