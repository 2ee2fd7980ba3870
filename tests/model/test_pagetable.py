# SPDX-License-Identifier: BSD-3-Clause
"""Page-table geometry against values calculated by hand from the formats of the Arm ARM and the Intel SDM."""

import pytest

from simlib._lib.errors import InputError
from simlib.model.pagetable import SPLIT_WALKS, PageTable


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


@pytest.mark.parametrize("page", [0, 1024, 8192, 2**21])
def test_other_page_sizes_are_refused(page):
    with pytest.raises(InputError, match=r"guest\.page_size = .*: must be 4K, 16K or 64K"):
        PageTable(page)


@pytest.mark.parametrize(
    ("page", "ipa_bits", "levels"),
    [(4096, 40, 3), (16384, 40, 2), (65536, 40, 2), (4096, 32, 2), (4096, 43, 3), (4096, 44, 4), (16384, 41, 3),
     (65536, 42, 2), (65536, 48, 3)],
)  # fmt: skip
def test_levels_of_stage_2(page, ipa_bits, levels):
    """Up to 16 adjacent tables at the first level save a level; the widths are those of the Arm ARM, D8.2."""
    assert PageTable(page).levels(ipa_bits) == levels


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


class Walker:
    """Reference of arm64's page-table walker: a tree of lists, walked entry by entry; a leaf is an int, its height.

    It follows arch/arm64/kvm/hyp/pgtable.c and uses no formula: a leaf is visited, then reloaded, and walked if it has
    become a table.
    """

    def __init__(self, table, levels, walk=None):
        self.table, self.levels, self.walk, self.visits = table, levels, walk, 0

    def tree(self, height, level):
        """Create a table whose leaves are at this height."""
        return [height if level == height else self.tree(height, level - 1) for _ in range(self.table.entries)]

    def run(self, root, first, pages):
        self._table(root, self.levels, 0, first, first + pages)
        return self.visits

    def _table(self, entries, level, at, first, end):
        span = self.table.pages_per_block(level)
        for index in range(len(entries)):
            begin = at + index * span
            if begin + span <= first or begin >= end:
                continue
            self.visits += 1
            split = isinstance(entries[index], int) and level > 1 and self.walk is not None
            if split:
                entries[index] = self.tree(1, level - 1)
            if level == 1 and self.walk == "skip_siblings":
                return
            if isinstance(entries[index], int) or (split and self.walk in ("skip_children", "skip_siblings")):
                continue
            if not (self.walk == "skip_levels" and level == 2):
                self._table(entries[index], level - 1, begin, first, end)


@pytest.mark.parametrize("levels", [3, 4])
@pytest.mark.parametrize(("first", "pages"), [(0, 64), (192, 64), (256 * 3 + 64, 49), (0, 1024), (250, 30), (0, 4096)])
@pytest.mark.parametrize("height", [1, 2, 3])
def test_visits_are_those_of_the_reference_walker(height, first, pages, levels):
    class SmallTable(PageTable):
        """Tables of 16 entries, so that three levels are created quickly."""

        entries = 16

    table = SmallTable(4096)
    root = Walker(table, levels).tree(height, min(levels, 3))
    if levels == 4:
        root = [root]
    assert table.walked(first, pages, height, levels) == Walker(table, levels).run(root, first, pages)
    for walk in SPLIT_WALKS:
        fresh = Walker(table, 3).tree(height, 3)
        splitter = Walker(table, levels, walk)
        assert table.split_walked(first, pages, height, walk, levels) == splitter.run(
            [fresh] if levels == 4 else fresh, first, pages
        )


@pytest.mark.parametrize(("page", "pages"), [(4096, 2**18), (16384, 2**11), (65536, 2**13)])
def test_the_largest_block_and_the_entries_that_replace_it(page, pages):
    table = PageTable(page)
    assert table.largest_block == pages
    height = table.block_height("hugetlb_1gb")
    assert table.new_entries(height) == pages + (table.entries if height == 3 else 0)


def test_an_unknown_walk_gets_a_suggestion():
    with pytest.raises(InputError, match="did you mean 'skip_levels'"):
        PageTable(4096).split_walked(0, 64, 1, "skip_level")
