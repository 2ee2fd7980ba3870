# SPDX-License-Identifier: BSD-3-Clause
"""What is run on a host to calibrate it and to judge the calibration: studies, each a small matrix of cells.

============ =========================================================== ==============================
study        what its cells are                                          what it is for
============ =========================================================== ==============================
``parked``   one vCPU, parked during the ioctls; memory                  access, fault, CLEAR: slopes
``chunks``   the same; pages of one CLEAR                                what one CLEAR ioctl takes
``enable``   the same; protected when logging is enabled                 enabling the log
``blocks``   the same, on transparent huge pages                         blocks: mapping, splitting
``probe``    the same, with empty CLEARs while the vCPU faults           how long a fault holds the lock
``reads``    one vCPU that only reads while CLEAR runs; pages of one     flushing its TLB, interrupting it
``faults``   several vCPUs, parked during the ioctls                     contention between faults
``load``     vCPUs that write while CLEAR runs; pages of one             held out: CLEAR under load
``batches``  the same on a patched kernel; pages per hold                held out, too
============ =========================================================== ==============================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simlib._lib.errors import InputError
from simlib.lab.experiment import Experiment, parse_experiment
from simlib.lab.host.facts import HostFacts
from simlib.lab.native import NATIVE_TARGETS
from simlib.model.quantities import format_size

PAGE = 4096
MIB = 2**20

MEMORY_SHARE = 4
"""A cell uses at most this part of the host's memory: one in so many bytes."""

BATCHES = (0, 512, 64)
"""Pages per hold of the lock on a patched kernel; 0: a whole ioctl."""

ROUNDS = 6
"""Rounds of GET and CLEAR under load."""


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
    """Pages of one CLEAR ioctl: all (0), a quarter of a vCPU's, 512, 64.

    >>> chunks(16384), chunks(2048)
    ((0, 4096, 512, 64), (0, 512, 64))
    """
    return (0, *sorted({pages // 4, 512, 64}, reverse=True))


def memory_per_vcpu(facts: HostFacts) -> int:
    """Bytes of each vCPU: 64 MiB, or what fits.

    Raises `InputError` if not even 8 MiB fit.
    """
    most = facts.memory_bytes // MEMORY_SHARE // max(len(facts.cpus), 2)
    for size in (64, 32, 16, 8):
        if size * MIB <= most:
            return size * MIB
    rule = f"is too little for {len(facts.cpus)} vCPUs with 8 MiB each"
    raise InputError("memory", format_size(facts.memory_bytes), rule, "use fewer CPUs", flag="--cpus")


def design(facts: HostFacts, pause_us: int, base: Mapping[str, Any], switches: bool = False) -> list[Experiment]:
    """The studies of a host.

    `pause_us`: pause before each round under load: as long as the vCPUs need to write all pages again. `base`: options
    of the test that every cell has, such as its backing. `switches`: whether the kernel's switches
    (``kernel-patches/``) can be set.
    """
    unit = memory_per_vcpu(facts)
    parts = chunks(unit // PAGE)
    counts = vcpu_counts(len(facts.cpus))
    one, sizes = _size(unit), [_size(unit * n // 4) for n in (1, 2, 4, 8)]
    parked = {"vcpus": 1, "rounds": 4, "parked": True}
    load = {"vcpus": list(counts), "memory_per_vcpu": one, "rounds": ROUNDS, "pause_us": pause_us, "yield": True}
    tables: dict[str, dict[str, Any]] = {
        "parked": {**parked, "memory_per_vcpu": sizes},
        "chunks": {**parked, "memory_per_vcpu": one, "chunk_pages": list(parts[1:])},
        "enable": {**parked, "memory_per_vcpu": sizes[1:], "protect_at_enable": True},
        "blocks": {**parked, "memory_per_vcpu": sizes[1:], "backing": "anonymous_thp"},
        "probe": {**parked, "memory_per_vcpu": one, "probe": True},
        "reads": {"vcpus": 1, "memory_per_vcpu": one, "rounds": 1, "write_percent": 0, "pause_us": 5000,
                  "chunk_pages": list(parts)},
        "faults": {**parked, "vcpus": list(counts), "memory_per_vcpu": one},
        "load": {**load, "chunk_pages": list(parts)},
    }  # fmt: skip
    if facts.transparent_huge_pages in ("never", "not stated") or "backing" in base:
        del tables["blocks"]
    studies = [_study(facts, name, {**base, **table}) for name, table in tables.items()]
    if switches:
        batches = {"dirty_log_clear_batch": list(BATCHES)}
        studies.append(_study(facts, "batches", {**base, **load}, batches))
        studies.append(_study(facts, "reacquire", {**base, **parked, "memory_per_vcpu": sizes}, batches))
    return studies


def _study(
    facts: HostFacts, name: str, test: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
) -> Experiment:
    target = NATIVE_TARGETS[facts.machine]
    table = {"name": name, "target": target, "timeout_s": 120, "test": dict(test), "parameters": dict(parameters or {})}
    return parse_experiment(table)


def _size(size: int) -> str:
    """Bytes as the test takes them."""
    return f"{size // MIB}M"
