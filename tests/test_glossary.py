# SPDX-License-Identifier: BSD-3-Clause
"""The field's words: names, docstrings, printed texts and pages against docs/glossary.md and the rules below."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
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
from studies.migrations.figures import METRIC_NAMES

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in GLOSSARY.splitlines() if line[:2] == "| "]
TERMS = {term.strip() for row in ROWS for term in row[0].split(",")}

QUESTION = re.compile(r"(What|Which|How|Who|Whose|Whether|Where|When|Why|Does|Do|Is|Are|Can|Will)\b")
"""Openings of a docstring that leave its reader to guess: it begins with a noun phrase or with a verb."""

EMPTY_PARTS = {"found", "told", "said", "tells", "wishes", "wished"}
EMPTY_NAMES = {"one", "each", "rest", "mine", "these", "those"}
"""Names, and parts of names, that do not say what they hold."""

DIALECT = re.compile(
    r"\b(whoever|wish(?:es|ed)?|(?:is|are|was|were|be|being) told|tells?|told|stands? (?:for|still|alone|in|on|there|"
    r"beside|behind)|stands|may stand|let(?:s|ting)? go(?:es)?|hand-?overs?|is had|cannot be told)\b",
    re.IGNORECASE,
)
"""Words that KVM's, QEMU's and libvirt's documentation do not use so: a guest has a downtime, CLEAR drops mmu_lock."""

OTHER_WORDS = {
    "think": r"(?i)\bthink\b(?! time)",
    "touches": r"(?i)\btouch(es|ed)?\b",
    "pages per second that are accesses": r"pages/s a vCPU|pages per second that a vCPU",
    "picoseconds": r"\b\d[\d.]* ?ps\b",
    "yields": r'(?i)(?<!\[")\byields?\b(?!-)',  # except as the name of an experiment, switches["yield"]
    "what the vCPUs lose": r"what the vCPUs lose",
}
"""Other words for a term of the glossary, in texts that people see."""

SHOWING = (
    "simlib/figures/*.py", "simlib/ui/explorer/*.py", *(f"studies/*/{name}.py" for name in ("figures", "sliders")),
)  # fmt: skip
"""Modules that make texts of figures and widgets."""

OLD_NAMES = (
    "lets_go", "get_lets_go", "zap_lets_go", "fault_exit", "absorbed", "own_costs", "crowding", "look_work",
    "queue_work",
    "counted_runs", "throttle_judge", "as_good", "keeps_all", "keeps_stall", "whole_regret_s", "word_regret_s",
    "block_regret_s", "walk_several", "standard_scenario", "settable_strategies", "find_company", "find_gatherings",
    "let_in", "keep_books", "kept_books", "call_aside", "JUDGE", "NAP", "GUESTS", "Journey", "Terrain", "Wishes",
    "BatchChoices", "SIMLIB_FOUND", "--among", "--zone", "--fresh", "--noisy", "--guest-keeps", "--within", "--for",
    "--both", "--whole",
)  # fmt: skip
"""Names of earlier checkouts, which CHANGELOG.md lists with those that replaced them."""

MOST_PARAMETERS = 6
MANY_PARAMETERS = {
    "simlib/simulator/engine/reference/interpreter.py: private_step": "a step's fields, as the compiled engine has",
    "simlib/simulator/engine/throttle.py: next_throttle": "a numeric kernel; both engines and pre-copy call it",
    "simlib/simulator/workloads/kernel.py: job": "the fields of `Job` that a workload sets",
}
"""Public functions with more, and the reason; functions of the compiled engine and commands, whose options are
parameters, are not counted."""

EXCEPTIONS: dict[str, str] = {}
"""Places that break a rule on names and words, as ``path: rule: text``, and the reason; it should stay empty."""


def sources(*folders: str, suffix: str = ".py") -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}"))


CODE = sources("simlib", "studies")
PROGRAMS = sources("checks", "benchmarks")
TEMPLATES = [*sources("simlib", suffix=".j2"), *sources("simlib", suffix=".js"), *sources("studies", suffix=".j2")]
PAGES = [*sources("docs", suffix=".md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
         ROOT / "kernel-patches" / "README.md"]  # fmt: skip
NOTEBOOKS = sources("notebooks", suffix=".ipynb")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def named(tree: ast.Module) -> Iterator[str]:
    """Names that a module gives: of classes, functions, parameters, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def docstrings(tree: ast.Module) -> Iterator[str]:
    """First lines of docstrings, with those below constants and fields."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", None) or () if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield str(statement.value.value).strip().partition("\n")[0]


