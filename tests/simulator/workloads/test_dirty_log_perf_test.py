# SPDX-License-Identifier: BSD-3-Clause
"""The selftest's counts equal arithmetic, to the unit; so do its times when nothing is random or shared."""

import math

import pytest

from simlib._lib.errors import InputError
from simlib.analysis.simulate import run_part
from simlib.analysis.simulate import run_scenario as simulate
from simlib.model.scenario import Scenario
from simlib.model.steps import Mode
from simlib.simulator.workloads import dirty_log_perf_test
from simlib.simulator.workloads.dirty_log_perf_test import sample

READ, WRITE = Mode.READ, Mode.WRITE


def run(architecture="arm64", **tables):
    tables["guest"] = {"vcpus": 2, "memory_per_vcpu": "8M", **tables.get("guest", {})}
    tables["policy"] = {"architecture": architecture, **tables.get("policy", {})}
    tables["costs"] = {"others": "0ns", **tables.get("costs", {})}
    return simulate(Scenario.parse(tables))


def holds(result, begin=None, end=None, lock=0):
    """Acquisitions for read and for write between two stamps."""
    counts = dict(zip(map(str, result.job.stamps), result.raw.stamp_locks[:, lock, :, 0].tolist(), strict=True))
    last = counts[end] if end else result.raw.lock_stats[lock, :, 0].tolist()
    first = counts[begin] if begin else [0, 0]
    return tuple(b - a for a, b in zip(first, last, strict=True))


def test_pages_and_two_faulting_passes():
    """4096 base pages: populate, nothing while all pages are still writable, and one fault a page after CLEAR."""
    result = run(guest={"backing": "4k"})
    assert holds(result, end="populated") == (4096, 0)
    assert holds(result, "populated", "dirtied 1") == (0, 0)
    assert holds(result, "dirtied 1", "cleared 1") == (0, 1)
    assert holds(result, "cleared 1", "dirtied 2") == (4096, 0)
    assert holds(result, "dirtied 2") == (0, 1)
    assert result.raw.faults.sum(axis=0).tolist() == [4096, 4096, 0, 0, 0]


def test_pages_and_three_faulting_passes():
    """Write-protected at enable time, as on the patched kernels: 4096 pages × 3 passes = 12288 read acquisitions."""
    result = run(guest={"backing": "4k"}, workload={"initially_set": False})
    assert holds(result) == (12_288, 3)  # enabling the log, and two CLEARs
    assert holds(result, "populated", "enabled") == (0, 1)
    assert result.raw.faults.sum(axis=0).tolist() == [4096, 8192, 0, 0, 0]


def test_unaligned_memslots_map_pages_whatever_backs_them():
    result = run(guest={"memslot_aligned": False})
    assert holds(result) == (8192, 2)
    assert result.raw.faults.sum(axis=0).tolist() == [4096, 4096, 0, 0, 0]


def test_blocks_split_at_the_first_write_after_protection():
    """Eight blocks: one fault each to populate; then one to split and 511 for the rest; then 512 each."""
    result = run(workload={"initially_set": False, "iterations": 3})
    assert holds(result, end="populated") == (8, 0)
    assert holds(result, "enabled", "dirtied 1") == (8 * 512, 0)
    assert holds(result, "cleared 1", "dirtied 2") == (8 * 512, 0)
    assert holds(result, "cleared 2", "dirtied 3") == (8 * 512, 0)
    assert result.raw.faults.sum(axis=0).tolist() == [8 * 511, 2 * 8 * 512, 8, 8, 0]


def test_initially_set_moves_the_split_to_the_second_iteration():
    result = run(workload={"iterations": 3})
    assert holds(result, "populated", "dirtied 1") == (0, 0)
    assert result.raw.faults.sum(axis=0).tolist() == [8 * 511, 8 * 512, 8, 8, 0]


def test_sixteen_kilobyte_pages_have_blocks_of_2048():
    result = run(guest={"vcpus": 1, "page_size": "16K", "memory_per_vcpu": "64M"}, workload={"initially_set": False})
    assert result.raw.faults.sum(axis=0).tolist() == [2 * 2047, 2 * 2048, 2, 2, 0]


