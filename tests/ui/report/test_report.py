# SPDX-License-Identifier: BSD-3-Clause
"""Reports: one self-contained file, escaped text, and atomic writes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from simlib._lib.errors import InputError
from simlib.ui.report import Chart, Note, Prose, Report, Section, Table

EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Tags and ids of a page, and every address that a browser would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if tag == "a" else []
        self.loaded += [str(given[name]) for name in ("src", "href") if name in given and tag != "a"]


@pytest.fixture
def report() -> Report:
    figure = go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name=EVIL)).update_layout(title=EVIL)
    frame = pd.DataFrame({f"{EVIL}": [EVIL, "x"], "contentions": [201442478, 0], "time_s": [0.000123456, None]})
    return Report(
        f"Run {EVIL}",
        EVIL,
        [
            Section(EVIL, [f"words {EVIL}\n\n- `{EVIL}`\n- **{EVIL}**", Table(frame, EVIL), Note(EVIL, EVIL)]),
            Section("Same", [Chart(figure, EVIL)]),
            Section(
                "Same",
                [Chart(figure, "second"), Prose("[a](https://example.org/x) [b](javascript:alert(1))")],
            ),
        ],
        {EVIL: EVIL, "seeds": range(3)},
    )


def test_the_page_loads_nothing_and_contains_plotly_once(report: Report) -> None:
    html = report.to_html()
    page = Page(html)
    assert page.loaded == []
    assert "https://cdn" not in html
    assert html.count("plotly.js v") == 1
    assert "default-src 'none'" in html
    assert re.findall(r'Plotly\.newPlot\(\s*"([^"]*)"', html) == ["figure-1", "figure-2"]
    assert {"figure-1", "figure-2"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_text_is_escaped(report: Report) -> None:
    html = report.to_html()
    assert EVIL not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 12
    assert Page(html).tags.count("script") == 1 + 2 * report_scripts_per_chart(report)
    assert [link for link in Page(html).links if not link.startswith("#")] == ["https://example.org/x"]


def report_scripts_per_chart(report: Report) -> int:
    chart = report.sections[1].blocks[0]
    assert isinstance(chart, Chart)
    return Page(chart.html("x")).tags.count("script")


def test_numbers_of_a_table_are_formatted(report: Report) -> None:
    html = report.to_html()
    assert '<td class="number">201,442,478</td>' in html
    assert '<td class="number">0.0001235</td>' in html
    assert '<td class="number">–</td>' in html


def test_a_report_without_charts_is_small() -> None:
    assert len(Report("title", "", [Section("one", ["words"])]).to_html()) < 10_000


def test_a_failed_write_leaves_the_earlier_report(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "folder" / "report.html"
    assert report.write(path) == path
    assert path.read_text(encoding="utf-8") == report.to_html()
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match=r"report.html: .*cannot be written \(No space left on device\)"):
        Report("other").write(path)
    assert path.read_text(encoding="utf-8") == report.to_html()
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_the_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "report.html", tmp_path):
        with pytest.raises(InputError, match="cannot be written") as caught:
            Report("title").write(path)
        assert str(path) in str(caught.value)


def test_a_string_instead_of_blocks_is_refused() -> None:
    with pytest.raises(InputError, match="must be a list; put the text in a list"):
        Section("a", "text")
