"""Draw the pictures of docs/scaling.md from its tables.

    python benchmarks/draw_scaling.py

Each is seconds or milliseconds of CPU against size, both on logarithmic scales, so that the
pictures show the figures of the page.
"""

from __future__ import annotations

import re
from math import ceil, floor, log10
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
COLOURS = ("#0b6e4f", "#b3452c", "#33658a", "#7a5195")
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM = 640, 320, 64, 190, 46

Lines = dict[str, list[tuple[float, float]]]


def read(page: str, heading: str) -> Lines:
    """Return the columns of the first table below a heading, against its first column."""
    section = page.split(f"## {heading}\n", 1)[1]
    rows = [line for line in section.split("\n## ", 1)[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    lines: Lines = {}
    for row in cells[2:]:
        if not re.fullmatch(r"[\d,]+", row[0]):
            break
        size = float(row[0].replace(",", ""))
        for name, cell in zip(cells[0][1:], row[1:], strict=True):
            if re.fullmatch(r"[\d,.]+", cell):
                lines.setdefault(name, []).append((size, float(cell.replace(",", ""))))
    return lines


def read_search(page: str) -> Lines:
    """Return ours and the fastest rival of each size for the 8 best, one question and 32 a call."""
    row = re.compile(r"^\| ([\d,]+) x 384, clustered \| (1|32) \| 8 \| (.+?) \|$", re.MULTILINE)
    lines: Lines = {}
    for size, questions, cells in row.findall(page):
        ours, *rivals, _scann, _ratio, _avx2, _ratio = cells.split(" | ")
        name = "one question" if questions == "1" else "32 questions"
        at = float(size.replace(",", ""))
        lines.setdefault(name, []).append((at, float(ours)))
        lines.setdefault(f"the fastest rival, {questions}", []).append(
            (at, min(float(rival) for rival in rivals))
        )
    return lines


def draw(title: str, lines: Lines) -> str:
    """Return a picture of lines on logarithmic scales as SVG."""
    points = [point for line in lines.values() for point in line]
    low_x, high_x = log10(min(x for x, _ in points)), log10(max(x for x, _ in points))
    low_y = floor(log10(min(y for _, y in points)))
    high_y = ceil(log10(max(y for _, y in points)))

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (log10(x) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        down = 12 + (high_y - log10(y)) / (high_y - low_y) * (HEIGHT - BOTTOM - 12)
        return across, down

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for power in range(low_y, high_y + 1):
        _, y = place(10**low_x, 10**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        label = f"{10.0**power:,.10g}"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for size in sorted({x for x, _ in points}):
        x, _ = place(size, 10**low_y)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 26}" text-anchor="middle">{size:,.0f}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        spots = [place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        at = 24 + 18 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{at}" fill="{colour}">{name}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{title}</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write the pictures."""
    page = (DOCS / "scaling.md").read_text(encoding="utf-8")
    database = read(page, "Indexes in a database")
    for lines, file, title in (
        (read_search(page), "scale-search.svg", "chunks; milliseconds of CPU a question"),
        (read(page, "Grouping"), "scale-grouping.svg", "documents; seconds of CPU, GB"),
        (dict(list(database.items())[:4]), "scale-database.svg", "chunks; seconds of CPU"),
    ):
        (DOCS / "images" / file).write_text(draw(title, lines), encoding="utf-8")


if __name__ == "__main__":
    main()
