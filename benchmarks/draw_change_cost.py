"""Draw the manual's table of what a change costs: calls against leaves, by clusterer.

    python benchmarks/draw_change_cost.py

Reads the table in docs/concepts/clusterers.md, which ``raptor_change_cost.py`` measures, and writes
docs/images/change-cost.svg, so that the picture shows the figures of the page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from math import log10
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| ([\d,]+) \| (.+?) \| \d+ \| [\d,]+ \| ([\d.]+) \| ([\d.]+) \| [\d.]+ \|")
COLOURS = ("#0b6e4f", "#b3452c", "#33658a", "#7a5195", "#8a7a1f", "#555555", "#c06c9b")
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 360, 60, 48

Point = tuple[int, float]


def read(page: str) -> dict[str, list[Point]]:
    """Return leaves and mean calls a change of each clusterer."""
    lines: defaultdict[str, list[Point]] = defaultdict(list)
    for line in page.splitlines():
        if found := ROW.match(line):
            leaves, name, calls_in, calls_out = found.groups()
            mean = (float(calls_in) + float(calls_out)) / 2
            lines[name.replace("`", "")].append((int(leaves.replace(",", "")), mean))
    return dict(lines)


def place(point: Point, highest: float) -> tuple[float, float]:
    """Return where a point is drawn; leaves are on a logarithmic scale from 800 to 12,000."""
    leaves, calls = point
    across = (log10(leaves) - log10(800)) / (log10(12_000) - log10(800))
    return LEFT + across * (WIDTH - LEFT - 150), (HEIGHT - BOTTOM) * (1 - calls / highest) + 10


def draw(lines: dict[str, list[Point]]) -> str:
    """Return the picture as SVG."""
    highest = 5 * (max(calls for line in lines.values() for _, calls in line) // 5 + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        "<title>Model calls for one document in or out, by number of leaves</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for calls in range(0, int(highest) + 1, 5):
        _, y = place((1000, calls), highest)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 150}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{calls}</text>')
    for leaves in (1000, 3000, 9000):
        x, y = place((leaves, 0), highest)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{leaves:,}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        spots = [place(point, highest) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        label = name.replace('"', "&quot;")
        y = 24 + 18 * number
        parts.append(f'<text x="{WIDTH - 140}" y="{y}" fill="{colour}">{label}</text>')
    middle = (WIDTH - 150 + LEFT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">leaves</text>')
    parts.append(f'<text x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})"')
    parts.append(' text-anchor="middle">calls a change, mean</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write the picture."""
    page = (DOCS / "concepts" / "clusterers.md").read_text(encoding="utf-8")
    (DOCS / "images" / "change-cost.svg").write_text(draw(read(page)), encoding="utf-8")


if __name__ == "__main__":
    main()
