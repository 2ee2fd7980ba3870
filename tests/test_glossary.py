# SPDX-License-Identifier: BSD-3-Clause
"""One word for one thing: what figures, widgets and tables call it stands in docs/glossary.md, and no other word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from simlib.analysis.choose import OBJECTIVES
from simlib.figures.style import ACTIVITY_COLOURS, ACTIVITY_NAMES
from simlib.model.quantities import format_seconds
from simlib.ui.cli import app
from studies.arm64.sliders import SLIDERS
from studies.lab.figures import metric_title
from studies.migrations.told import METRIC_NAMES

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
LINES = [line for line in GLOSSARY.splitlines() if line.startswith("| ")]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]
TERMS = {term.strip() for row in ROWS for term in row[0].split(",")}
OTHER_WORDS = {
    "think": r"(?i)\bthink\b(?! time)",
    "touches": r"(?i)\btouch(es|ed)?\b",
    "pages per second that are accesses": r"pages/s a vCPU|pages per second that a vCPU",
    "picoseconds": r"\b\d[\d.]* ?ps\b",
    "yields": r"(?i)\byields?\b(?!-)",
    "what the vCPUs lose": r"what the vCPUs lose",
}

SHOWING = ("figures/*.py", "explorer/*.py", *(f"studies/*/{name}.py" for name in ("figures", "told", "sliders")))
"""Modules of simlib that make what people see."""


def prose_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_labels_are_terms():
    labels = [
        *(ACTIVITY_NAMES.get(name, name) for name in ACTIVITY_COLOURS),
        *(label.removesuffix(", ns") for label in SLIDERS.values()),
        *METRIC_NAMES.values(),
        metric_title("longest_stall_s"),
        *(OBJECTIVES[name].title for name in ("stall", "guest_time_lost", "clear", "cost", "precopy")),
    ]
    assert not set(labels) - TERMS


def test_keys_of_the_glossary_exist():
    """Every key in its second column is one of the code's."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "simlib").rglob("*.py"))
    keys = {key for row in ROWS if len(row) == 3 for key in re.findall(r"`([^`]+)`", row[1])}
    assert len(keys) > 25
    assert not {key for key in keys if not re.search(rf"\b{re.escape(key)}\b", code)} - {"every-64"}


def helps(command: Any, name: str = "simlib") -> Iterator[tuple[str, str]]:
    """The texts of a command's help, and of those below it."""
    yield name, "\n".join(filter(None, [command.help, *(getattr(one, "help", "") for one in command.params)]))
    for inner in getattr(command, "commands", {}).values():
        yield from helps(inner, f"{name} {inner.name}")


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_other_words_for_the_same_thing_are_not_used(word):
    pages = {path.name: prose_of(path) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    for places in SHOWING:  # their texts, not their comments
        for path in (ROOT / "simlib").glob(places):
            pages[str(path)] = "\n".join(re.findall(r'f?"([^"\n]*)"', path.read_text(encoding="utf-8")))
    for name in ("choose.md", "choose-batch.md", "migrate.md", "migration.md", "metrics.md", "sampling.md"):
        pages[name] = (ROOT / "docs" / name).read_text(encoding="utf-8")
    pages |= helps(get_command(app))
    found = {name: re.search(OTHER_WORDS[word], text) for name, text in pages.items()}
    assert not {name: match[0] for name, match in found.items() if match}


def test_no_table_for_people_has_picoseconds():
    for power in range(-13, 3):
        assert "ps" not in format_seconds(3.21 * 10.0**power)
