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
