# SPDX-License-Identifier: BSD-3-Clause
"""Build the site: put its pages together, let Sphinx make HTML of them, check that nothing is missing or fetched."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from website import api, check, gallery, pages, provenance

ROOT = Path(__file__).resolve().parents[2]


def assemble(folder: Path, out: Path) -> None:
    """Write every page of the site into a folder, as Sphinx reads them."""
    texts = {}
    for name, path in pages.sources().items():
        text = path.read_text(encoding="utf-8")
        where = path.parent.relative_to(ROOT).as_posix().removeprefix(".")
        texts[f"{name}.md"] = pages.with_navigation(text) if name == "index" else pages.rewritten(text, where)
    texts["provenance.md"] = provenance.page()
    texts["gallery.md"] = pages.rewritten(gallery.page(out), "notebooks")
    texts |= api.files()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "api").mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for picture in (ROOT / "docs").glob("*.svg"):
        shutil.copy(picture, folder)


def main() -> int:
    """Build the site where the command line says. Returns 0, or 1 if Sphinx warned or the check found something."""
    from sphinx.cmd.build import build_main  # noqa: PLC0415  # the tests use this package without Sphinx

    parser = argparse.ArgumentParser(prog="website", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="where the site goes")
    out = parser.parse_args().out.resolve()
    source, known = ROOT / "build" / "docs-source", ROOT / "build" / "docs-doctrees"
    assemble(source, out)
    options = ["--builder", "html", "--fresh-env", "--fail-on-warning", "--quiet", "--conf-dir", str(ROOT / "docs")]
    shutil.rmtree(out, ignore_errors=True)
    if build_main([*options, "--doctree-dir", str(known), str(source), str(out)]):
        return 1
    found = check.faults(out)
    print(*found, sep="\n", file=sys.stderr, end="\n" if found else "")
    print(out / "index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
