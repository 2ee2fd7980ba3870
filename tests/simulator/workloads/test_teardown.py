# SPDX-License-Identifier: BSD-3-Clause
"""An arm64 stage 2 unmapped entry by entry: both engines, the closed arithmetic, and a guest that runs meanwhile."""

import itertools

import pytest

from simlib._lib.errors import HorizonError, InputError
from simlib.analysis.simulate import run_scenario as simulate
from simlib.measurements.fits import UncertainCosts
from simlib.model.pagetable import PageTable
from simlib.model.scenario import Scenario
from simlib.model.steps import Stamp
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.timeline import timeline
from simlib.simulator.workloads import build
from simlib.simulator.workloads.teardown import counts

COSTS = {"unmap_entry": "440ns", "clean_line": "11ns", "tlb_invalidate": "1490ns", "flush": "5us",
         "flush_per_vcpu": "1us", "reacquire": "100ns", "others": "0ns"}  # fmt: skip
RUNNING = COSTS | {"fault_unlocked": "1us", "fault_hold": "800ns", "line_transfer": "50ns"}
WAYS = list(itertools.product(["entry", "elided"], ["entry", "range", "vm", "elided"]))


def scenario(cache="entry", tlb="entry", guest=None, costs=COSTS, lock="default", **workload):
    return Scenario.parse(
        {
            "guest": {"vcpus": 2, "memory": "64M", "backing": "4k"} | (guest or {}),
            "policy": {"architecture": "arm64", "teardown_cache": cache, "teardown_tlb": tlb, "lock": lock},
            "workload": {"kind": "teardown", "warm_up": "1ms", "access": "uniform", "shared": True} | workload,
            "costs": costs,
        }
    )


def time_ps(result):
    stamps = dict(zip(result.job.stamps, result.raw.stamp_ps.tolist(), strict=True))
    return stamps[Stamp("unmapped")] - stamps[Stamp("undisturbed")]


@pytest.mark.parametrize("guest", [{}, {"backing": "thp"}, {"page_size": "16K"}, {"page_size": "64K", "memory": "40M"}])
@pytest.mark.parametrize(("cache", "tlb"), WAYS)
def test_its_time_follows_exactly_from_its_counts(cache, tlb, guest):
    """In both engines, to the picosecond, whatever of the last table is filled."""
    case = scenario(cache, tlb, guest)
    job = build(case)
    run = compiled.run(job, 3, trace=100_000)
    assert run == reference.run(job, 3, trace=100_000)
    assert time_ps(simulate(case)) == counts(case).time_ps(case.costs, vcpus=2) > 0


@pytest.mark.parametrize(("size", "backing"), list(itertools.product(["4K", "16K", "64K"], ["4k", "thp"])))
def test_a_tebibyte_entry_by_entry(size, backing):
    case = scenario(guest={"memory": "1T", "page_size": size, "backing": backing})
    assert time_ps(simulate(case)) == counts(case).time_ps(case.costs, vcpus=2)


def test_counts_against_a_walk_that_touches_every_entry():
    """A tree of dictionaries, filled page by page and emptied as stage2_unmap_walker does, leaf first."""
    case = scenario("entry", "range", {"memory": "2051M", "vcpus": 1})
    pages, tables = 2051 * 256, {}
    for page in range(pages):
        tables.setdefault(page >> 18, {}).setdefault(page >> 9, set()).add(page)
    entries = invalidations = 0
    for first in sorted(tables):  # each maps the largest block, after which the lock may be dropped
        for second in sorted(tables[first]):
            entries += len(tables[first][second]) + 1
            invalidations += 1  # of the table, when its last page has gone
        entries, invalidations = entries + 1, invalidations + 1
        invalidations += 1  # of the range
    counted = counts(case)
    assert (counted.entries, counted.invalidations, counted.lines) == (entries, invalidations, pages * 64)


def test_todays_kernel_frees_the_tables_without_the_lock():
    today, elided = (simulate(scenario("elided", tlb)) for tlb in ("elided", "vm"))
    assert today.metrics["mmu_lock_utilisation"] == 0
    assert elided.metrics["mmu_lock_utilisation"] == pytest.approx(1)
    assert time_ps(elided) - time_ps(today) == 5_000_000 + 2 * 1_000_000


@pytest.mark.parametrize("lock", ["spin", "rwlock"])
def test_a_guest_that_runs_waits_for_a_largest_block_at_most(lock):
    """2 GiB of 4 KiB pages: a hold ends after 1 GiB; a vCPU that wants a page of the first half waits for all of it."""
    case = scenario(
        "elided", "entry", {"memory": "2G"}, RUNNING, lock, guest_runs=True, access_interval="50us", warm_up="10ms"
    )
    run = simulate(case, trace=200_000)
    held = timeline(run)
    main = held[(held["lock"] == "mmu_lock") & (held["thread"] == "main") & (held["what"] == "hold")]
    half = 262657 * (440 + 1490) * 1e-9
    spans = (main["end_s"] - main["begin_s"]).tolist()
    assert spans == pytest.approx([half, half], rel=1e-6)
    assert 0.99 * half < run.metrics["longest_stall"] < 1.01 * half
    assert run.metrics["teardown_time"] > counts(case).time_ps(case.costs) * 1e-12  # it waits for the vCPUs, too


def test_both_engines_agree_while_the_guest_runs():
    job = build(scenario("entry", "range", costs=RUNNING, guest_runs=True, access_interval="20us"))
    assert compiled.run(job, 3, trace=100_000) == reference.run(job, 3, trace=100_000)


@pytest.mark.parametrize("tlb", ["vm", "elided"])
def test_a_guest_that_runs_needs_its_tlb_invalidated(tlb):
    with pytest.raises(InputError, match=r"policy\.teardown_tlb = .*: a running guest could still use"):
        scenario("entry", tlb, guest_runs=True)


def test_it_is_arm64s():
    with pytest.raises(InputError, match=r"policy\.architecture = x86-tdp: teardown models arm64.s stage 2"):
        scenario().changed({"policy": {"architecture": "x86-tdp"}})


def test_a_running_guest_takes_time_between_accesses():
    with pytest.raises(InputError, match=r"workload\.access_interval = 0ps: must be more than 0"):
        scenario(guest_runs=True, access_interval="0ns")


def test_what_is_longer_than_is_simulated_is_refused_at_once():
    with pytest.raises(HorizonError, match=r"the teardown would take 7\d\d\d s"):
        simulate(scenario(guest={"memory": "1T"}, costs=COSTS | {"tlb_invalidate": "20us", "unmap_entry": "8us"}))


@pytest.mark.parametrize(
    ("cache", "tlb", "needed"),
    [("entry", "entry", {"unmap_entry", "clean_line", "tlb_invalidate"}), ("elided", "vm", {"unmap_entry", "flush"}),
     ("elided", "elided", {"unmap_entry"})],
)  # fmt: skip
def test_only_costs_of_its_own_steps_decide(cache, tlb, needed):
    assert set(UncertainCosts.of(scenario(cache, tlb, costs={})).drawn) == needed | {"line_local", "line_transfer"}


def test_blocks_take_as_many_entries_as_the_level_above_pages_has_tables():
    table = PageTable(16384)
    pages, blocks = (table.stage2_entries(2**40, leaf) for leaf in (1, 2))
    assert pages[2] == blocks[2] == 2**40 // (32 * 2**20)