@pytest.mark.parametrize("percent", [1, 7, 50, 99])
def test_only_written_pages_fault_for_permission(percent):
    """Evenly spread: page p is written if p percent / 100 passes a whole number there."""
    pages, rounds = 4096, 3
    written = [p for p in range(pages) if (p + 1) * percent // 100 > p * percent // 100]
    assert len(written) == pages * percent // 100
    workload = {"write_percent": percent, "initially_set": False, "iterations": rounds}
    small = run(guest={"backing": "4k"}, workload=workload)
    assert small.raw.faults.sum(axis=0).tolist() == [pages, rounds * len(written), 0, 0, 0]
    # In a block, pages before its first write are read through the block, then faulted in once it is split.
    firsts = [min(p for p in written if p // 512 == b) - 512 * b for b in range(pages // 512)]
    huge = run(workload=workload)
    assert huge.raw.faults.sum(axis=0).tolist() == [8 * 511, (rounds - 1) * len(written), 8, 8, 0]
    after_split = dict(
        zip(map(str, huge.job.stamps), huge.raw.stamp_locks[:, 0, :, 0].sum(axis=1).tolist(), strict=True)
    )
    assert after_split["dirtied 1"] - after_split["enabled"] == sum(512 - first for first in firsts)


@pytest.mark.parametrize(
    ("chunk", "batch"),
    [(None, 0), (None, 512), (None, 192), (None, 64), ("2M", 0), ("2M", 128), ("2M", 192), ("2M", 448), ("2M", 1024),
     ("512K", 64), ("3M", 256), ("16M", 4096)],
)  # fmt: skip
def test_a_batch_drops_the_lock_once_per_batch(chunk, batch):
    """A CLEAR of `chunk` takes ceil(chunk / batch) holds; the last ioctl takes what is left of the slot."""
    pages = 4096
    size = min(pages, int(chunk[:-1]) * (1024 if chunk[-1] == "M" else 1) // 4) if chunk else pages
    sizes = [min(size, pages - first) for first in range(0, pages, size)]
    expected = sum(math.ceil(size / (batch or size)) for size in sizes)
    result = run(policy={"clear_batch_pages": batch}, workload={"clear_chunk": chunk} if chunk else {})
    assert holds(result, "dirtied 1", "cleared 1") == (0, expected)
    assert holds(result, "dirtied 2", "cleared 2") == (0, expected)


def test_batch_512_on_twice_32_megabytes_adds_62_holds():
    """As counted on a kernel (x86, 2 vCPUs × 32 MB, two CLEARs): 2 × (16384 / 512 - 1)."""
    whole, batched = (
        run("x86-shadow-paging", guest={"memory_per_vcpu": "32M"}, policy={"clear_batch_pages": batch})
        for batch in (0, 512)
    )
    assert holds(batched)[WRITE] - holds(whole)[WRITE] == 62


def test_a_lockless_write_fault_takes_no_mmu_lock():
    result = run("x86-tdp", guest={"backing": "4k"}, workload={"initially_set": False})
    assert holds(result) == (4097, 2)  # populate, and enable, under the read lock; CLEAR twice under the write lock
    own = [holds(result, lock=i) for i in range(2, 4)]
    assert own == [(0, 4096), (0, 4096)]  # two passes over 2048 pages, each on its own page tables' words
    assert result.raw.lock_stats[2:, :, 1].sum() == 0  # vCPUs do not write each other's pages: no update is lost


@pytest.mark.parametrize(
    ("architecture", "read", "write", "interconnect"),
    [
        ("arm64", 8192, 2, 0), ("arm64-2022", 4096, 4098, 4096), ("arm64-spinlock", 0, 8194, 4096),
        ("riscv", 4096, 4098, 4096), ("riscv-spinlock", 0, 8194, 4096), ("loongarch", 0, 3 * 4096 + 2, 0),
        ("x86-tdp", 4096, 2, 0), ("x86-shadow", 0, 4098, 0), ("x86-shadow-paging", 0, 8194, 0),
    ],
)  # fmt: skip
def test_modes_follow_the_architecture(architecture, read, write, interconnect):
    """4096 pages populated, 4096 write faults, two CLEARs; a broadcast for each entry that was valid.

    LoongArch takes the lock twice where it finds no page, once where it finds one write-protected.
    """
    result = run(architecture, guest={"backing": "4k"}, costs={"tlb_invalidate": "100ns"})
    assert holds(result) == (read, write)
    assert holds(result, lock=1) == (0, interconnect)


@pytest.mark.parametrize("lock", ["spin", "ticket"])
def test_a_spinlock_has_one_mode(lock):
    assert holds(run("arm64", policy={"lock": lock, "clear_lock": "read"}))[READ] == 0


def test_one_vcpu_alone_takes_the_sum_of_its_costs():
    """Nothing is random and nobody else is there: times are sums, to the picosecond."""
    costs = {"fault_unlocked": "700ns", "fault_hold": "501ns", "split_hold": "2us", "populate_block": "100us",
             "tlb_invalidate": "90ns", "line_local": "3ns", "line_transfer": "50ns", "guest_access": "2ns",
             "clear_page": "10ns", "enable_page": "7ns", "flush": "4us"}  # fmt: skip
    result = run("arm64-spinlock", guest={"vcpus": 1, "memory_per_vcpu": "4M"}, costs=costs,
                 workload={"initially_set": False})  # fmt: skip
    stamps = dict(zip(map(str, result.job.stamps), result.raw.stamp_ps.tolist(), strict=True))
    ns = 1000
    fault, lock, pages = (700 + 501) * ns, 2 * 3 * ns, 1024
    populated = 2 * (100_000 * ns + fault + lock) + pages * 2 * ns
    assert stamps["populated"] == populated
    # The main thread fetches the lock word from the vCPU; then both blocks are protected, and TLBs flushed.
    assert stamps["enabled"] - populated == (50 + 2 * 7 + 3 + 4000) * ns
    first = 2 * ((700 + 2000 + 90) * ns + lock) + 1022 * (fault + lock) + pages * 2 * ns + 47 * ns
    assert stamps["dirtied 1"] - stamps["enabled"] == first
    assert stamps["cleared 1"] - stamps["dirtied 1"] == (50 + 1024 * 10 + 3 + 4000) * ns
    second = pages * (fault + 90 * ns + lock + 2 * ns) + 47 * ns
    assert stamps["dirtied 2"] - stamps["cleared 1"] == second
    assert result.metrics["dirty_memory_time"] == pytest.approx((first + second) * 1e-12, rel=1e-12)


def test_enabling_by_reverse_mapping_looks_at_every_page_of_a_block():
    """Two blocks of 8 words each: what CLEAR takes for such a word, and one entry of each block is protected."""
    costs = {"clear_page": "30ns", "clear_unsplit": "2ns", "enable_page": "7ns"}
    guest = {"vcpus": 1, "memory_per_vcpu": "4M"}
    for architecture, looks in (("x86-shadow", 16 * (64 * 2 + 30)), ("x86-tdp", 0)):
        result = run(architecture, policy={"eager_split": False}, guest=guest, costs=costs,
                     workload={"initially_set": False})  # fmt: skip
        assert result.metrics["enable_time"] == pytest.approx((looks + 2 * 7) * 1e-9, rel=1e-9)
    assert run("x86-shadow", guest=guest, costs=costs).metrics["enable_time"] == 0


def test_a_walk_takes_longer_for_memory_on_the_other_socket():
    """Two of four vCPUs: (1 + 3) / 2 times as long; a fault is not concerned."""
    costs = {"clear_page": "30ns", "fault_unlocked": "1us"}
    near, far = (
        run("x86-tdp", host={"cores": 4, "sockets": 2, "remote_ratio": ratio}, guest={"vcpus": 4}, costs=costs)
        for ratio in (1, 3)
    )
    assert far.metrics["clear_dirty_log_time"] == pytest.approx(2 * near.metrics["clear_dirty_log_time"], rel=1e-9)
    assert far.metrics["dirty_memory_time"] == near.metrics["dirty_memory_time"]


def test_fault_lock_sections_divide_the_hold():
    single, three = (
        run(guest={"vcpus": 1}, policy={"fault_lock_sections": n}, costs={"fault_hold": "900ns"}) for n in (1, 3)
    )
    assert holds(three)[READ] == 3 * holds(single)[READ]
    assert single.raw.end_ps == three.raw.end_ps


def test_vcpus_fill_the_sockets_evenly():
    scenario = Scenario.parse({"host": {"cores": 4, "sockets": 2}, "guest": {"vcpus": 6, "memory_per_vcpu": "2M"}})
    assert simulate(scenario).job.socket.tolist() == [0, 0, 1, 1, 0, 0, 0]  # the last is the main thread


@pytest.mark.parametrize("architecture", ["arm64-2022", "arm64", "x86-shadow-paging"])
def test_a_sample_of_the_pages_scales_to_all_of_them(architecture):
    scenario = Scenario.parse({
        "guest": {"vcpus": 4, "memory_per_vcpu": "128M", "memslot_aligned": False},
        "policy": {"architecture": architecture},
        "costs": {"fault_unlocked": "700ns", "fault_hold": "600ns", "tlb_invalidate": "300ns", "line_transfer": "47ns",
                  "fault_jitter": 0.3, "populate_block": "1us", "clear_page": "10ns"},
    })  # fmt: skip
    small, scale = dirty_log_perf_test.sample(scenario, 4096)
    assert (small.guest.pages_per_vcpu, scale) == (4096, 8.0)
    full, part = simulate(scenario).metrics, simulate(scenario, pages_per_vcpu=4096).metrics
    assert full.keys() == part.keys()
    for name, value in full.items():
        assert part[name] == pytest.approx(value, rel=0.01), name
    assert run_part(scenario, 8192, 2, seed=1).metrics == part


def test_a_sample_scales_the_flush_of_one_ioctl_no_further_than_it_happens():
    """One CLEAR ioctl flushes once, however many pages were left out of the simulation."""
    scenario = Scenario.parse(
        {"guest": {"vcpus": 2, "memory_per_vcpu": "128M"}, "costs": {"clear_page": "10ns", "flush": "20us"}}
    )
    full, part = simulate(scenario).metrics, simulate(scenario, pages_per_vcpu=4096).metrics
    assert part["clear_dirty_log_time"] == pytest.approx(full["clear_dirty_log_time"], rel=0.01)


def test_no_sample_is_taken_where_all_pages_fit():
    scenario = Scenario.parse({"guest": {"memory_per_vcpu": "4M"}})
    assert dirty_log_perf_test.sample(scenario, 1024) == (scenario, 1.0)
    assert dirty_log_perf_test.sample(scenario, 1)[0].guest.pages_per_vcpu == 512  # a whole block at least
    assert dirty_log_perf_test.sample(Scenario.parse({"guest": {"backing": "4k"}}), 1)[0].guest.pages_per_vcpu == 64


def test_what_is_not_paid_takes_no_time():
    free, paid = run().metrics, run(costs={"populate_block": "1us", "clear_page": "1ns"}).metrics
    assert (free["populate_time"], free["clear_dirty_log_time"], free["dirty_memory_time"]) == (0, 0, 0)
    assert paid["populate_time"] == pytest.approx(4e-6)
    assert paid["clear_dirty_log_time"] == pytest.approx((8 * 8 + 4096) * 1e-9)


def test_an_architecture_without_mmu_lock_is_not_simulated():
    with pytest.raises(InputError, match="s390 does not take mmu_lock in this case"):
        run("s390")


def test_with_rings_the_whole_memory_is_simulated():
    """The number of entries in the rings at the end of a round does not grow with the pages."""
    case = Scenario.parse(
        {"guest": {"vcpus": 2, "memory": "64M", "backing": "4k"}, "policy": {"architecture": "x86-tdp"},
         "workload": {"kind": "dirty_log_perf_test", "clear_when": "ring", "ring_entries": 256}}
    )  # fmt: skip
    assert sample(case, 1024) == (case, 1.0)
    assert sample(case.changed({"workload": {"clear_when": "lazy"}}), 1024)[1] == 8.0
