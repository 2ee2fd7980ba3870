# SPDX-License-Identifier: BSD-3-Clause
"""Every notebook opens with a picture and its question, and closes with a generated answer."""

from __future__ import annotations

import ast
import re

import nbformat
import pytest
from notebook_run import ROOT, code_cells

from studies import conclusions, every, notebook_pages, published

BOOKS = sorted(path for path in (ROOT / "notebooks").glob("*.ipynb") if path.stem != "explorer")
ANSWERS = {f"{study.name}.STUDY.answer" for study in every()} | {"migrations.standstill"}
ANSWERS |= {f"{home.__name__.split('.')[-1]}.{name}" for home in
           (conclusions, published) for name in vars(home)}  # fmt: skip
LINK = re.compile(r"\]\(((?!https?:|#)[^)#]+)")


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_kept_without_outputs_with_its_licence_and_cells_that_parse(path):
    kept = nbformat.read(path, as_version=4)
    nbformat.validate(kept)
    for cell in code_cells(kept):
        assert cell.outputs == []
        assert cell.execution_count is None
        assert dict(cell.metadata) == {}
        ast.parse(cell.source)
    assert set(kept.metadata) == {"kernelspec", "language_info", "license"}
    assert kept.metadata.kernelspec.name == "python3"
    assert path.stat().st_size < 40_000
    assert kept.cells[0].cell_type == "markdown"
    assert "SPDX-License-Identifier: BSD-3-Clause" in kept.cells[0].source.splitlines()


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_question_picture_links_and_answer(path):
    cells = nbformat.read(path, as_version=4).cells
    first, last = cells[0].source, cells[-1]
    questions = [part for part in first.split("\n\n") if part.startswith(notebook_pages.QUESTION)]
    assert len(questions) == 1
    assert "?" in questions[0]
    picture = re.search(r"!\[(.+)\]\((\.\./docs/[a-z0-9-]+\.svg)\)", first)
    assert picture
    assert (path.parent / picture[2]).stat().st_size < 150_000
    assert last.cell_type == "code"
    answer = re.search(r"^([\w.]+)\(", last.source, re.MULTILINE)
    assert answer
    assert answer[1] in ANSWERS
    for cell in cells:
        if cell.cell_type == "markdown":
            for target in LINK.findall(cell.source):
                assert (path.parent / target).is_file(), target


def test_every_notebook_is_in_the_list_of_pages_and_in_the_tour():
    pages = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    tour = (ROOT / "notebooks" / "00-tour.ipynb").read_text(encoding="utf-8")
    for path in BOOKS:
        assert path.name in pages, path.name
        assert path.stem == "00-tour" or path.name in tour, path.name
