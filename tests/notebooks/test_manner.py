# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the notebooks' form: each begins with a picture and its question, and ends with an answer."""

from __future__ import annotations

import ast
import re
from importlib import import_module

import nbformat
import pytest
from notebook_run import ROOT, code_cells

from studies import all_studies, notebook_pages

NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").glob("*.ipynb") if path.stem != "explorer")
STUDIES = {study.name: import_module(f"studies.{study.name}") for study in all_studies()}
ANSWERS = {"Answer", "published.answer"} | {f"{name}.STUDY.answer" for name in STUDIES} | {
    f"{name}.{function}" for name, package in STUDIES.items() for function, value in vars(package).items()
    if getattr(value, "__annotations__", {}).get("return") == "Answer"
}  # fmt: skip
"""Calls that return an `Answer`: the class, or a function of a study."""

LINK = re.compile(r"\]\(((?!https?:|#)[^)#]+)")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs_with_a_licence_and_cells_that_parse(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
        assert dict(cell.metadata) == {}
        ast.parse(cell.source)
    assert set(notebook.metadata) == {"kernelspec", "language_info", "license"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert path.stat().st_size < 40_000
    assert notebook.cells[0].cell_type == "markdown"
    assert "SPDX-License-Identifier: BSD-3-Clause" in notebook.cells[0].source.splitlines()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
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
    answer = ast.parse(last.source).body[-1]
    assert isinstance(answer, ast.Expr)
    assert isinstance(answer.value, ast.Call)
    assert ast.unparse(answer.value.func) in ANSWERS
    for cell in cells:
        if cell.cell_type == "markdown":
            for target in LINK.findall(cell.source):
                assert (path.parent / target).is_file(), target


def test_every_notebook_is_in_the_list_of_pages_and_in_the_tour():
    pages = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    tour = (ROOT / "notebooks" / "00-tour.ipynb").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        assert path.name in pages, path.name
        assert path.stem == "00-tour" or path.name in tour, path.name
