# SPDX-License-Identifier: BSD-3-Clause
"""The documentation site before Sphinx reads it: navigation, links, anchors, pages made from data; the last check."""

from __future__ import annotations

import ast
import pydoc
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from website import api, gallery, pages, provenance
from website.blocks import kind_of, parts_of
from website.check import faults

import simlib
from simlib import measurements

ROOT = pages.ROOT
SOURCES = pages.sources()
CONFIGURATION = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """Anchors of headings, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, str]:
    """Every page as Sphinx gets it."""
    texts = {}
    for name, path in SOURCES.items():
        folder = path.parent.relative_to(ROOT).as_posix().removeprefix(".")
        texts[f"{name}.md"] = pages.rewritten(path.read_text(encoding="utf-8"), folder)
    texts["provenance.md"] = provenance.page()
    texts["gallery.md"] = pages.rewritten(gallery.page(tmp_path_factory.mktemp("site")), "notebooks")
    return texts | api.files()


def test_navigation_lists_every_page_once(made):
    navigation = pages.navigation(SOURCES["index"].read_text(encoding="utf-8"))
    targets = [pages.site_target(f"docs/{link}" if "/" not in link else link.removeprefix("../").rstrip("/"))
               for entries in navigation.values() for _, link in entries]  # fmt: skip
    assert len(targets) == len(set(targets))
    assert set(targets) == {name for name in made if "/" not in name} - {"index.md"} | {"api/index.rst"}
    front = pages.with_navigation(SOURCES["index"].read_text(encoding="utf-8"))
    assert front.count("{toctree}") == len(navigation) > 4
    assert "\nsimlib on one screen <tour>\n" in front


def test_every_link_leads_to_a_page_and_an_anchor(made):
    links = 0
    for name, text in made.items():
        if name.endswith(".rst"):
            continue
        for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
            page, _, anchor = target.partition("#")
            page = page or name
            assert page in made or (ROOT / "docs" / page).is_file(), f"{name}: {target}"
            if anchor:
                assert anchor in anchors(made[page]), f"{name}: {target}"
            links += 1
    assert links > 150


def test_python_files_that_pages_name_exist():
    """A page may leave out the first folders of a path: `reference/locks.py`."""
    folders = ("simlib", "studies", "tests", "checks", "benchmarks", "docs")
    files = [path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    planned = {"studies/enable/__init__.py", "tests/studies/test_enable.py"}  # what docs/write-a-study.md adds
    for name, path in SOURCES.items():
        for place in re.findall(r"`([\w./-]+/[\w.-]+\.py)`", path.read_text(encoding="utf-8")):
            assert place in planned or any(f"/{file}".endswith(f"/{place}") for file in files), f"{name}: {place}"


@pytest.mark.parametrize("link", ["model.txt", "../simlib/no_such.py", "../pyproject.toml", "../data"])
def test_a_link_without_a_page_is_refused(link):
    with pytest.raises(ValueError, match=r"correct the link|has no page on the site"):
        pages.rewritten(f"[x]({link})", "docs")


def test_provenance_has_every_table_and_its_source(made):
    page = made["provenance.md"]
    names = [path.stem for path in (ROOT / "data" / "published").glob("*.csv")]
    assert len(names) > 40
    for name in names:
        table = measurements.load(name)
        part = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert provenance.escaped(table.source["author"]) in part
        assert provenance.escaped(table.source["subject"]) in part
        assert all(f"`{column}`" in part for column in table.frame.columns)
        for key, value in table.source.items():
            assert value in provenance.NOT_STATED or value in part or provenance.escaped(value) in part, (name, key)
        assert all(provenance.escaped(caveat) in part for caveat in table.caveats)
    assert "`studies/teardown/mail.py`" in page.partition("\n### arm64-teardown-64gb\n")[2].partition("###")[0]
    assert "`data/fits/ampere-altra.json`" in page.partition("\n### arm64-dirty-memory-time\n")[2].partition("###")[0]
    for table in provenance.descriptors("collected"):
        assert f"| `{table['name']}` |" in page


def test_the_api_has_every_module(made):
    assert {
        "api/simlib.model.program.rst",
        "api/simlib.simulator.engine.compiled.rst",
        "api/simlib.analysis.predict.rst",
    } <= set(made)
    for name in api.modules()[1:]:
        assert f".. automodule:: {name}\n" in made[f"api/{name}.rst"]
        if name.count(".") > 1:
            assert f":py:mod:`{name}`" in made[f"api/{name.rpartition('.')[0]}.rst"]
    offered = dict(re.findall(r":py:(?:obj|mod):`(\w+) <(simlib[\w.]*)>`", made["api/index.rst"]))
    assert sorted([*offered, "__version__"]) == sorted(simlib.__all__)
    for name, home in offered.items():
        assert pydoc.locate(home) is getattr(simlib, name)


def test_the_gallery_links_to_what_ran(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "RUNS", (tmp_path / "report", tmp_path / "notebooks"))
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "08-teardown.html").write_text("x", encoding="utf-8")
    page = gallery.page(tmp_path / "docs")
    assert page.count('<a href="../notebooks/08-teardown.html">As it ran</a>') == page.count("<a ") == 1
    assert page.count("`make notebooks ONLY=") == len(gallery.notebooks()) - 1 > 5


def test_extensions_and_theme_are_in_the_pins():
    names = {node.targets[0].id: node.value for node in ast.parse(CONFIGURATION).body
             if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}  # fmt: skip
    needed = {name.partition(".")[0] for name in ast.literal_eval(names["extensions"])}
    needed |= {ast.literal_eval(names["html_theme"])}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {canonicalize_name(Requirement(text).name) for text in project["optional-dependencies"]["docs"]}
    assert {canonicalize_name(name.replace("myst_parser", "myst-parser")) for name in needed} == declared


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (">>> 1", "doctest"), ("(1.2)  a = b", "equations"), ("x = 1        (4.7)", "equations"),
        ("simlib explore", "shell"), ("[a]\nb = 1", "toml"), ("import simlib", "python"), ("a b c", "text"),
    ],
)  # fmt: skip
def test_kinds_of_blocks(text, kind):
    assert kind_of(text) == kind
    assert parts_of(f"{text}\n\n>>> 2\n2\n")[0].startswith(text)


def test_the_check_finds_what_is_fetched_and_what_is_missing(tmp_path):
    (tmp_path / "a.css").write_text("@import 'good.css'; p { background: url(//far.invalid/b.png) }", encoding="utf-8")
    (tmp_path / "good.html").write_text('<h1 id="top">x</h1><a href="https://far.invalid/">x</a>', encoding="utf-8")
    (tmp_path / "bad.html").write_text(
        '<script src="https://far.invalid/m.js"></script><style>@import "http://far.invalid/f.css";</style>'
        '<a href="good.html#top">1</a><a href="good.html#low">2</a><a href="none.html">3</a><img src="a.css">',
        encoding="utf-8",
    )
    assert faults(tmp_path) == [
        "a.css fetches //far.invalid/b.png",
        "bad.html fetches http://far.invalid/f.css",
        "bad.html fetches https://far.invalid/m.js",
        "bad.html: good.html#low has no such anchor",
        "bad.html: none.html is not there",
    ]
