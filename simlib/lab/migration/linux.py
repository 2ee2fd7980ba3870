# SPDX-License-Identifier: BSD-3-Clause
"""Linux guest of a real migration: a Debian kernel, and ``workload.c`` as its init."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from simlib._lib.errors import InputError, SimlibError
from simlib.lab.migration import report
from simlib.lab.migration.initramfs import (
    KERNEL_PACKAGES,
    fetch_guest_packages,
    find_kernel,
    pack_initramfs,
    package_versions,
)
from simlib.lab.migration.measurement import measure_guest
from simlib.lab.migration.progress import Baseline, Gap, ReadMemory, RunningQemu, VcpuCounters
from simlib.lab.migration.values import number_within
from simlib.lab.migration.workloads import MIB, WORKLOADS, parse_values

GAP_S = 0.005
"""Shortest delay of a timer thread that the guest records, s."""

SYSTEM_BYTES = 256 * MIB
"""Memory that a guest needs in addition to its workload, bytes."""

KERNEL_ARGUMENTS = (
    "console=ttyS0 loglevel=4 panic=-1 nokaslr mitigations=off transparent_hugepage=never tsc=reliable "
    f"memmap={report.RESERVED >> 10}K${report.ADDRESS:#x}"
)


@dataclass(frozen=True)
class LinuxGuest:
    """Linux guest with one workload.

    - `workload`: a name of `simlib.lab.migration.workloads.WORKLOADS`; `values`: its keys with their values.
    """

    workload: str
    values: tuple[tuple[str, int | str], ...]
    vcpus: int = 1
    start_timeout_s: ClassVar[float] = 120.0

    @property
    def parameters(self) -> str:
        """Keys of the workload with their values, numbers in bytes."""
        return " ".join(f"{key}={value}" for key, value in self.values)

    @property
    def keys(self) -> dict[str, Any]:
        """Columns that identify the guest in a table, except vCPUs and memory."""
        return {"workload": self.workload, "parameters": self.parameters}

    @property
    def label(self) -> str:
        """Description for progress messages."""
        return f"Linux, {self.workload} {self.parameters}, {self.vcpus} vCPUs"

    @property
    def cycle_s(self) -> float:
        """Length of the workload's period, at least 1 s."""
        numbers = dict(self.values)
        return max(1.0, *(int(numbers.get(name, 0)) / 1000 for name in ("period_ms", "pause_ms")))

    def check_memory(self, memory: int, where: str) -> None:
        """Raise `InputError` if the workload and the kernel do not fit."""
        used = sum(int(value) for key, value in self.values if key in ("set", "fill"))
        if used + SYSTEM_BYTES > memory:
            rule = f"must exceed set and fill by at least {SYSTEM_BYTES // MIB} MiB"
            raise InputError(where, memory, rule, "give the guest more memory")

    def lines(self, ticks_per_s: float) -> list[str]:
        """Lines of the guest's file ``/workload``."""
        numbers = {"address": report.ADDRESS, "vcpus": self.vcpus, "ticks": round(ticks_per_s)}
        numbers["gap"] = round(GAP_S * ticks_per_s)
        values = [f"{key} {value}" for key, value in (*numbers.items(), *self.values)]
        return [f"workload {self.workload}", *values, *WORKLOADS[self.workload].lines(dict(self.values))]

    def arguments(self, folder: str) -> list[str]:
        """QEMU's arguments for the files that `prepare` writes."""
        files = ["-kernel", f"{folder}/vmlinuz", "-initrd", f"{folder}/initramfs"]
        return ["-cpu", "max", "-no-reboot", "-serial", "stdio", *files, "-append", KERNEL_ARGUMENTS]

    def prepare(self, folder: Path, ticks_per_s: float) -> None:
        """Write the kernel and the initramfs."""
        root, programs = fetch_guest_packages(), WORKLOADS[self.workload].programs
        (folder / "vmlinuz").symlink_to(find_kernel(root))
        text = "".join(f"{line}\n" for line in self.lines(ticks_per_s))
        (folder / "initramfs").write_bytes(pack_initramfs(root, programs, text))

    def is_ready(self, counters: Sequence[VcpuCounters]) -> bool:
        """Return True once the workload is steady. Raises `SimlibError` if it failed."""
        if any(vcpu.ready == report.FAILED for vcpu in counters):
            raise SimlibError(f"{self.label}: the workload failed")
        return all(vcpu.ready == report.STEADY for vcpu in counters)

    def counters(self, read: ReadMemory) -> list[VcpuCounters]:
        """Read the counters of each vCPU."""
        return report.read_head(read, self.vcpus).vcpus

    def gaps(self, read: ReadMemory, counters: list[VcpuCounters]) -> list[list[Gap]]:
        """Read the last delays of each vCPU's timer thread."""
        return report.read_gaps(read, counters)

    def measure(self, machine: RunningQemu, check: Callable[[], None]) -> dict[str, Any]:
        """Measure the guest as docs/migrate.md says."""
        names = (*KERNEL_PACKAGES, *WORKLOADS[self.workload].packages)
        measurement = measure_guest(machine, lambda: report.read_head(machine.read_memory, self.vcpus), check)
        return {**measurement, "packages": package_versions(fetch_guest_packages(), names)}

    def outcome(self, read: ReadMemory, start: list[VcpuCounters], baseline: Baseline) -> dict[str, Any]:
        """Share of the migration in which the guest did less than half of its work before."""
        samples = report.read_samples(read, report.read_head(read, self.vcpus).samples)
        samples[:, 0] /= baseline.ticks_per_s
        period = report.Period(start[0].last / baseline.ticks_per_s, self.cycle_s, baseline.away_s)
        return {"slow_percent": round(100 * report.slow_share(samples, baseline.operations_per_s, period), 2)}


def parse_linux(given: Mapping[str, Any], where: str) -> LinuxGuest:
    """Check a table ``[experiment.linux]``. Raises `InputError` for an unknown key or an invalid value.

    >>> parse_linux({"workload": "idle-fresh"}, "e.toml: linux").keys
    {'workload': 'idle-fresh', 'parameters': 'rate=100'}
    """
    values = dict(given)
    name = values.pop("workload", "uniform")
    vcpus = number_within(values.pop("vcpus", 1), f"{where}.vcpus", 1, report.MAX_VCPUS)
    guest = LinuxGuest(str(name), tuple(parse_values(name, values, where).items()), int(vcpus))
    numbers = dict(guest.values)
    if int(numbers.get("hot_set", 0)) >= int(numbers.get("set", 2**62)):
        raise InputError(f"{where}.hot_set", numbers["hot_set"], "must be smaller than the set", "make set larger")
    return guest
