# SPDX-License-Identifier: BSD-3-Clause
"""Page-table geometry against values worked out by hand from the Arm ARM's and the Intel SDM's formats."""

import pytest

from simlib.errors import InputError
from simlib.model.pagetable import PageTable


@pytest.mark.parametrize(
    ("page", "entries", "block", "next_block"),
    [
        (4096, 512, 2 * 2**20, 2**30),  # 4 KiB granule: 2 MiB, 1 GiB
        (16384, 2048, 32 * 2**20, 64 * 2**30),  # 16 KiB granule: 32 MiB, 64 GiB
        (65536, 8192, 512 * 2**20, 4 * 2**40),  # 64 KiB granule: 512 MiB, 4 TiB
    ],
)
def test_blocks_of_each_granule(page, entries, block, next_block):
    table = PageTable(page)
    assert table.entries == entries
    assert [table.block_bytes(level) for level in (1, 2, 3)] == [page, block, next_block]
    assert [table.pages_per_block(level) for level in (1, 2, 3)] == [1, entries, entries**2]


@pytest.mark.parametrize(
    ("size", "visited"),
    [
        (1, {4: 1, 3: 1, 2: 1, 1: 1}),
        (2 * 2**20, {4: 512, 3: 1, 2: 1, 1: 1}),
        (2 * 2**20 + 1, {4: 513, 3: 2, 2: 1, 1: 1}),
        (64 * 2**30, {4: 2**24, 3: 2**15, 2: 64, 1: 1}),
        (513 * 2**30, {4: 513 * 2**18, 3: 513 * 512, 2: 513, 1: 2}),
    ],
)
def test_entries_that_a_walk_visits(size, visited):
    assert PageTable(4096).entries_visited(size) == visited


@pytest.mark.parametrize("page", [0, 1024, 8192, 2**21])
def test_other_page_sizes_do_not_exist(page):
    with pytest.raises(InputError, match=r"guest\.page_size = .*: must be 4K, 16K or 64K"):
        PageTable(page)


@pytest.mark.parametrize(
    ("page", "ipa_bits", "levels"),
    [(4096, 40, 3), (16384, 40, 2), (65536, 40, 2), (4096, 32, 2), (4096, 43, 3), (4096, 44, 4), (16384, 41, 3),
     (65536, 42, 2), (65536, 48, 3)],
)  # fmt: skip
def test_levels_of_stage_2(page, ipa_bits, levels):
    """Up to 16 tables side by side at the first level spare one; the widths are those of the Arm ARM, D8.2."""
    assert PageTable(page).stage2_levels(ipa_bits) == levels


@pytest.mark.parametrize(
    ("page", "size", "leaf", "entries"),
    [
        (4096, 2**30, 1, {1: 2**18, 2: 512, 3: 1}),
        (4096, 2**30 + 4096, 2, {2: 513, 3: 2}),
        (16384, 2**40, 1, {1: 2**26, 2: 2**15}),
        (65536, 2**40, 1, {1: 2**24, 2: 2**11}),
        (65536, 2**40, 2, {2: 2**11}),
    ],
)
def test_entries_of_stage_2(page, size, leaf, entries):
    assert PageTable(page).stage2_entries(size, leaf) == entries
