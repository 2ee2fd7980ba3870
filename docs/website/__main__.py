# SPDX-License-Identifier: BSD-3-Clause
"""Build the site: assemble its pages, run Sphinx, and check the result for broken links and external addresses."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from website import api, check, gallery, pages, provenance

ROOT = Path(__file__).resolve().parents[2]


def assemble(folder: Path, out: Path) -> None:
    """Write every page of the site into a folder, in the form that Sphinx reads."""
    texts = {}
    for name, path in pages.sources().items():
        text = path.read_text(encoding="utf-8")
        folder_of_page = path.parent.relative_to(ROOT).as_posix().removeprefix(".")
        texts[f"{name}.md"] = pages.with_navigation(text) if name == "index" else pages.rewritten(text, folder_of_page)
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
    """Build the site in the folder of `--out`.

    Returns: 0, or 1 if Sphinx warned or the check found a fault.
    """
    from sphinx.cmd.build import build_main  # noqa: PLC0415  # the tests use this package without Sphinx

    parser = argparse.ArgumentParser(prog="website", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="folder of the site")
    out = parser.parse_args().out.resolve()
    source, doctrees = ROOT / "build" / "docs-source", ROOT / "build" / "docs-doctrees"
    assemble(source, out)
    options = ["--builder", "html", "--fresh-env", "--fail-on-warning", "--quiet", "--conf-dir", str(ROOT / "docs")]
    shutil.rmtree(out, ignore_errors=True)
    if build_main([*options, "--doctree-dir", str(doctrees), str(source), str(out)]):
        return 1
    faults = check.faults(out)
    print(*faults, sep="\n", file=sys.stderr, end="\n" if faults else "")
    print(out / "index.html")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
