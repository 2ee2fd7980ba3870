# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the counts of arm64's eager split against manual counts of the kernel's walks and the selftest."""

import pytest

from simlib._lib.errors import InputError
from studies.split_walk.theory import PROTECT_VISIT, SplitCounts, total_time

GIB = 2**30


def test_enabling_of_a_gib_in_blocks_of_2_mib():
    """Two walks from the root: 2 tables above, 512 blocks; the second descends into the split blocks."""
    counts = SplitCounts(GIB, "thp").enable()
    assert counts == {"walk_entry": (2 + 512) + (2 + 512 + 2**18), "protect_entry": 512, "table_entry": 2**18,
                      "split_block": 512, "clear_word": 0, PROTECT_VISIT: 512}  # fmt: skip
    assert SplitCounts(GIB, "thp").enable("skip_levels")["walk_entry"] == 2 * (2 + 512)


def test_enabling_of_1_gib_blocks_makes_513_tables_each():
    counts = SplitCounts(2 * GIB, "hugetlb_1gb").enable()
    assert counts["table_entry"] == 2 * 513 * 512
    assert counts["split_block"] == counts["protect_entry"] == 2
    assert counts["walk_entry"] == 2 * (2 + 2 + 512 + 2**18)


def test_chunks_of_2_mib_split_1_gib_blocks_in_two_steps():
    small = SplitCounts(2 * GIB, "hugetlb_1gb", chunk=2**21)
    assert small.enable()["split_block"] == small.clear()["split_block"] == 2 * 513
    assert small.enable()["table_entry"] == SplitCounts(2 * GIB, "hugetlb_1gb").enable()["table_entry"]


@pytest.mark.parametrize(("size", "valid", "reach"), [(4096, 64, 64), (16384, 16, 61), (65536, 4, 49)])
def test_a_guest_with_larger_pages_touches_only_the_first_of_each(size, valid, reach):
    """The second CLEAR walks from a word's first dirty page to its last."""
    slot = SplitCounts(GIB, "4k", guest_page_size=size)
    words = 2**12
    assert slot.enable()["protect_entry"] == words * valid
    first, total = slot.clear(iterations=1), slot.clear()
    assert first["walk_entry"] == words * 2 * (3 + 64)
    assert total["walk_entry"] - first["walk_entry"] == words * 2 * (3 + reach)
    assert total["protect_entry"] == 2 * words * valid
    assert total[PROTECT_VISIT] == words * (64 + reach)


def test_only_the_first_word_of_a_block_finds_it_unsplit():
    first = SplitCounts(GIB, "thp").clear(iterations=1)
    words, blocks = 2**12, 512
    assert first["walk_entry"] == blocks * (3 + (3 + 64)) + (words - blocks) * 2 * (3 + 64)
    assert first["protect_entry"] == first["split_block"] == blocks
    total = SplitCounts(GIB, "thp").clear()
    assert total["protect_entry"] == blocks + 64 * words
    assert total["table_entry"] == first["table_entry"]


def test_fewer_address_bits_save_a_level():
    deep, flat = (SplitCounts(GIB, "4k", ipa_bits=bits).clear()["walk_entry"] for bits in (48, 40))
    assert deep - flat == 2 * 2 * 2**12


def test_counts_of_selects_the_ioctl():
    slot = SplitCounts(GIB, "thp")
    assert slot.counts_of("enable", "skip_levels") == slot.enable("skip_levels")
    assert slot.counts_of("clear", "skip_levels") == slot.clear("skip_levels")


def test_a_cost_without_a_value_counts_as_zero():
    counts = SplitCounts(GIB, "thp").enable()
    assert total_time(counts, {"split_block": 7.0, "walk_entry": None}) == 512 * 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": GIB + 2**21}, r"memory = 1026M: must be a multiple of 1G"),
        ({"memory": 2**20}, r"memory = 1M: must be a multiple of 2M"),
        (
            {"memory": GIB, "guest_page_size": 4097},
            r"guest_page_size = 4097: must be a power of two of at least 4096 bytes",
        ),
        ({"memory": GIB, "guest_page_size": 2**19}, r"guest_page_size = 512K: must be at most 64 pages"),
    ],
)
def test_invalid_sizes_are_rejected(given, message):
    with pytest.raises(InputError, match=message):
        SplitCounts(backing="thp", **given)
