# SPDX-License-Identifier: BSD-3-Clause
"""Draw docs/architecture.svg: the packages of simlib and their imports.

A line leads from a package down to one that it imports; lines that follow from others are omitted. tests/test_house.py
compares the picture with the imports in the code.
"""

import ast
from functools import cache
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
CODE = HERE.parent / "simlib"
TARGET = HERE / "architecture.svg"

WIDTH, ROW, BOX, HIGH, GAP = 760, 62, 108, 30, 24
"""Width of the picture, height of a row, width and height of a box, gap between boxes; pixels."""


def imported_parts(path: Path) -> set[str]:
    """Return the packages of simlib that a module imports, at the top or inside a function."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module == "simlib":
                parts |= {alias.name for alias in node.names}
            elif node.module.startswith("simlib."):
                parts.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            parts |= {a.name.split(".")[1] for a in node.names if a.name.startswith("simlib.")}
    return parts


def parts() -> dict[str, set[str]]:
    """Return the packages in simlib/, each with the packages that its modules import."""
    names = {path.name for path in CODE.iterdir() if (path / "__init__.py").is_file()}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for name in names:
        for path in (CODE / name).rglob("*.py"):
            graph[name] |= imported_parts(path) & names - {name}
    return graph


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Remove imports that follow from others (transitive reduction)."""

    @cache
    def below(name: str) -> frozenset[str]:
        return frozenset(graph[name]).union(*(below(other) for other in graph[name]))

    return {name: {o for o in below_ if not any(o in below(p) for p in below_)} for name, below_ in graph.items()}


def rows(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return the row of each package from the top: one below all packages that import it."""

    @cache
    def row(name: str) -> int:
        return 1 + max((row(user) for user, below in graph.items() if name in below), default=-1)

    return {name: row(name) for name in sorted(graph)}


def placed(graph: dict[str, set[str]]) -> tuple[dict[str, float], dict[tuple[str, str], list[float]]]:
    """Place boxes and lines.

    In each row, the boxes and the lines that pass between them are sorted by the positions of the lines from above.

    Returns: x of each box, and x of each line in every row from its upper end to its lower end.
    """
    row = rows(graph)
    middle: dict[str, float] = {}
    lines: dict[tuple[str, str], list[float]] = {}
    for level in range(max(row.values()) + 1):
        wanted: dict[str | tuple[str, str], float] = {}
        for name in (name for name in row if row[name] == level):
            above = [x[-1] for (_, lower), x in lines.items() if lower == name]
            wanted[name] = sum(above) / len(above) if above else WIDTH / 2
        wanted |= {line: x[-1] for line, x in lines.items() if row[line[1]] > level}
        widths = {item: BOX + GAP if isinstance(item, str) else GAP for item in wanted}
        x = (WIDTH - sum(widths.values())) / 2
        for item in sorted(wanted, key=lambda item: (wanted[item], str(item))):
            here, x = x + widths[item] / 2, x + widths[item]
            if isinstance(item, str):
                middle[item] = here
                for line in (line for line in lines if line[1] == item):
                    lines[line].append(here)
                lines |= {(item, lower): [here] for lower in sorted(graph[item])}
            else:
                lines[item].append(here)
    return middle, lines


def drawing() -> str:
    """Draw the picture as SVG."""
    graph = reduced(parts())
    row = rows(graph)
    middle, lines = placed(graph)
    height = ROW * (1 + max(row.values()))

    def path(upper: str, xs: list[float]) -> str:
        top = ROW * (row[upper] + 0.5) + HIGH / 2
        text = f"M{xs[0]:.0f} {top:.0f}"
        for step, (before, after) in enumerate(pairwise(xs)):
            above, below = top + step * ROW, top + (step + 1) * ROW - HIGH
            half = (above + below) / 2
            text += f" C{before:.0f} {half:.0f} {after:.0f} {half:.0f} {after:.0f} {below:.0f}"
            text += f" v{HIGH}" if step < len(xs) - 2 else ""
        return f'<path d="{text}"/>'

    def box(name: str) -> str:
        x, y = middle[name], ROW * (row[name] + 0.5)
        return (
            f'<rect x="{x - BOX / 2:.0f}" y="{y - HIGH / 2:.0f}" width="{BOX}" height="{HIGH}" rx="5"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}">{name}</text>'
        )

    style = (
        "path{fill:none;stroke:#8a8f98}rect{fill:#eef2f7;stroke:#4a5568}"
        "text{font:14px sans-serif;text-anchor:middle;fill:#1a202c}"
    )
    return "\n".join([
        "<!-- SPDX-License-Identifier: BSD-3-Clause -->",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The packages of simlib: lines lead from each package down to the packages that it imports</title>",
        f"<style>{style}</style>",
        *(path(upper, xs) for (upper, _), xs in lines.items()),
        *(box(name) for name in middle),
        "</svg>", "",
    ])  # fmt: skip


if __name__ == "__main__":
    TARGET.write_text(drawing(), encoding="utf-8")
    print(TARGET)
