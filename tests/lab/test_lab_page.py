# SPDX-License-Identifier: BSD-3-Clause
"""kernel-patches/README.md: the sentences on the cost of the statistics agree with the table above them."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "kernel-patches" / "README.md").read_text("utf-8")


def test_the_sentences_on_the_cost_of_the_statistics_agree_with_the_table():
    table, _, prose = PAGE.partition("<!-- statistics cost: begin -->")[2].partition("<!-- statistics cost: end -->")
    prose = " ".join(prose.split())
    whole, sampled, parts = re.split("The same with kvm.mmu_lock_stat_period=17|The parts", table)
    clock = {round(float(ns)) for ns in re.findall(r"(?m)^ *[\w-]+ +(\d+\.\d) +\d+\.\d \(", parts)}
    assert len(clock) == 1
    assert f"two reads of `local_clock()` alone take {clock.pop()} ns on this CPU" in prose
    assert len(re.findall(r"(?m)^ *[\w-]+ .* yes$", sampled)) == 7
    assert " no" not in sampled
    assert "the cost meets the target in each case." in prose
    added = [float(ns) for ns in re.findall(r"(\d+\.\d) \(\d+\.\d-\d+\.\d\)$", whole, re.MULTILINE)]
    assert min(added) > 15
    assert "costs more than the target of 15 ns" in prose