def prose(path: Path) -> Iterator[str]:
    """Text that people read: strings and comments of a module, lines of a page, cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from (n.value for n in ast.walk(parsed(path)) if isinstance(n, ast.Constant) and isinstance(n.value, str))
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield from (token.string for token in tokens if token.type == tokenize.COMMENT)
    elif path.suffix == ".ipynb":
        yield from ("".join(cell["source"]) for cell in json.loads(text)["cells"])
    else:
        yield text


def faults(rule: str, hits: Iterator[tuple[Path, str]]) -> list[str]:
    places = (f"{path.relative_to(ROOT)}: {rule}: {text}" for path, text in hits)
    return [place for place in places if place not in EXCEPTIONS]


def test_docstrings_begin_with_a_noun_phrase_or_a_verb():
    hits = ((path, line) for path in [*CODE, *PROGRAMS] for line in docstrings(parsed(path)) if QUESTION.match(line))
    assert not faults("docstring", hits)


def test_names_say_what_they_hold():
    def is_empty(name: str) -> bool:
        return name in EMPTY_NAMES or bool(EMPTY_PARTS & {*name.lower().strip("_").split("_")})

    hits = ((path, name) for path in [*CODE, *PROGRAMS] for name in named(parsed(path)) if is_empty(name))
    assert not faults("name", hits)


def test_texts_use_the_words_of_the_field():
    hits = (
        (path, match[0])
        for path in [*CODE, *PROGRAMS, *TEMPLATES, *PAGES, *NOTEBOOKS]
        for text in prose(path)
        for match in DIALECT.finditer(text)
    )
    assert not faults("word", hits)


@pytest.mark.parametrize("name", OLD_NAMES)
def test_names_of_earlier_checkouts_are_gone(name):
    pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    data = [*sources("data", suffix=".toml"), *sources("data/fits", suffix=".json"), *sources("data/priors")]
    places = [*CODE, *PROGRAMS, *TEMPLATES, *PAGES, *NOTEBOOKS, *data]
    hits = ((path, name) for path in places if pattern.search(path.read_text(encoding="utf-8")))
    assert not faults("old name", hits)


def test_a_class_name_stands_in_one_module():
    homes = defaultdict(set)
    for path in CODE:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(path)
    assert not {name: sorted(map(str, paths)) for name, paths in homes.items() if len(paths) > 1}


def test_public_functions_have_few_parameters():
    many = {}
    for path in CODE:
        place = path.relative_to(ROOT).as_posix()
        if "/compiled/" in place or place.startswith("simlib/ui/cli"):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len([name for name in names if name not in ("self", "cls")])
                if count > MOST_PARAMETERS:
                    many[f"{place}: {node.name}"] = count
    assert set(many) == set(MANY_PARAMETERS), many


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
    code = "\n".join(path.read_text(encoding="utf-8") for path in CODE)
    keys = {key for row in ROWS if len(row) == 3 for key in re.findall(r"`([^`]+)`", row[1])}
    assert len(keys) > 25
    assert not {key for key in keys if not re.search(rf"\b{re.escape(key)}\b", code)} - {"every-64"}


def helps(command: Any, name: str = "simlib") -> Iterator[tuple[str, str]]:
    """Texts of a command's help, and of those below it."""
    yield name, "\n".join(filter(None, [command.help, *(getattr(option, "help", "") for option in command.params)]))
    for inner in getattr(command, "commands", {}).values():
        yield from helps(inner, f"{name} {inner.name}")


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_other_words_for_the_same_thing_are_not_used(word):
    pages = {path.name: "\n".join(prose(path)) for path in NOTEBOOKS}
    for places in SHOWING:  # their texts, not their comments
        for path in ROOT.glob(places):
            pages[str(path)] = "\n".join(re.findall(r'f?"([^"\n]*)"', path.read_text(encoding="utf-8")))
    for name in ("choose.md", "choose-batch.md", "migrate.md", "migration.md", "metrics.md", "sampling.md"):
        pages[name] = (ROOT / "docs" / name).read_text(encoding="utf-8")
    pages |= helps(get_command(app))
    matches = {name: re.search(OTHER_WORDS[word], text) for name, text in pages.items()}
    assert not {name: match[0] for name, match in matches.items() if match}


def test_helps_use_the_words_of_the_field():
    assert not {name: match[0] for name, text in helps(get_command(app)) if (match := DIALECT.search(text))}


def test_no_table_for_people_has_picoseconds():
    for power in range(-13, 3):
        assert "ps" not in format_seconds(3.21 * 10.0**power)
