# SPDX-License-Identifier: BSD-3-Clause
"""The gallery: each notebook with its question, and a link to it as it ran, where it was run."""

from __future__ import annotations

import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = (ROOT / "build" / "report", ROOT / "build" / "notebooks")
"""Where `make reproduce` and `make notebooks` write NAME.html for NAME.ipynb."""


def notebooks() -> dict[str, tuple[str, str]]:
    """Notebook to its title and the text below it, up to the first line of code; without those that have no text."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cells and cells[0]["cell_type"] == "markdown":
            title, _, text = "".join(cells[0]["source"]).partition("\n")
            text = text.replace("SPDX-License-Identifier: BSD-3-Clause", "").strip()
            found[path.stem] = (title.removeprefix("# "), text)
    return found


def as_it_ran(name: str, out: Path) -> str:
    """A link from the site to the notebook as it ran, or how to have it."""
    for page in (run / f"{name}.html" for run in RUNS):
        if page.is_file():
            return f'<a href="{Path(os.path.relpath(page, out)).as_posix()}">As it ran</a>'
    return f"`make notebooks ONLY={name[:2]}` runs it"


def page(out: Path) -> str:
    """The page, as Markdown with links relative to `notebooks/`."""
    found = notebooks()
    parts = [
        "<!-- SPDX-License-Identifier: BSD-3-Clause -->",
        "# Gallery",
        "`simlib explore --lab` opens the notebooks to run and change; every figure is a function of "
        "[simlib.figures](../simlib/figures/__init__.py).",
    ]
    for name, (title, text) in found.items():
        parts += [f"## {name}", f"**{title}** ({as_it_ran(name, out)})", text]
    return "\n\n".join(parts) + "\n"
