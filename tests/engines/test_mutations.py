# SPDX-License-Identifier: BSD-3-Clause
"""The list of mutations does not rot: each still finds its place, once, and leaves Python behind."""

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
