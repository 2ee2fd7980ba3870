# SPDX-License-Identifier: BSD-3-Clause
"""The architectures' facts: complete, with sources, and in the words of a policy."""

import re

import pytest

from simlib._lib.errors import InputError
from simlib.model.architectures import ARCHITECTURES, architecture
from simlib.model.scenario import Policy

NAMES = ("x86-tdp", "x86-shadow", "x86-shadow-paging", "arm64", "riscv", "loongarch", "ppc-radix", "s390")
"""The eight that DESIGN's scenario contract names."""


def test_the_eight_architectures_exist():
    assert set(NAMES) <= set(ARCHITECTURES)
    assert all(name == row.name for name, row in ARCHITECTURES.items())
    assert len({row.title for row in ARCHITECTURES.values()}) == len(ARCHITECTURES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_row_names_its_sources(name):
    row = architecture(name)
    assert re.search(r"\d\.\d|20\d\d", row.version)
    assert row.sources
    for source in row.sources:  # a file and a function of the kernel
        assert re.fullmatch(r"(arch|virt|kernel)/[\w./-]+\.[ch] \w+", source)
    assert row.lock in ("spin", "rwlock", "none")
    modes = {row.write_protect_fault, row.translation_fault, row.split_fault, row.clear_lock}
    assert modes <= {"lockless", "read", "write", "none"}
    assert ("read" in modes) <= (row.lock == "rwlock")  # a spinlock has no readers
    assert row.fault_flush in ("none", "local", "broadcast")
    assert 1 <= row.fault_lock_sections <= 2


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - {"s390", "ppc-radix"}))
def test_a_policy_starts_from_the_facts_and_may_override_each(name):
    row, policy = architecture(name), Policy(architecture=name).resolved()
    for field in (
        "lock",
        "write_protect_fault",
        "translation_fault",
        "split_fault",
        "clear_lock",
        "fault_lock_sections",
    ):
        assert getattr(policy, field) == getattr(row, field)
    changed = Policy(architecture=name, lock="ticket", write_protect_fault="write", fault_lock_sections=3).resolved()
    assert (changed.lock, changed.write_protect_fault, changed.fault_lock_sections) == ("ticket", "write", 3)
    assert changed.translation_fault == row.translation_fault


@pytest.mark.parametrize(("name", "field"), [("s390", "lock"), ("ppc-radix", "write_protect_fault")])
def test_an_architecture_without_the_lock_is_refused(name, field):
    with pytest.raises(InputError) as caught:
        Policy(architecture=name).resolved()
    error = caught.value
    assert error.what == f"policy.{field}"
    assert "does not take mmu_lock in this case" in error.rule
    assert architecture(name).sources[0] in error.rule
    assert error.hint == f"give policy.{field} a value to simulate it as if it took mmu_lock"


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(
        InputError, match=r"^policy\.architecture = amr64: unknown architecture; did you mean 'arm64'\?"
    ):
        architecture("amr64")
