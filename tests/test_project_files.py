# SPDX-License-Identifier: BSD-3-Clause
"""CITATION.cff, CONTRIBUTING.md, CHANGELOG.md: what they name is there, and they say what the package says."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import simlib
from simlib.ui.cli import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = {"cff-version": str, "message": str, "title": str, "authors": list}
"""What the Citation File Format 1.2.0 requires."""


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def citation():
    return yaml.safe_load(text("CITATION.cff"))


def test_the_citation_has_what_its_format_requires(citation):
    for key, kind in REQUIRED.items():
        assert isinstance(citation[key], kind), key
        assert citation[key]
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    # An entity has a name, a person has family-names; this project names no person.
    assert all(set(author) == {"name"} for author in citation["authors"])


def test_the_citation_says_what_the_package_says(citation):
    assert str(citation["version"]) == simlib.__version__ == PROJECT["version"]
    assert citation["abstract"] == PROJECT["description"]
    assert set(citation["license"]) == set(PROJECT["license"].split(" AND "))
    holder = re.search(r"Copyright \(c\) \d+, (.*)", text("LICENSE"))
    assert holder
    assert citation["authors"][0]["name"].lower() == holder[1].strip().lower()


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_and_files_are_there(name):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text(name))
    paths = re.findall(r"`([\w.-]+/[\w./-]*|\.ci/run)`", text(name))
    assert links or paths
    for path in [*links, *paths]:
        assert path.startswith("build/") or (ROOT / path).exists(), path


def test_commands_of_make_exist():
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", text("CONTRIBUTING.md")))
    assert len(named) > 5
    assert named <= targets


def test_mutants_are_of_modules_that_exist():
    """Their packages, and the modules of those that no test detects."""
    tree = ast.parse(text("checks/mutants.py"))
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    tests = ast.literal_eval(assigned["TESTS"])
    for package, paths in tests.items():
        assert list((ROOT / "simlib" / package.replace(".", "/")).glob("*.py")), package
        assert all((ROOT / path).exists() for group in paths for path in group), package
    for module in tomllib.loads(text("checks/survivors.toml")):
        assert (ROOT / module).exists(), module
        assert module.removeprefix("simlib/").replace("/", ".").startswith(tuple(tests)), module


def test_the_changes_begin_with_this_version_and_list_its_commands():
    versions = re.findall(r"^## (\S+?),", text("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == simlib.__version__
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    listed = set(re.findall(r"`(?:simlib )?([\w-]+)`", text("CHANGELOG.md")))
    assert commands <= listed, commands - listed
