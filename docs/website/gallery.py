# SPDX-License-Identifier: BSD-3-Clause
"""Gallery page: each notebook with its question, and a link to the executed notebook if there is one."""

from __future__ import annotations

import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = (ROOT / "build" / "report", ROOT / "build" / "notebooks")
"""Folders in which `make reproduce` and `make notebooks` write NAME.html for NAME.ipynb."""


def notebooks() -> dict[str, tuple[str, str]]:
    """Return title and first cell's text of each notebook by name, except for notebooks that do not begin with text."""
    texts = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cells and cells[0]["cell_type"] == "markdown":
            title, _, text = "".join(cells[0]["source"]).partition("\n")
            text = text.replace("SPDX-License-Identifier: BSD-3-Clause", "").strip()
            texts[path.stem] = (title.removeprefix("# "), text)
    return texts


def as_it_ran(name: str, out: Path) -> str:
    """Link from the site to the executed notebook, or the command that executes it."""
    for page in (run / f"{name}.html" for run in RUNS):
        if page.is_file():
            return f'<a href="{Path(os.path.relpath(page, out)).as_posix()}">As it ran</a>'
    return f"`make notebooks ONLY={name[:2]}` runs it"


def page(out: Path) -> str:
    """Write the page as Markdown with links relative to `notebooks/`."""
    parts = [
        "<!-- SPDX-License-Identifier: BSD-3-Clause -->",
        "# Gallery",
        "`simlib explore --lab` opens the notebooks in JupyterLab. Figures are functions of "
        "[simlib.figures](../simlib/figures/__init__.py).",
    ]
    for name, (title, text) in notebooks().items():
        parts += [f"## {name}", f"**{title}** ({as_it_ran(name, out)})", text]
    return "\n\n".join(parts) + "\n"
