# SPDX-License-Identifier: BSD-3-Clause
"""``import simlib``: what it offers, and what it does not import before somebody asks."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import simlib
from simlib.analysis.calibrate import CalibrationOptions
from simlib.analysis.choose.options import ChoiceKeywords, ChoiceOptions
from simlib.analysis.prediction_options import PredictionKeywords, PredictionOptions
from simlib.analysis.simulate import CaseKeywords, CaseOptions, SimulationKeywords, SimulationOptions
from simlib.ui.cli import questions

HEAVY = {"numba", "pandas", "plotly", "scipy", "numpy", "simpy"}


def imported(code: str) -> set[str]:
    """Heavy packages that are imported once some code has run in a fresh interpreter."""
    tail = "\nimport sys; sys.stderr.write('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True)
    return HEAVY & set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("command", ["--version", "--help", "predict --help", "lab --help"])
def test_help_imports_nothing_heavy(command):
    run = f"from simlib.ui.cli import main\ntry: main({command.split()})\nexcept SystemExit: pass"
    assert imported(run) == set()


def test_import_alone_imports_nothing_heavy():
    assert imported("import simlib; dir(simlib); simlib.InputError") == set()


def test_every_public_name_is_there_and_listed():
    assert dir(simlib) == sorted(simlib.__all__)
    for name in simlib.__all__:
        assert getattr(simlib, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = simlib.simulat  # type: ignore[attr-defined]


def test_the_server_of_the_explorer_waits_for_nothing_that_its_page_needs():
    assert imported("import simlib.ui.explorer.server, simlib.ui.explorer.launch") == set()


def test_a_question_in_an_address_needs_no_simulator():
    code = "from simlib.ui.explorer.state import ExplorerState; ExplorerState.from_query('guest.vcpus=8')"
    assert imported(code) <= {
        "pandas", "numpy", "scipy",
    }  # fmt: skip


@pytest.mark.parametrize("package", ["simlib", "simlib.analysis.choose", "simlib.figures", "simlib.ui.explorer"])
def test_type_checkers_are_told_the_names_of_a_package(package):
    part = importlib.import_module(package)
    tree = ast.parse(Path(str(part.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {
        (node.module, alias.name) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    modules = {name for home, name in told if home == package}
    assert modules <= set(part._HOMES)
    assert told - {(package, name) for name in modules} == {
        (f"{package}.{home}", name) for home, names in part._HOMES.items() for name in names
    }
    assert all(getattr(part, name) is not None for name in part.__all__)
    with pytest.raises(AttributeError, match="no attribute 'chose'"):
        _ = part.chose


def test_functions_are_not_shadowed_by_modules_of_their_names():
    for part in ("simulate", "predict", "compare", "calibrate"):
        importlib.import_module(f"simlib.analysis.{part}")
    assert all(inspect.isfunction(getattr(simlib, name)) for name in ("simulate", "predict", "compare", "calibrate"))


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "simlib", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == simlib.__version__
    usage = subprocess.run([sys.executable, "-m", "simlib", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: simlib" in usage.stdout


def test_the_command_line_has_the_same_defaults():
    assert PredictionOptions().level == questions.LEVEL
    assert CalibrationOptions().level == questions.LEVEL


@pytest.mark.parametrize(
    ("options", "keywords", "others"),
    [(PredictionOptions, PredictionKeywords, {"factors"}), (ChoiceOptions, ChoiceKeywords, set()),
     (CaseOptions, CaseKeywords, set()), (SimulationOptions, SimulationKeywords, set())],
)  # fmt: skip
def test_keywords_of_functions_are_the_fields_of_their_options(options, keywords, others):
    """`others`: fields that are not keywords of a function."""
    types = get_type_hints(options)
    assert types.keys() - keywords.__annotations__.keys() == others
    assert {name: types[name] for name in types if name not in others} == get_type_hints(keywords)


def test_an_unknown_keyword_is_refused():
    for function, positional in (
        (simlib.predict, [[1]]), (simlib.compare, [["baseline"], [1]]), (simlib.choose, []), (simlib.choose_batch, []),
        (simlib.simulate, []), (simlib.sample, []), (simlib.programs, []),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="unexpected keyword argument 'metric'"):
            function(simlib.Scenario(), *positional, metric="dirty_memory_time")
