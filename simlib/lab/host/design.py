# SPDX-License-Identifier: BSD-3-Clause
"""Cells to run on a host: studies for the calibration and for its validation, each a small matrix of cells.

============= ======================================================== ==============================
study         cells                                                    purpose
============= ======================================================== ==============================
``parked``    one vCPU, parked during the ioctls; several memory sizes slopes: access, fault, CLEAR
``chunks``    one parked vCPU; CLEARs of several sizes                 time of a CLEAR ioctl
``enable``    one parked vCPU; enabling dirty logging write-protects   cost of enabling
``blocks``    one parked vCPU on transparent huge pages                huge pages: mapping, splitting
``probe``     one vCPU that faults during empty CLEARs                 hold of mmu_lock by a fault
``reads``     one vCPU that only reads during CLEARs of several sizes  TLB flush, interrupt of a vCPU
``faults``    several vCPUs, parked during the ioctls                  held out: contention of faults
``load``      vCPUs that write during CLEARs of several sizes          held out: CLEAR under load
``batches``   ``load`` on a patched kernel; several batch sizes        held out: CLEAR in batches
``reacquire`` ``parked`` on a patched kernel; several batch sizes      cost of a reacquisition
============= ======================================================== ==============================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simlib._lib.errors import InputError
from simlib.lab.experiment import Experiment, parse_experiment
from simlib.lab.host.facts import HostFacts
from simlib.lab.native import NATIVE_TARGETS
from simlib.model.quantities import format_size
from simlib.vmm.qemu_rules import PAGE

MIB = 2**20

BATCHES = (0, 512, 64)
"""Pages per hold of mmu_lock on a patched kernel; 0: the whole ioctl."""

ROUNDS = 6


def vcpu_counts(cpus: int) -> tuple[int, ...]:
    """Powers of two up to the number of CPUs, and that number.

    >>> vcpu_counts(2), vcpu_counts(12)
    ((1, 2), (1, 2, 4, 8, 12))
    """
    counts = [1]
    while 2 * counts[-1] <= cpus:
        counts.append(2 * counts[-1])
    return (*counts, cpus) if cpus > counts[-1] else tuple(counts)


def chunks(pages: int) -> tuple[int, ...]:
    """Pages of one CLEAR ioctl: all (0), a quarter of a vCPU's pages, 512, 64.

    >>> chunks(16384), chunks(2048)
    ((0, 4096, 512, 64), (0, 512, 64))
    """
    return (0, *sorted({pages // 4, 512, 64}, reverse=True))


def memory_per_vcpu(facts: HostFacts) -> int:
    """Memory of each vCPU, bytes: 64 MiB, or less if the host is small. Raises `InputError` below 8 MiB."""
    limit = facts.memory_bytes // 4 // max(len(facts.cpus), 2)  # a cell uses at most a quarter of the memory
    for size in (64, 32, 16, 8):
        if size * MIB <= limit:
            return size * MIB
    rule = f"must be at least {32 * max(len(facts.cpus), 2)} MiB: the vCPUs use a quarter of it, 8 MiB each"
    raise InputError("memory", format_size(facts.memory_bytes), rule, "use fewer CPUs", flag="--cpus")


def design(facts: HostFacts, pause_us: int, base: Mapping[str, Any], switches: bool = False) -> list[Experiment]:
    """Design the studies of a host.

    `pause_us`: pause before each round under load, long enough for the vCPUs to write all pages again. `base`: options
    of the test that all cells share, such as the backing. `switches`: true if the parameters of the patched kernel
    (``kernel-patches/``) can be set.
    """
    unit = memory_per_vcpu(facts)
    chunk_sizes = chunks(unit // PAGE)
    counts = vcpu_counts(len(facts.cpus))
    unit_size, sizes = _size(unit), [_size(unit * n // 4) for n in (1, 2, 4, 8)]
    parked = {"vcpus": 1, "rounds": 4, "parked": True}
    load = {"vcpus": list(counts), "memory_per_vcpu": unit_size, "rounds": ROUNDS, "pause_us": pause_us, "yield": True}
    tables: dict[str, dict[str, Any]] = {
        "parked": {**parked, "memory_per_vcpu": sizes},
        "chunks": {**parked, "memory_per_vcpu": unit_size, "chunk_pages": list(chunk_sizes[1:])},
        "enable": {**parked, "memory_per_vcpu": sizes[1:], "protect_at_enable": True},
        "blocks": {**parked, "memory_per_vcpu": sizes[1:], "backing": "anonymous_thp"},
        "probe": {**parked, "memory_per_vcpu": unit_size, "probe": True},
        "reads": {"vcpus": 1, "memory_per_vcpu": unit_size, "rounds": 1, "write_percent": 0, "pause_us": 5000,
                  "chunk_pages": list(chunk_sizes)},
        "faults": {**parked, "vcpus": list(counts), "memory_per_vcpu": unit_size},
        "load": {**load, "chunk_pages": list(chunk_sizes)},
    }  # fmt: skip
    if facts.transparent_huge_pages in ("never", "not stated") or "backing" in base:
        del tables["blocks"]
    batched = {"batches": load, "reacquire": {**parked, "memory_per_vcpu": sizes}} if switches else {}
    common = {"target": NATIVE_TARGETS[facts.machine], "timeout_s": 120}
    studies = [{"name": name, **common, "test": {**base, **test}} for name, test in (tables | batched).items()]
    batches = {"dirty_log_clear_batch": list(BATCHES)}
    return [parse_experiment({**s, "parameters": batches if s["name"] in batched else {}}) for s in studies]


def _size(size: int) -> str:
    """Format a size, bytes, as the test accepts it."""
    return f"{size // MIB}M"
