# SPDX-License-Identifier: BSD-3-Clause
"""Tests of ``make notebooks``: the pages' figures and links need no file outside the folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from simlib._lib.errors import InputError
from studies import notebook_pages

pytestmark = pytest.mark.study

BUILD = """
import sys
from pathlib import Path
from simlib._lib.errors import SimlibError
from studies import notebook_pages
root, out, *only = sys.argv[1:]
notebook_pages.ROOT = Path(root)
try:
    print(notebook_pages.build_pages(out, only))
except SimlibError as error:
    sys.exit(f"refused: {error}")
"""
# Run in a separate process: nbclient leaves sockets open, and warnings are errors here.

FIRST = """# First

![A picture](../docs/p.svg)

**Question.** Is <b> *shown* as text?

See [the page](../docs/a.md#some-words-2-of-them), [second](second.ipynb), [away](https://example.org),
[none](../docs/no.md)."""
PLOT = "import plotly.graph_objects as go\ngo.Figure(go.Scatter(y=[1, 3], name='</script>'))"
ANSWER = f"from IPython.display import Markdown\nMarkdown({notebook_pages.ANSWER + ' It is `so`.'!r})"
ATTRIBUTE = re.compile(r'(?<![-\w])(?:href|src)="([^"]+)"')


def build(root: Path, *only: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", BUILD, str(root), str(root / "out"), *only]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for name in ("notebooks", "docs", "simlib"):
        (root / name).mkdir()
    v4 = nbformat.v4
    first = v4.new_notebook(cells=[v4.new_markdown_cell(FIRST), v4.new_code_cell(PLOT), v4.new_code_cell(PLOT),
                                 v4.new_code_cell(ANSWER)])  # fmt: skip
    failing = v4.new_notebook(cells=[v4.new_markdown_cell("# Second"), v4.new_code_cell("undefined_name")])
    for name, notebook in (("first", first), ("second", failing), ("explorer", failing)):
        nbformat.write(notebook, root / "notebooks" / f"{name}.ipynb")
    (root / "docs" / "p.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    text = "# A\n\n## Some `words`: 2 of them\n\n[code](../simlib/m.py) [first](../notebooks/first.ipynb)"
    (root / "docs" / "a.md").write_text(text)
    (root / "simlib" / "m.py").write_text("x = 1")
    return root


@pytest.fixture(scope="module")
def out(root):
    done = build(root, "first")
    assert done.returncode == 0, done.stderr
    return root / "out"


def test_every_link_has_a_target_in_the_folder(out):
    pages = list(out.rglob("*.html"))
    assert {page.relative_to(out).as_posix() for page in pages} == {"index.html", "first.html", "docs/a.html"}
    for page in pages:
        for target in ATTRIBUTE.findall(page.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            if target in ("https://example.org", "second.html"):  # the second notebook was not requested
                continue
            file = (page.parent / name) if name else page
            assert file.is_file(), (page, target)
            assert not anchor or f'id="{anchor}"' in file.read_text(encoding="utf-8"), target
    assert (out / "simlib" / "m.py.txt").read_text() == "x = 1"


def test_figures_share_one_copy_of_plotly(out):
    page = (out / "first.html").read_text(encoding="utf-8")
    assert page.count("Plotly.newPlot(") == 2
    assert page.count("<script src=") == 1
    assert '<script src="plotly.min.js">' in page
    assert len(list(out.rglob("plotly*.js"))) == 1
    assert "</script>'" not in page  # the name of a trace cannot end a script
    assert sum(p.stat().st_size for p in out.rglob("*.html")) < 200_000
    assert "plotly.min.js" not in (out / "docs" / "a.html").read_text(encoding="utf-8")


def test_the_index_has_question_answer_and_picture(out):
    index = (out / "index.html").read_text(encoding="utf-8")
    assert "Is &lt;b&gt; *shown* as text?" in index
    assert "<strong>It is so.</strong>" in index
    assert 'src="docs/p.svg"' in index


def test_the_executed_notebook_is_written_with_its_outputs(out):
    executed = nbformat.read(out / "first.ipynb", as_version=4)
    assert [len(cell.outputs) for cell in executed.cells if cell.cell_type == "code"] == [1, 1, 1]


def test_the_error_names_the_failing_cell(root):
    done = build(root, "second")
    assert done.returncode == 1
    assert "refused: second.ipynb: NameError" in done.stderr
    assert "undefined_name" in done.stderr


def test_an_unknown_notebook_name_is_rejected(root, monkeypatch):
    monkeypatch.setattr(notebook_pages, "ROOT", root)
    with pytest.raises(InputError, match=r"seven.*must be part of a notebook's name"):
        notebook_pages.build_pages(root / "none", ["seven"])
    assert not (root / "none").exists()
