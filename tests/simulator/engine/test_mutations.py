# SPDX-License-Identifier: BSD-3-Clause
"""The lists of mutations are up to date: each finds its place, once, and the result compiles."""

import tomllib

import pytest
from mutations import MUTATIONS, ROOT, faults_in


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_finds_its_place(name):
    edits = MUTATIONS[name]
    assert not [fault for edit in edits if (fault := faults_in(edit))]
    for edit in edits:
        source = (ROOT / "simlib" / edit.path).read_text(encoding="utf-8")
        mutant = source.replace(edit.text, edit.wrong)
        assert mutant != source
        compile(mutant, edit.path, "exec")


def test_each_surviving_mutant_is_in_its_module():
    for module, reasons in tomllib.loads((ROOT / "checks" / "survivors.toml").read_text(encoding="utf-8")).items():
        lines = [line.strip() for line in (ROOT / module).read_text(encoding="utf-8").splitlines()]
        assert [lines.count(change.partition(" -> ")[0]) for change in reasons] == [1] * len(reasons), module
